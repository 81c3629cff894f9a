"""The learning rate within a cycle: shapes, pure functions of the cycle's number of updates, and their warm-up."""

from collections.abc import Callable
from typing import Literal

from .schedules import Schedule, after, constant, cosine, linear, step

LrShape = Literal["drop", "cosine", "linear", "constant"]
LrFactor = Callable[[int], Schedule]
"""The learning-rate factor within one cycle, given the cycle's number of updates."""


def lr_drop(at: float = 0.75, factor: float = 0.1) -> LrFactor:
    """1, then `factor` from the fraction `at` of the cycle on: 0.75 in the paper for CIFAR, 0.5 for ImageNet."""
    return lambda T: step(1.0, factor, at=round(at * T))


def lr_cosine(T: int) -> Schedule:
    """Half a cosine from 1 to 0."""
    return cosine(1.0, 0.0, T)


def lr_linear(T: int) -> Schedule:
    """A straight line from 1 to 0."""
    return linear(1.0, 0.0, T)


def lr_constant(T: int) -> Schedule:
    """1 throughout."""
    return constant(1.0)


def lr_warmup(lr: LrFactor, fraction: float) -> LrFactor:
    """`lr` over the rest of a cycle, after it has risen by equal steps in the first `fraction` of its updates.

    With n such updates the factor is (t + 1) / (n + 1) at update t < n, so that none of them is lost.

    >>> [lr_warmup(lr_linear, 0.5)(8)(t) for t in range(8)]
    [0.2, 0.4, 0.6, 0.8, 1.0, 0.75, 0.5, 0.25]
    """

    def factor(T: int) -> Schedule:
        n = min(round(fraction * T), T - 1)
        return after(n, lambda t: (t + 1) / (n + 1), lr(T - n)) if n else lr(T)

    return factor


def lr_factor(shape: LrShape, at: float, factor: float) -> LrFactor:
    """The learning-rate factor of this name; `at` and `factor` are of `lr_drop` only."""
    if shape == "drop":
        return lr_drop(at, factor)
    shapes: dict[str, LrFactor] = {"cosine": lr_cosine, "linear": lr_linear, "constant": lr_constant}
    return shapes[shape]
