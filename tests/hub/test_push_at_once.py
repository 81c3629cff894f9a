"""A Hub that hangs, and two pushes at once: an error with the command to try again, or one model on both branches."""

import json

import pytest
from support.pushing import copy_run
from support.stamped import edit_json


def push_all(calls, repo, timeout=1800.0):
    """What each push says, all of them at the same time; runs in the client."""
    from threading import Thread

    from hf_cyclical import PruningError
    from hf_cyclical.hub import push

    said = {}

    def run(number, folder, packed):
        try:
            said[number] = push(folder, repo, packed=packed, timeout=timeout)
        except PruningError as error:
            said[number] = f"error: {error}"

    threads = [Thread(target=run, args=(number, *call)) for number, call in enumerate(calls)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return [said[number] for number in range(len(calls))]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/repos/create"),
        ("GET", "/api/models/user/model$"),
        ("GET", "/refs"),
        ("POST", "/preupload/"),
        ("PUT", "/lfs/"),
        ("POST", "/commit/main"),
        ("POST", "/commit/packed"),
    ],
)
def test_a_hub_that_does_not_answer(hub, clients, run, method, path):
    hub.hang(method, path)
    (said,) = clients.ask(push_all, [[run, True]], "user/model", 0.2, impatient=True)
    assert said.startswith("error: the Hub did not answer within 0.2 seconds while 'user/model' was pushed; ")
    assert said.endswith(f"to try again: hf-cyclical push {run} user/model --packed")
    hub.faults.clear()
    (said,) = clients.ask(push_all, [[run, True]], "user/model")
    assert said == f"{hub.url}/user/model"


def test_a_name_that_has_to_be_asked_for(hub, clients, run):
    hub.hang("GET", "/api/whoami")
    (said,) = clients.ask(push_all, [[run, True]], "model", 0.2, impatient=True)
    assert said.startswith("error: the Hub did not answer within 0.2 seconds while 'model' was pushed")


def test_somebody_pushes_before_the_commit(hub, clients, run):
    hub.put("user/model", {"README.md": b"# mine"}, private=True)
    hub.meanwhile("POST", "/commit/main", lambda: hub.put("user/model", {"README.md": b"# theirs"}, private=True))
    (said,) = clients.ask(push_all, [[run, False]], "user/model", impatient=True)
    assert "somebody else pushed to 'user/model' at the same time; the model is complete in" in said
    assert f"to try again: hf-cyclical push {run} user/model" in said
    assert hub.files("user/model") == {"README.md": b"# theirs"}
    (said,) = clients.ask(push_all, [[run, False]], "user/model")
    assert said == f"{hub.url}/user/model"


@pytest.mark.parametrize("branch", ["main", "packed"])
def test_somebody_pushes_between_the_branches(hub, clients, run, branch):
    theirs = {"config.json": b"{}"}
    hub.meanwhile("POST", "/preupload/packed", lambda: hub.put("user/model", theirs, branch, private=True))
    (said,) = clients.ask(push_all, [[run, True]], "user/model", impatient=True)
    assert said.startswith("error: somebody else pushed to ")
    assert hub.files("user/model", branch)["config.json"] == b"{}"


@pytest.mark.parametrize(("method", "path"), [("GET", "/api/models/user/model$"), ("POST", "/commit/main")])
def test_somebody_pushes_packed_weights_meanwhile(hub, clients, run, method, path):
    """Whose branch would stay that of another model."""
    hub.put("user/model", {"README.md": b"# mine"}, private=True)
    hub.meanwhile(method, path, lambda: hub.put("user/model", {"config.json": b"{}"}, "packed", private=True))
    (said,) = clients.ask(push_all, [[run, False]], "user/model", impatient=True)
    assert said.startswith("error: somebody else pushed to the branch packed of 'user/model' at the same time")
    assert f"to try again: hf-cyclical push {run} user/model" in said


@pytest.mark.parametrize("attempt", range(3))
def test_two_at_once(hub, clients, run, tmp_path, attempt):
    other = copy_run(run, tmp_path / "other")
    edit_json(other / "config.json", lambda config: config.update(note="other"))
    hub.put("user/model", {"a.txt": b"1"}, private=True)
    said = clients.ask(push_all, [[run, True], [other, True]], "user/model", impatient=True)
    notes = [json.loads(hub.files("user/model", b)["config.json"]).get("note") for b in ("main", "packed")]
    assert any(line.startswith("error: somebody else pushed to ") for line in said) or notes[0] == notes[1]
    if said.count(f"{hub.url}/user/model") == 1:
        assert all("to try again: " in line for line in said if line.startswith("error"))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors.index.json", "adapter_config.json"])
def test_other_weights_that_are_there(hub, clients, run, name):
    hub.put("user/model", {name: b"x"}, private=True)
    (said,) = clients.ask(push_all, [[run, False]], "user/model")
    assert f"repository 'user/model' has '{name}', other weights, which some programs would load: delete that" in said
    assert sorted(hub.files("user/model")) == [name]


def test_other_weights_on_the_branch_packed(hub, clients, run):
    hub.put("user/model", {"README.md": b"# mine"}, private=True)
    hub.put("user/model", {"pytorch_model.bin": b"x"}, "packed", private=True)
    (said,) = clients.ask(push_all, [[run, True]], "user/model")
    assert "repository 'user/model' has 'pytorch_model.bin', other weights" in said
    assert sorted(hub.files("user/model")) == ["README.md"]
