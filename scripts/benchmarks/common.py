"""What the benchmarks share: rows of a table, and turns that make ratios of times comparable."""

import operator
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

SPARSITY = 0.9
GOALS = {">=": operator.ge, "<=": operator.le}


@dataclass(frozen=True)
class Row:
    """One comparison; the goal bounds its ratio, as in (">=", 0.98). Without one it is there for information."""

    what: str
    unit: str
    measured: float
    baseline: float
    ratio: float
    goal: tuple[str, float] | None = None

    @property
    def ok(self) -> bool | None:
        relation, bound = self.goal or ("", 0)
        return {">=": self.ratio >= bound, "<=": self.ratio <= bound}.get(relation)

    def cells(self) -> list[str]:
        measured, baseline = (f"{n:,.0f}" if n >= 1000 else f"{n:.3g}" for n in (self.measured, self.baseline))
        goal = f"{self.goal[0]} {self.goal[1]:g}" if self.goal else ""
        ok = {True: "yes", False: "NO", None: ""}[self.ok]
        return [self.what, self.unit, measured, baseline, f"{self.ratio:.3f}", goal, ok]


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def take_turns(measured: Callable[[], float], baseline: Callable[[], float], times: int) -> list[tuple[float, float]]:
    """Both in turn; a first time does not count, as it warms up."""
    return [(measured(), baseline()) for _ in range(times + 1)][1:]


def row(what: str, unit: str, turns: Iterable[tuple[float, float]], goal: tuple[str, float] | None = None) -> Row:
    measured, baseline = zip(*turns, strict=True)
    ratio = median(a / b for a, b in zip(measured, baseline, strict=True))
    return Row(what, unit, median(measured), median(baseline), ratio, goal)


def ratio(what: str, unit: str, measured: float, baseline: float, goal: tuple[str, float] | None = None) -> Row:
    return Row(what, unit, measured, baseline, measured / baseline, goal)
