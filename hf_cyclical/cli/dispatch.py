"""`hf-cyclical COMMAND ...`: finds the command and runs it.

Nothing here imports a library, so that help is there at once: each command imports what it needs.
"""

import difflib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import NoReturn

from hf_cyclical import __version__

_USAGE_ERROR = 2


@dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
        entry: Its module in this room, and the function in it that runs it.
        about: What it does.
        needs: The modules that it needs and that only an extra installs.
    """

    entry: str
    about: str
    needs: tuple[str, ...] = ()


# The extra of this package that installs a module.
_EXTRAS = {
    **dict.fromkeys(("datasets", "evaluate", "matplotlib"), "run"),
    **dict.fromkeys(("onnx", "onnxruntime", "onnxscript"), "onnx"),
    "llvmlite": "fast",
    "gradio": "show",
}
_RUN = ("datasets", "evaluate", "matplotlib")

COMMANDS = {
    "prune": Command("prune:main", "prune an image classifier; without arguments, a small one on digits", _RUN),
    "compare": Command("compare:main", "run a table of the paper: methods x sparsities x seeds", _RUN),
    "presets": Command("presets:main", "print the paper's settings by name, and where their values come from"),
    "push": Command("push:main", "push a finished run to the Hub, with its card, report and sparsity record"),
    "verify": Command("verify:main", "recount a model's weights and compare with what its files say"),
    "pack": Command("packing:pack", "pack a model's weights without loss, in a fraction of the bytes"),
    "unpack": Command("packing:unpack", "make a packed model an ordinary one"),
    "speed": Command("speed:main", "measure how fast a pruned model is on this processor", ("llvmlite",)),
    "predict": Command("predict:main", "classify images with a pruned model"),
    "export": Command("export:main", "export a pruned model to ONNX", ("onnx", "onnxruntime", "onnxscript")),
    "figures": Command("figures:main", "draw the figures of a run from its report", ("matplotlib",)),
    "show": Command("show:main", "look at a job in the browser, finished or running", ("gradio",)),
    "linear": Command("linear:main", "section 4 of the paper: one-shot against PGD in linear regression"),
}

_HELP = """usage: hf-cyclical COMMAND [argument ...]

Cyclical pruning for the vision models of the Hugging Face Hub.

{commands}

hf-cyclical COMMAND --help explains a command, hf-cyclical --version prints the version. To run on several processes:
accelerate launch [options of accelerate] -m hf_cyclical prune ...
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = words[0] if words else None
    if name in ("-h", "--help", "--help-all", "help", None):
        (sys.stdout if words else sys.stderr).write(_help())
        return 0 if words else _USAGE_ERROR
    if name == "--version":
        sys.stdout.write(f"hf_cyclical {__version__}\n")
        return 0
    if name not in COMMANDS:
        _refuse(f"there is no command {name!r}: {_near(name)}")
    command = COMMANDS[name]
    if not {"-h", "--help", "--help-all"} & set(words):
        for module in command.needs:
            if find_spec(module) is None:
                extra = _EXTRAS[module]
                _refuse(f'{name} needs {module}, which is not installed: pip install "hf_cyclical[{extra}]"')
    module, _, function = command.entry.partition(":")
    return getattr(import_module(f"{__package__}.{module}"), function)(words[1:])


def _help() -> str:
    width = max(map(len, COMMANDS))
    return _HELP.format(commands="\n".join(f"  {name:{width}}  {row.about}" for name, row in COMMANDS.items()))


def _near(name: str) -> str:
    near = difflib.get_close_matches(name, COMMANDS, n=1)
    return f"did you mean {near[0]}?" if near else f"choose one of {', '.join(COMMANDS)}"


def _refuse(text: str) -> NoReturn:
    from .command_line import fail  # hides tokens

    fail(text)
