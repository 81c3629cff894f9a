"""What the commands share: how they parse and fail, and how they tell their own command line."""

import sys
from argparse import SUPPRESS, ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from itertools import pairwise
from typing import NoReturn

from hf_cyclical.core import printable
from hf_cyclical.formats import TOKEN

USAGE_ERROR, INTERRUPTED = 2, 130


class Parser(ArgumentParser):
    """The argument parser of a command, whose errors are one line."""

    def __init__(self, command: str, about: str | None) -> None:
        super().__init__(
            f"hf-cyclical {command}",
            description=about,
            formatter_class=RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.add_argument("--help-all", "--help_all", action="help", help=SUPPRESS)  # here --help says all of it

    def error(self, message: str) -> NoReturn:
        """As in ArgumentParser, without its usage."""
        fail(f"{message} (--help explains every argument)")


def add_limit(parser: ArgumentParser) -> None:
    """Add the limit on what is unpacked."""
    text = "the most bytes that the weights may take unpacked; what the model of config.json takes if not given"
    parser.add_argument("--max_bytes", type=int, metavar="N", help=text)


def without_resume(argv: Sequence[str]) -> list[str]:
    """The command line without what it resumes or replaces: what was asked for, however often it was interrupted."""
    kept: list[str] = []
    skip = False
    for word, following in pairwise([*argv, ""]):
        name, equals, _ = word.partition("=")
        if name.replace("-", "_") in ("__resume", "__resume_from_checkpoint"):
            skip = not equals
        elif name == "--overwrite":  # a switch, which may have a value
            skip = not equals and following.lower() in ("true", "false", "1", "0", "yes", "no")
        elif skip:
            skip = False
        else:
            kept.append(word)
    return kept


def stopped_pushing(folder: object, command: str) -> int:
    """Say after Ctrl-C how to push what is there already, and give the exit code."""
    sys.stderr.write(f"\nStopped while pushing. The model is complete in {folder}; to push it: {command}\n")
    return INTERRUPTED


def fail(error: object) -> NoReturn:
    """End the command with one line and exit code 2."""
    text = str(error).rsplit("PruningError: ", 1)[-1]  # a worker of the DataLoader puts its traceback before it
    text = TOKEN.sub("...", text)  # a token that stood where something else belongs
    sys.stderr.write(f"error: {printable(' '.join(text.split()))}\n")
    sys.exit(USAGE_ERROR)
