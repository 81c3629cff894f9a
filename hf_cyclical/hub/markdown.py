"""Text from outside in Markdown: no name, path or command of a user can become markup."""

import re

from jinja2 import Environment, PackageLoader, StrictUndefined

from hf_cyclical.reports import show


class Markdown(str):
    """Text that is Markdown already. Whatever else the template is given comes out as code, and so cannot be markup."""

    __slots__ = ()


def environment() -> Environment:
    """Jinja for Markdown, with the templates of this package: strings that are not `Markdown` come out as `code`."""
    made = Environment(  # noqa: S701 - Markdown is no HTML: `finalize` escapes for it
        loader=PackageLoader("hf_cyclical.hub"),
        undefined=StrictUndefined,
        finalize=lambda value: code(value) if isinstance(value, str) else value,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {
        "block": block,
        "cell": cell,
        "count": lambda number: Markdown(f"{number:,}"),
        "plain": Markdown,
        "percent": percent,
        "show": lambda value, metric: Markdown(show(value, metric)),
        "size": size,
        "word": word,
    }
    return made


def code(text: str) -> Markdown:
    """Text from outside as a code span on one line, which holds any text and makes markup of none."""
    if isinstance(text, Markdown):
        return text
    text = clean(text)
    fence = "`" * (_longest_run(text) + 1)
    space = " " if text[:1] == "`" or text[-1:] == "`" else ""
    return Markdown(f"{fence}{space}{text}{space}{fence}") if text else Markdown("")


def cell(text: str) -> Markdown:
    """A code span for a cell of a table, where `|` would end the cell even in code.

    Backslashes right before it are dropped: readers differ on which of them escapes what.
    """
    return Markdown(re.sub(r"\\*\|", r"\|", code(text)))


def block(text: str, language: str) -> Markdown:
    """Text from outside as a block of code, on one line."""
    text = clean(text)
    fence = "`" * max(3, _longest_run(text) + 1)
    return Markdown(f"{fence}{language}\n{text}\n{fence}")


def percent(fraction: float, form: str = "g") -> Markdown:
    """A fraction in percent, with at most two decimals; only the whole is 100 %."""
    value = round(100 * fraction, 2)
    return Markdown(f"{99.99 if value == 100 and fraction < 1 else value:{form}} %")


def size(count: int) -> Markdown:
    """Bytes in the unit that suits them."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= factor:
            return Markdown(f"{count / factor:.1f} {unit}")
    return Markdown(f"{count} bytes")


def word(text: str) -> Markdown:
    """A plain word as it is, anything else as `cell` does."""
    return Markdown(text) if re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", text) else cell(text)


def clean(text: str) -> str:
    """Text on one line, without characters that do not show."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)
