"""Ctrl-C in a push: one line with the command that pushes what is there, and exit code 130."""

import os
import re
import signal
import time

import pytest
from support.pushing import contents
from support.started import SHORT

SCRIPT = """
import os, pathlib, signal, sys
from hf_cyclical.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
pathlib.Path({pid!r}).write_text(str(os.getpid()))
sys.exit(main({argv!r}))
"""


class CtrlC:
    """Like a fault of the hub: the user's hand on the keyboard, once a request that matches has come in."""

    def __init__(self, path_regex, pid):
        self.path, self.pid = re.compile(path_regex), pid

    def meets(self, request):
        if self.path.search(request.path):
            os.kill(int(self.pid.read_text()), signal.SIGINT)
            time.sleep(0.5)
        return False


@pytest.fixture
def interrupted(hub, clients, tmp_path):
    """Run a command that is interrupted, and give what it said of it."""

    def run(when, name, *arguments):
        pid = tmp_path / "pid"
        hub.faults.append(CtrlC(when, pid))
        argv = [name, *map(str, arguments)]
        code, out, err = clients.client(SCRIPT.format(pid=str(pid), argv=argv))
        assert (code, "Traceback" in err) == (130, False), err
        return out, err

    return run


@pytest.mark.parametrize("when", ["/api/repos/create", "/lfs/", "/commit/"])
def test_push(interrupted, run, when):
    before = contents(run)
    out, err = interrupted(when, "push", run, "user/model", "--packed", "--license", "mit")
    command = f"hf-cyclical push {run} user/model --packed --license mit"
    assert err.splitlines()[-1] == f"Stopped while pushing. The model is complete in {run}; to push it: {command}"
    assert out == ""
    assert contents(run) == before


def test_prune(interrupted, tmp_path):
    folder = tmp_path / "out"
    arguments = [*SHORT, "--output_dir", folder, "--push_to_hub", "--hub_model_id", "user/digits", "--hub_public"]
    out, err = interrupted("/commit/", "prune", *arguments)
    command = f"hf-cyclical push {folder} user/digits --hub_public"
    assert err.splitlines()[-1] == f"Stopped while pushing. The model is complete in {folder}; to push it: {command}"
    assert f"are in {folder}" in out
