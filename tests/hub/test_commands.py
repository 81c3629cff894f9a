"""hf-cyclical: verify, pack, unpack, and what it says of bad input."""

import shutil

import pytest
from support.local_hub import READER, run_client
from support.stamped import edit_json, save_stamped

from hf_cyclical.cli import main

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def stamped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stamped") / "model"
    save_stamped("cifar_resnet8", folder)
    return folder


@pytest.fixture
def folder(stamped, tmp_path):
    return shutil.copytree(stamped, tmp_path / "model")


def fails(argv, capsys):
    with pytest.raises(SystemExit) as exit_:
        main([str(word) for word in argv])
    out, err = capsys.readouterr()
    assert exit_.value.code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


def test_there_and_back(folder, tmp_path, capsys):
    assert main(["verify", str(folder)]) == 0
    assert main(["pack", str(folder), str(tmp_path / "packed")]) == 0
    assert main(["verify", str(tmp_path / "packed")]) == 0
    assert main(["unpack", str(tmp_path / "packed"), str(tmp_path / "back")]) == 0
    assert main(["verify", str(tmp_path / "back")]) == 0
    for file in folder.iterdir():
        assert (tmp_path / "back" / file.name).read_bytes() == file.read_bytes()
    out = capsys.readouterr().out
    dense, packed = ((tmp_path / name / WEIGHTS).stat().st_size for name in ("model", "packed"))
    ratio = f"{dense / packed:.1f} times"
    assert f"packed: {packed:,} bytes instead of {dense:,}, {ratio} smaller; " in out
    assert f"back: {dense:,} bytes instead of {packed:,}, {ratio} larger\n" in out
    assert out.count("the weights are what its files say.") == 3


def test_the_target_has_a_name_of_its_own_if_none_is_given(folder):
    assert main(["pack", f"{folder}/"]) == 0
    assert main(["unpack", f"{folder}-packed"]) == 0
    assert (folder.parent / f"{folder.name}-packed-unpacked" / WEIGHTS).read_bytes() == (folder / WEIGHTS).read_bytes()


def test_what_fails_leaves_no_folder(folder, tmp_path, capsys):
    assert "is not packed" in fails(["unpack", folder, tmp_path / "new" / "deep"], capsys)
    assert not (tmp_path / "new").exists()


def test_a_difference_is_exit_code_1(folder, capsys):
    edit_json(folder / "sparsity.json", lambda content: content["achieved"].update(zeros=1))
    assert main(["verify", str(folder)]) == 1
    out = capsys.readouterr().out
    assert "1 difference\n  achieved zeros is recorded as 1, but is" in out
    assert next(line for line in out.splitlines() if line.startswith("achieved zeros")).endswith("differs")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["verify"], "SOURCE"),
        (["verify", "nowhere"], "neither a folder here nor a Hub id"),
        (["verify", "{folder}", "--revision", "main"], "has no meaning for the folder"),
        (["verify", "{folder}", "--max_bytes", "ten"], "invalid int value: 'ten'"),
        (["verify", "{folder}", "--max_bytes", "10"], "at most 10 are read"),
        (["verify", "{folder}", "--token", "hf_x"], "unrecognized arguments"),
        (["pack", "{folder}", "{folder}"], "exists"),
        (["unpack", "{folder}", "{folder}-2"], "is not packed"),
        (["pack", "nowhere", "{folder}-2"], "there is no folder"),
        (["unpack", "{folder}/config.json", "{folder}-2"], "there is no folder"),
        (["pack", "{folder}/empty", "{folder}-2"], "has no config.json"),
        (["pack", "{folder}", "."], "exists"),
        (["pack", ".", "{folder}"], "exists"),
        (["pack", ".", "."], "exists"),
        (["pack", "{folder}", ".."], "exists"),
        (["pack", "{folder}", "config.json"], "exists"),
        (["pack", "{folder}", "config.json/x"], "config.json"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(argv, words, folder, capsys, monkeypatch):
    (folder / "empty").mkdir()
    monkeypatch.chdir(folder)
    before = {file: file.read_bytes() for file in folder.parent.rglob("*") if file.is_file()}
    assert words in fails([word.format(folder=folder) for word in argv], capsys)
    assert {file: file.read_bytes() for file in folder.parent.rglob("*") if file.is_file()} == before


def test_relative_folders(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    assert main(["pack", ".", "inside"]) == 0
    (folder.parent / "empty").mkdir()
    monkeypatch.chdir(folder.parent / "empty")
    assert main(["unpack", "../model/inside/", "."]) == 0
    assert main(["verify", "."]) == 0
    assert main(["pack", "../empty", "../a/b/../c"]) == 0
    assert main(["verify", "../a/c"]) == 0
    assert sorted(path.name for path in folder.parent.iterdir()) == ["a", "empty", "model"]


def test_a_malformed_record(folder, capsys):
    (folder / "sparsity.json").write_text("{}")
    assert "sparsity.json: schema None is unknown" in fails(["verify", folder], capsys)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("verify", ("verify user/name", "exit code is 0", "branch, tag or commit", "--max_bytes")),
        ("pack", ("FOLDER [TARGET]",)),
        ("unpack", ("FOLDER [TARGET]", "--max_bytes")),
    ],
)
def test_help_explains(name, words, capsys):
    with pytest.raises(SystemExit) as exit_:
        main([name, "--help"])
    assert exit_.value.code == 0
    out = capsys.readouterr().out
    assert not [word for word in words if word not in out]


def test_against_the_hub(hub, stamped):
    hub.put("user/model", {file.name: file.read_bytes() for file in stamped.iterdir()}, private=True)
    code = "import runpy, sys\nsys.argv[1:] = ['verify', 'user/model']\n"
    code += "runpy.run_module('hf_cyclical', run_name='__main__', alter_sys=True)"
    code_, out, err = run_client(hub, code, token=READER)
    assert code_ == 0, err
    assert "user/model: the weights are what its files say." in out
    code_, out, err = run_client(hub, code, token=None)
    assert (code_, out) == (2, "")
    assert err.splitlines()[-1].endswith("log in with `hf auth login` if it is private")
    assert "Traceback" not in err
