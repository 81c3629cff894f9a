"""A run in a folder that holds another: nothing of it is lost without a word."""

import pytest
from support.started import SHORT, prune

from hf_cyclical import load_report


@pytest.fixture
def start(tmp_path):
    return lambda *words: prune(*SHORT, "--output_dir", str(tmp_path / "out"), *words)


@pytest.fixture
def kept(start, tmp_path):
    """All files of a finished run."""
    assert start() == 0

    def files():
        return {file: file.read_bytes() for file in (tmp_path / "out").rglob("*") if file.is_file()}

    before = files()
    return lambda: files() == before


def refused(capsys, start, *words):
    capsys.readouterr()
    with pytest.raises(SystemExit):
        start(*words)
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1].startswith("error: ")
    return lines[-1]


def test_a_model_of_another_command(capsys, start, kept, tmp_path):
    text = refused(capsys, start, "--seed", "7")
    assert "holds a model that was made by `hf-cyclical prune" in text
    assert text.endswith("name another --output_dir, or add --overwrite to replace it")
    assert kept()
    assert start("--overwrite", "true", "--seed", "7") == 0
    assert not kept()
    assert "--overwrite" not in load_report(tmp_path / "out").about["command"]
    assert start("--seed", "7") == 0


def test_the_same_command_gives_the_same_again(start, kept, tmp_path):
    weights = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert start() == 0
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == weights


def test_a_model_without_a_report(capsys, start, kept, tmp_path):
    (tmp_path / "out" / "pruning_report.json").unlink()
    assert "holds a model: name another --output_dir" in refused(capsys, start)


def test_a_run_that_was_not_finished(capsys, start, kept, tmp_path):
    for name in ("pruning_report.json", "model.safetensors"):
        (tmp_path / "out" / name).unlink()
    text = refused(capsys, start)
    assert "of a run that was not finished: add --resume auto to go on with it" in text
    assert start("--resume", "auto") == 0
