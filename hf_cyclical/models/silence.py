"""Other libraries without their words: names and values in hostile files may hold anything, control characters too."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging as of_transformers

_TIMM = "timm"


@contextmanager
def silence() -> Iterator[None]:
    """Without the reports, warnings and bars of transformers and timm."""
    level, bars = of_transformers.get_verbosity(), of_transformers.is_progress_bar_enabled()
    timm = logging.getLogger(_TIMM)
    before = timm.level
    of_transformers.set_verbosity(logging.CRITICAL)
    of_transformers.disable_progress_bar()
    timm.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        timm.setLevel(before)
        of_transformers.set_verbosity(level)
        if bars:
            of_transformers.enable_progress_bar()


class _Printable(logging.Filter):
    """Shows control characters in a message as "?", lines and tabs except."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        shown = "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)
        if shown != text:
            record.msg, record.args = shown, ()
        return True


def print_safely() -> None:
    """Let transformers write no control characters, as it quotes configs before anybody has checked them."""
    for handler in logging.getLogger("transformers").handlers:
        if not any(isinstance(known, _Printable) for known in handler.filters):
            handler.addFilter(_Printable())
