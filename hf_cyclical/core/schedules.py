"""Schedules: pure functions of the update t, for the sparsity s(t) and the learning-rate factor eta(t).

A schedule answers for any t >= 0 and keeps no state. Each shape takes the number of updates `T` that it spans, and
stays at its last value from t = T on. A cycle is composition: `cyclical` gives every cycle its own schedule in local
time.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TypeVar

Value = TypeVar("Value")
Schedule = Callable[[int], float]
"""A value at every update t."""

When = Callable[[int], bool]
"""A yes or no at every update t."""


def always(t: int) -> bool:
    """At every update."""
    return True


def never(t: int) -> bool:
    """At no update."""
    return False


def constant(value: float) -> Schedule:
    """The same value at every update."""
    return lambda t: value


def linear(start: float, end: float, T: int) -> Schedule:
    """From `start` at t = 0 to `end` at t = T, by equal steps.

    >>> [linear(0.0, 0.8, T=4)(t) for t in (0, 1, 4, 9)]
    [0.0, 0.2, 0.8, 0.8]
    """
    return lambda t: end if t >= T else start + (end - start) * t / T


def cubic(s_init: float, s_t: float, T: int) -> Schedule:
    """Equation 1 of the paper: s(t) = s_t + (s_init - s_t) * (1 - t / T)^3.

    >>> [cubic(0.0, 0.8, T=4)(t) for t in (0, 2, 4, 9)]
    [0.0, 0.7000000000000001, 0.8, 0.8]
    """
    return lambda t: s_t if t >= T else s_t + (s_init - s_t) * (1 - t / T) ** 3


def step(before: float, after: float, at: int) -> Schedule:
    """`before` until the update `at`, `after` from it on: the Heaviside function.

    >>> [step(0.0, 0.8, at=2)(t) for t in (0, 1, 2, 3)]
    [0.0, 0.0, 0.8, 0.8]
    """
    return lambda t: after if t >= at else before


def cosine(start: float, end: float, T: int) -> Schedule:
    """From `start` at t = 0 to `end` at t = T along half a cosine.

    >>> [round(cosine(1.0, 0.0, T=4)(t), 3) for t in (0, 2, 4)]
    [1.0, 0.5, 0.0]
    """
    return lambda t: end if t >= T else end + (start - end) * (1 + math.cos(math.pi * t / T)) / 2


def zero_first(schedule: Schedule) -> Schedule:
    """`schedule` with 0 at its first update: eta(0) = 0, so that magprune sees the weights as they were."""
    return lambda t: 0.0 if t == 0 else schedule(t)


def split(T: int, k: int) -> tuple[range, ...]:
    """The updates of each of `k` cycles of a run of `T`: cycle c is [floor(cT/k), floor((c+1)T/k)).

    >>> split(7, 3)
    (range(0, 2), range(2, 4), range(4, 7))
    """
    return tuple(range(c * T // k, (c + 1) * T // k) for c in range(k))


def split_with_tail(T: int, k: int, ramp: float, tail: int) -> tuple[range, ...]:
    """The updates of each of `k` cycles of a run of `T`, of which the last ends with `tail` updates after its ramp.

    The cycles before it have equal lengths L, except for rounding, and its own ramp is `ramp` * L:
    (k - 1) * L + ramp * L + tail = T.

    >>> split_with_tail(100, 3, ramp=0.8, tail=16)  # L = (100 - 16) / 2.8 = 30
    (range(0, 30), range(30, 60), range(60, 100))
    """
    L = (T - tail) / (k - 1 + Fraction(repr(float(ramp))))  # 0.8 as 4/5: no update is lost to rounding
    starts = [int(c * L) for c in range(k)]
    return tuple(range(start, stop) for start, stop in zip(starts, [*starts[1:], T], strict=True))


def cyclical(schedules: Sequence[Callable[[int], Value]], cycles: Sequence[range]) -> Callable[[int], Value]:
    """Every cycle's own schedule, in local time: `schedules[c](t - cycles[c].start)` inside cycle c.

    It serves s, eta and update_at alike.

    >>> s = cyclical([linear(0.0, 1.0, T=2), linear(0.5, 1.0, T=2)], split(6, 2))
    >>> [s(t) for t in range(6)]
    [0.0, 0.5, 1.0, 0.5, 0.75, 1.0]
    """
    starts = [cycle.start for cycle in cycles]

    def value(t: int) -> Value:
        c = max(bisect_right(starts, t) - 1, 0)
        return schedules[c](t - starts[c])

    return value


def after(start: int, before: Callable[[int], Value], then: Callable[[int], Value]) -> Callable[[int], Value]:
    """`before` until the update `start`, then `then` in its own local time."""
    return cyclical([before, then], [range(start), range(start, start + 1)])
