"""What the scripts share: how they fail, and how they tell their own command line."""

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import NoReturn

from hf_cyclical.formats import TOKEN

USAGE_ERROR, INTERRUPTED = 2, 130


class Parser(ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """As in ArgumentParser, without its usage."""
        fail(f"{message} (--help explains every argument)")


def without_resume(argv: Sequence[str]) -> list[str]:
    """The command line without where the run goes on: what was asked for, however often it was interrupted."""
    kept: list[str] = []
    skip = False
    for word in argv:
        name, equals, _ = word.partition("=")
        if name in ("--resume", "--resume_from_checkpoint"):
            skip = not equals
        elif skip:
            skip = False
        else:
            kept.append(word)
    return kept


def stopped_pushing(folder: object, command: str) -> int:
    """Say after Ctrl-C how to push what is there already, and give the exit code."""
    sys.stderr.write(f"\nStopped while pushing. The model is whole in {folder}; to push it: {command}\n")
    return INTERRUPTED


def fail(error: object) -> NoReturn:
    """End the script with one line and exit code 2."""
    text = str(error).rsplit("PruningError: ", 1)[-1]  # a worker of the DataLoader puts its traceback before it
    text = TOKEN.sub("...", text)  # a token that stood where something else belongs
    sys.stderr.write(f"error: {' '.join(text.split())}\n")
    sys.exit(USAGE_ERROR)
