"""What the card of a pushed model tells others to do, done by them; and the licence that it names."""

import re

import pytest
from support.local_hub import run_client
from support.pushing import PUSHED, copy_run, finished_run

USE = """
import torch
assert model.eval()(torch.zeros(1, 3, 32, 32)) is not None
"""


def blocks(card, section):
    text = card.split(f"## {section}\n")[1].split("\n## ")[0]
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    ("kind", "processor", "found"),
    [("timm", False, 3), ("transformers", True, 2), ("transformers", False, 2)],
)
def test_the_code_of_the_card_runs(hub, clients, tmp_path, kind, processor, found):
    run = copy_run(finished_run(kind), tmp_path / "run")
    if not processor:
        (run / "preprocessor_config.json").unlink(missing_ok=True)
    assert clients.push(run, "user/model", "--packed")[0] == 0
    assert sorted(hub.files("user/model")) == sorted([*PUSHED, *["preprocessor_config.json"] * processor])
    code = blocks(hub.files("user/model")["README.md"].decode(), "Load it")
    assert len(code) == found
    for block in code:
        ended, _, err = run_client(hub, block + USE)
        assert ended == 0, f"{block}\n{err}"
    assert any("AutoImageProcessor" in block for block in code) == (kind == "timm" or processor)


BASE = "---\nlicense: {}\n---\n# A base\n"


@pytest.mark.parametrize(
    ("card", "given", "named"),
    [
        (BASE.format("apache-2.0"), [], "apache-2.0"),
        (BASE.format("apache-2.0"), ["--license", "mit"], "mit"),
        (BASE.format("other"), [], None),
        (BASE.format("[mit, apache-2.0]"), [], None),
        ("# Without metadata\n", [], None),
        (None, [], None),
    ],
    ids=["named", "given", "other", "several", "none", "no-base"],
)
def test_the_licence_is_that_of_the_base_model_if_the_hub_tells_it(hub, clients, run, tmp_path, card, given, named):
    if card is not None:
        hub.put("org/base", {"README.md": card.encode()})
    run = copy_run(run, tmp_path / "run", model="org/base", base_model="org/base")
    code, _, err = clients.push(run, "user/model", *given)
    assert (code, err.count("error")) == (0, 0), err
    found = re.findall("^license: (.*)$", hub.files("user/model")["README.md"].decode(), re.MULTILINE)
    assert found == ([named] if named else [])


def test_a_licence_that_cannot_be_asked_for_is_left_out(hub, clients, run, tmp_path):
    hub.fail("GET", "/api/models/org/base", times=None)
    run = copy_run(run, tmp_path / "run", model="org/base", base_model="org/base")
    code, _, err = clients.push(run, "user/model", impatient=True)
    assert code == 0, err
    assert "license" not in hub.files("user/model")["README.md"].decode()
