"""The error of this package, and the errors of others in one line."""

import re

_MOST_WORDS = 300  # of an error's text, in characters


class PruningError(ValueError):
    """Something that cannot work as asked: one line with what was wrong, which value, and what to do."""


class DivergedError(PruningError):
    """Weights that became NaN or infinite."""


def first_line(error: Exception) -> str:
    """The first line of an error's text, or its type if it has none; without a token that the HTTP library quotes."""
    text = next(iter(str(error).strip().splitlines()), type(error).__name__)
    text = re.sub(r"Bearer [^'\"]*", "Bearer ...", text)[:_MOST_WORDS]
    return printable(text)  # some quote what is in hostile files


def printable(text: str) -> str:
    """Text in which no character can move the cursor or clear the screen."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
