"""Text from outside as HTML, in which nothing can become markup."""

from collections.abc import Sequence
from html import escape

from hf_cyclical.core import printable

_MOST_LETTERS = 200


def text(value: object, most: int = _MOST_LETTERS) -> str:
    """Any text, escaped; of long text the beginning."""
    said = printable(str(value))
    return escape(said if len(said) <= most else f"{said[: most - 1]}…")


def plotted(value: object) -> str:
    """The same for plotly, which takes a few tags for markup and a dollar for the start of a formula."""
    return text(value).replace("$", "&#36;")


def table(rows: Sequence[Sequence[object]], identity: str = "") -> str:
    """Rows of text as a table, the first one its head; numbers, in all columns except the first, to the right."""
    head, *body = [[text(cell) for cell in row] for row in rows]
    lines = ["".join(f"<td>{cell}</td>" for cell in row) for row in body]
    heads = "".join(f"<th scope='col'>{cell}</th>" for cell in head)
    inside = "".join(f"<tr>{line}</tr>" for line in lines)
    name = f" id='{identity}'" if identity else ""
    whole = f"<table class='rows'{name}><thead><tr>{heads}</tr></thead><tbody>{inside}</tbody></table>"
    return f"<div class='scroll'>{whole}</div>"


def note(words: str) -> str:
    """A sentence in place of something that is not there."""
    return f"<p class='note'>{text(words, most=600)}</p>"
