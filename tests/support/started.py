"""The commands as their users start them."""

import io
import os
import re
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from hf_cyclical.cli import main

from .patience import HUNG

ROOT = Path(__file__).parents[2]
LAUNCH = [sys.executable, "-m", "accelerate.commands.launch", "scripts/prune.py"]
PYTHON = [sys.executable, "scripts/prune.py"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]  # finds a port
SHORT = ["--max_steps", "24", "--dense_epochs", "0", "--cycles", "2"]


def start(command, *args, cwd=ROOT, **kwargs):
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        [*command, *map(str, args)], cwd=cwd, env=environment, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, **kwargs,
    )  # fmt: skip


def wait_for(process, pattern):
    """Wait until the progress or errors of a script look as `pattern` says."""
    seen = ""
    while not re.search(pattern, seen):
        chunk = os.read(process.stderr.fileno(), 4096).decode(errors="replace")
        assert chunk, seen
        seen += chunk


def interrupt(process, pattern):
    """Send Ctrl-C once the progress of a script looks as `pattern` says; what it prints after that."""
    wait_for(process, pattern)
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=HUNG)


def run(command, *args):
    process = start(command, *args)
    out, err = process.communicate(timeout=HUNG)
    return process.returncode, out, err


def prune(*args):
    """`hf-cyclical prune` in this process, which has the imports behind it; gives the exit code."""
    return main(["prune", *map(str, args)])


def call(*args):
    """The same as `run(PYTHON, ...)` in this process."""
    return captured(main, "prune", *args)


def captured(main, *args):
    """Exit code, output and errors of a main function."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main([str(arg) for arg in args])
        except SystemExit as exit_:
            code = exit_.code
    return code, out.getvalue(), err.getvalue()
