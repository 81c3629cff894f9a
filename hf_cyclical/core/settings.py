"""Rules of settings: which values one may have, and the line that refuses any other."""

import difflib
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, NoReturn

from .automatic import AUTO
from .errors import PruningError


def refuse(name: str, value: Any, rule: str, remedy: str) -> NoReturn:
    """Raise a PruningError with the setting, its value, the rule that it breaks and what to do."""
    raise PruningError(f"{name} {value!r} {rule}: {remedy}")


@dataclass(frozen=True)
class Setting:
    """What a setting may be, and what it is if not given.

    Attributes:
        check: Raises a PruningError, given the setting's name and its value.
        default: In place of None.
        only: Another setting and the value that it must have for this one to mean anything.
        needs: Another setting that must be given, and not be 0, for this one to mean anything.
        only_pruning: Whether it means nothing where nothing is pruned.
        optional: Whether it can be None.
        auto: Whether it can be `AUTO`, and is then chosen when the number of updates is known.
    """

    check: Callable[[str, Any], None]
    default: Any = None
    only: tuple[str, Any] | None = None
    needs: str | None = None
    only_pruning: bool = False
    optional: bool = True
    auto: bool = False


def says(words: str, default: Any = None, **metadata: Any) -> Any:
    """A field of a dataclass with its help for the command line, and what else argparse is to know."""
    return field(default=default, metadata={"help": words, **metadata})


def number(interval: str, remedy: str, **kwargs: Any) -> Setting:
    """A finite number in an interval such as "[0, 1)"."""
    low, high = map(float, interval[1:-1].split(","))

    def holds(value: float) -> bool:
        above = value >= low if interval[0] == "[" else value > low
        return above and (value <= high if interval[-1] == "]" else value < high)

    return _number(holds, f"in {interval}" if math.isfinite(high) else f"{low:g} or more", remedy, (int, float), kwargs)


def whole(least: int, remedy: str, *, auto: bool = False, **kwargs: Any) -> Setting:
    """A whole number."""
    rule = f"a whole number of at least {least}" + (f", or {AUTO}" if auto else "")
    return _number(lambda v: v >= least, rule, remedy, (int,), kwargs | {"auto": auto})


def one_of(names: Collection[str], **kwargs: Any) -> Setting:
    """One of these names; a mistyped one is refused with the nearest."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, str) or value not in names:
            near = difflib.get_close_matches(str(value), names, n=1)
            hint = f"did you mean {near[0]}?" if near else "choose one of them"
            refuse(name, value, f"is not one of {', '.join(names)}", hint)

    return Setting(check, **kwargs)


def switch(**kwargs: Any) -> Setting:
    """True or false."""
    return _instance(bool, "must be true or false", "write one of them", kwargs)


def text(remedy: str, **kwargs: Any) -> Setting:
    """Text."""
    return _instance(str, "must be text", remedy, kwargs)


def patterns(each: Callable[[str, str], None] = lambda name, pattern: None, **kwargs: Any) -> Setting:
    """A list of patterns; `each` checks one, given the setting's name and the pattern."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
            refuse(name, value, "must be a list of patterns", f"write [{value!r}]")
        for pattern in value:
            each(name, pattern)

    return Setting(check, **kwargs)


def _instance(kind: type, rule: str, remedy: str, kwargs: dict[str, Any]) -> Setting:
    def check(name: str, value: Any) -> None:
        if not isinstance(value, kind):
            refuse(name, value, rule, remedy)

    return Setting(check, **kwargs)


def _number(
    holds: Callable[[float], bool], rule: str, remedy: str, kinds: tuple[type, ...], kwargs: dict[str, Any]
) -> Setting:
    def check(name: str, value: Any) -> None:
        if kwargs.get("auto") and value == AUTO:
            return
        is_number = isinstance(value, kinds) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or not holds(value):
            refuse(name, value, f"must be {rule}", remedy)

    return Setting(check, **kwargs)
