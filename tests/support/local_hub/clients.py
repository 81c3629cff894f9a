"""Client code against a `LocalHub`.

The libraries read `HF_ENDPOINT` and its like once, when they are imported, and their import takes longer than most
tests. So a process is started with the environment of one hub, imports them, and forks for each piece of code.
"""

import inspect
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path

from support.patience import HUNG

from .store import WRITER

ROOT = Path(__file__).parents[3]
LIBRARIES = (
    "huggingface_hub",
    "transformers",
    "timm",
    "safetensors.torch",
    "transformers.models.resnet.modeling_resnet",
)
RESULT = "result of the client: "


def client_environment(hub, token: str | None = WRITER, home: str | Path | None = None) -> dict[str, str]:
    """The environment of a user of this Hub and of no other: nothing of the developer's own login is left in it."""
    ours = ("HF_", "HUGGING", "TRANSFORMERS_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    kept |= {
        "HF_ENDPOINT": hub.url, "HF_HOME": str(home or hub.clients.home), "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": "127.0.0.1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    return kept | ({"HF_TOKEN": token} if token else {})


def run_client(hub, code: str | Callable, *args, token: str | None = WRITER, **options) -> tuple[int, str, str]:
    """Run code, or a function that imports what it needs, as a client with an empty cache.

    Args:
        hub: The hub that the client talks to.
        code: Source, or a function; a function is called with `args` (as JSON would give them back).
        args: The function's arguments.
        token: `HF_TOKEN`; `None` for nobody.
        options: `env`, more variables; `cwd`; `timeout` in seconds; `impatient=True`, huggingface_hub does not wait
            between its attempts; `fork=False`, an interpreter with nothing imported beforehand.

    Returns:
        The exit code, stdout and stderr.
    """
    if callable(code):
        source = textwrap.dedent(inspect.getsource(code))
        given = json.dumps(json.dumps(args, default=str))
        code = f"{source}\nimport json\nprint({RESULT!r} + json.dumps({code.__name__}(*json.loads({given}))))\n"
    return hub.clients.run(client_environment(hub, token), code, **options)


def ask(hub, function: Callable, *args, **options):
    """What the function returns in the client, as JSON would give it back."""
    code, out, err = run_client(hub, function, *args, **options)
    assert code == 0, err
    return json.loads(out.rpartition(RESULT)[2])


class Clients:
    """Starts the clients of one hub; the process that forks them lives from the first of them on."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="hub_clients_"))
        self.home = self.folder / "home"
        self.forker: subprocess.Popen | None = None

    def close(self) -> None:
        if self.forker:
            end(self.forker)
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, environment, code, *, env=None, cwd=ROOT, timeout=HUNG, impatient=False, fork=True):
        shutil.rmtree(self.home, ignore_errors=True)
        streams = [self.folder / "out", self.folder / "err"]
        job = {
            "code": code, "environment": environment | (env or {}), "cwd": str(cwd), "timeout": timeout,
            "impatient": impatient, "streams": [str(stream) for stream in streams],
        }  # fmt: skip
        if fork:
            self.forker = self.forker or start(environment, LIBRARIES)
        process = self.forker if fork else start(environment, ())
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not fork:
            end(process)
        assert answer, "the process that starts clients has ended"
        return int(answer), *(stream.read_text(errors="replace") for stream in streams)


def start(environment, modules) -> subprocess.Popen:
    command = [sys.executable, "-P", str(Path(__file__).with_name("client_process.py")), *modules]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **pipes)


def end(process: subprocess.Popen) -> None:
    process.stdin.close()
    process.wait(timeout=HUNG)
    process.stdout.close()
