"""A run that fits a time: the arithmetic of `--budget`, from what updates and evaluations take."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from hf_cyclical.core import PruningError

SHORTEST = 100  # updates of a cycle below which masks cannot be chosen gradually, let alone recover
_SHARE = 0.9  # of the time: loading, checkpoints and what else is not measured have the rest
_UNITS = {"h": 3600, "m": 60, "s": 1}
_NUMBER = r"(\d{1,6}(?:\.\d{1,3})?)"
_DURATION = re.compile("".join(f"(?:{_NUMBER}{unit})?" for unit in _UNITS))


@dataclass(frozen=True)
class Cost:
    """What parts of a run take, in seconds.

    Attributes:
        update: An optimizer update, the teacher's pass and the projection included.
        choice: A choice of masks.
        evaluation: An evaluation, with the statistics that are re-estimated for it; 0 if there are no images for it.
    """

    update: float
    choice: float = 0.0
    evaluation: float = 0.0


@dataclass(frozen=True)
class Work:
    """How many of each a run has."""

    updates: int
    choices: int = 0
    evaluations: int = 0

    def seconds(self, cost: Cost) -> float:
        """What it takes."""
        return self.updates * cost.update + self.choices * cost.choice + self.evaluations * cost.evaluation


def seconds_of(text: str) -> float:
    """The seconds of a duration.

    >>> [seconds_of(text) for text in ("90s", "30m", "1h30m", "1.5h")]
    [90.0, 1800.0, 5400.0, 5400.0]
    """
    found = _DURATION.fullmatch(text.strip().lower())
    parts = found.groups() if found else ()
    seconds = sum(float(part) * length for part, length in zip(parts, _UNITS.values(), strict=False) if part)
    if not seconds:
        raise PruningError(f"budget {text!r} is no time: write 90s, 30m, 2h or 1h30m")
    return seconds


def duration(seconds: float) -> str:
    """Seconds, rounded up, as `seconds_of` reads them.

    >>> [duration(seconds) for seconds in (0.2, 90, 125, 3601, 7200)]
    ['1s', '90s', '3m', '1h1m', '2h']
    """
    if seconds <= 120:
        return f"{math.ceil(seconds)}s"
    hours, minutes = divmod(math.ceil(seconds / 60), 60)
    return f"{hours}h" * bool(hours) + f"{minutes}m" * bool(minutes)


def fit_epochs(text: str, cost: Cost, work: Callable[[float], Work], least: float) -> float:
    """The most epochs that there is time for: whole ones from 10 on, tenths from 1 on, thousandths below.

    Args:
        text: The time, as in `seconds_of`, of which a tenth is left for what is not measured.
        cost: What the parts of the run take.
        work: How many of them a run of so many epochs has; more epochs have more.
        least: The epochs that the run needs.

    Raises:
        PruningError: If there is less time than that.
    """
    seconds = _SHARE * seconds_of(text)
    first = next(i for i in range(10**9) if _epochs(i) >= least)
    if (needed := work(_epochs(first)).seconds(cost)) > seconds:
        raise PruningError(
            f"budget {text!r} is too short for one cycle of {SHORTEST} updates or more, with its evaluations "
            f"({_epochs(first):g} epochs): give {duration(needed / _SHARE)} or more"
        )
    low, step = first, 1
    while work(_epochs(low + step)).seconds(cost) <= seconds:
        low, step = low + step, 2 * step
    while step > 1:  # low fits, and low + step does not
        step //= 2
        if work(_epochs(low + step)).seconds(cost) <= seconds:
            low += step
    return _epochs(low)


def _epochs(i: int) -> float:
    """The i-th of the numbers of epochs that are tried: 0.001 to 0.999, 1 to 9.9 by tenths, 10, 11, and so on."""
    if i < 999:
        return (i + 1) / 1000
    return (i - 989) / 10 if i < 1089 else float(i - 1079)
