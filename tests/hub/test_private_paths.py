"""Nothing that is pushed tells where something lies on the machine that it was made on."""

import json
import shlex

import pytest
from support.pushing import copy_run, finished_run
from support.stamped import edit_json

from hf_cyclical.formats import hide_in_command, hide_in_settings, public_about
from hf_cyclical.hub import build_folder

NAME = "secretuser"
FORMS = [
    "/home/secretuser/resnet",
    "/home/secretuser",
    "/home/secretuser/",
    "/mnt/c/Users/secretuser/",
    "/home/secretuser/my models/a b/resnet",
    "/data/of secretuser/x/resnet/",
    "//secretuser/share/resnet",
    "~secretuser",
    "~secretuser/resnet",
    "~/secretuser/resnet",
    "./secretuser/resnet",
    "../secretuser/resnet",
    "../../secretuser/resnet",
    "runs/secretuser/resnet",
    "runs of/secretuser x/resnet",
    r"C:\Users\secretuser\resnet",
    r"C:\Users\secretuser",
    r"C:\Users\secretuser\my models\resnet",
    r"D:\\secretuser\\resnet",
    "c:/Users/secretuser/resnet",
    r"\\server\secretuser\resnet",
    r"\\secretuser\share\resnet",
    r"..\secretuser\resnet",
    r"runs\secretuser\resnet",
    r"secretuser\resnet",
    "file:///home/secretuser/resnet",
    "file://secretuser/share/resnet",
    "FILE:///C:/Users/secretuser/resnet",
    "sqlite:////home/secretuser/resnet",
    "hdfs:///user/secretuser/resnet",
    "local-dir:/home/secretuser/resnet",
    "'/home/secretuser/res net'",
    '"/home/secretuser/resnet"',
    "/home/a/resnet, /home/secretuser/resnet",
    "https://huggingface.co/user/name and /home/secretuser/resnet",
]
KEPT = [
    "microsoft/resnet-50", "timm/resnet18.a1_in1k", "resnet18", "digits", "my-run", "a run of mine", "0.9", ".",
    "https://huggingface.co/user/name", "hf://datasets/user/name", "2.9.1+cpu", "<path>/resnet", "n/a", "~5 epochs",
]  # fmt: skip


def commands(form):
    """The form in a command line, in all the ways that a shell would take for one word."""
    yield shlex.join(["prune.py", "--model_name_or_path", form, "--seed", "1"])
    yield shlex.join(["prune.py", f"--output_dir={form}", "--seed=1"])
    yield shlex.join(["prune.py", "--data_files", json.dumps({"train": form, "n": 1})])
    yield shlex.join([f"PYTHONPATH={form}", "python", form])
    if not {"'", '"'} & set(form):
        yield f"prune.py --model '{form}' --output_dir=\"{form}\""
        if " " not in form:
            yield f"prune.py --model {form} --seed 1"


def everywhere(form):
    return {"model": form, "dataset": form, "arguments": {"folders": [form], form: [{"deep": f"in {form}"}]}}


@pytest.mark.parametrize("form", FORMS)
def test_no_form_of_a_path_is_left(form):
    for command in commands(form):
        about = public_about(everywhere(form) | {"command": command})
        assert NAME not in json.dumps(about)
        assert public_about(about) == about
    assert "resnet" in about["model"] or form.rstrip("/\\").endswith(NAME) or "res net" in about["model"]


@pytest.mark.parametrize("text", KEPT)
def test_other_words_stay(text):
    assert public_about(everywhere(text)) == everywhere(text)
    command = shlex.join(["prune.py", "--model_name_or_path", text, f"--output_dir={text}"])
    assert hide_in_command(command) == command


def test_a_folder_here_is_none_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "user" / "model").mkdir(parents=True)
    assert public_about({"model": "user/model", "dataset": "user/data"}) == {
        "model": "<path>/model", "dataset": "user/data",
    }  # fmt: skip


def test_a_command_keeps_its_form():
    command = "accelerate launch scripts/prune.py --output_dir '/home/me/my runs/1' --seed=3 --exclude '*.conv1'"
    assert hide_in_command(command) == "accelerate launch scripts/prune.py --output_dir 1 --seed=3 --exclude '*.conv1'"
    assert hide_in_command("prune.py 'half a quote") is None
    assert hide_in_command("") is None


def test_a_password_in_an_address_is_left_out():
    assert hide_in_command("prune.py --url https://bob:secret@host/x") == "prune.py --url https://host/x"
    assert public_about({"dataset": "s3://key:secret@bucket/x"}) == {"dataset": "s3://bucket/x"}


def test_where_a_model_came_from_is_hidden_in_its_settings():
    settings = {"_name_or_path": "clients/acme secret/model", "id2label": {"0": "/m/01yrx"}, "size": 3}
    assert hide_in_settings(settings) == settings | {"_name_or_path": "<path>/model"}


def test_nothing_of_them_reaches_the_hub(hub, clients, tmp_path):
    def push_all(folders):
        from hf_cyclical.hub import push

        for i, folder in enumerate(folders):
            push(folder, f"user/model-{i}", packed=i == 0)

    folders = []
    for i, form in enumerate(FORMS):
        about = everywhere(form) | {"command": list(commands(form))[i % 4]}
        folder = copy_run(finished_run("transformers"), tmp_path / str(i), **about)
        edit_json(folder / "config.json", lambda config, form=form: config.update(_name_or_path=f"/home/{form}"))
        folders.append(folder)
    clients.ask(push_all, folders)
    assert [len(hub.files(f"user/model-{i}")) > 5 for i in range(len(FORMS))] == [True] * len(FORMS)
    assert not hub.received(NAME.encode())
    card, report = (hub.files("user/model-0")[name].decode() for name in ("README.md", "pruning_report.json"))
    assert "\n# `resnet`, " in card
    assert json.loads(report)["about"]["model"] == "<path>/resnet"


def test_settings_lose_paths_and_keep_labels(tmp_path):
    run = copy_run(finished_run("transformers"), tmp_path / "run")
    labels = {"0": "/m/01yrx", "1": "/m/0bt9lr", "2": "a/b/c"}
    edit_json(run / "config.json", lambda config: config.update(id2label=labels, source=["/home/secretuser/resnet"]))
    edit_json(run / "preprocessor_config.json", lambda config: config.update(name_or_path="~/secretuser/resnet"))
    folder = build_folder(run, tmp_path / "built", repo_id="user/model")["main"]
    config = json.loads((folder / "config.json").read_text())
    assert (config["id2label"], config["source"]) == (labels, ["<path>/resnet"])
    assert not any(NAME in file.read_text() for file in folder.iterdir() if file.suffix in (".json", ".md"))
