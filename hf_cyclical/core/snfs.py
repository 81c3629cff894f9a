"""SNFS, sparse networks from scratch (Dettmers and Zettlemoyer, 2019): weights move to where the momentum is."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from .errors import PruningError
from .learning_rates import LrFactor, lr_drop
from .moments import forget_weights
from .recipes import Recipe
from .regrowth import Kept, Regrowth
from .schedules import constant, cosine, split, zero_first
from .scores import momentum
from .shares import rounded

_LEAST = 0.005  # the fraction at the end
_FULL = Fraction(99, 100)  # part of the free places of a layer that may be taken
_NEARLY_DENSE = 0.2


@dataclass(frozen=True)
class ByMomentum:
    """Every layer drops the same fraction; how many come depends on the mean momentum of the weights that stay."""

    def drop(self, kept: Kept, fraction: float) -> Mapping[str, int]:
        means = kept.means()
        mean = sum(means.values()) / len(means)
        dropped = {}
        for name, n in kept.counts.items():
            sparsity = 1 - n / kept.sizes[name]
            grows = sparsity < _NEARLY_DENSE and means[name] > mean
            dropped[name] = math.ceil(n * (min(fraction, sparsity) if grows else fraction))
        return dropped

    def grow(self, kept: Kept, dropped: Mapping[str, int]) -> Mapping[str, int]:
        means, total = kept.means(), sum(dropped.values())
        if not any(means.values()):
            return dropped
        free = {name: kept.sizes[name] - n + dropped[name] for name, n in kept.counts.items()}
        most = {name: int(_FULL * n) for name, n in free.items()}
        if sum(most.values()) < total:
            most = free
        whole = sum(map(Fraction, means.values()))
        quotas = {name: Fraction(mean) * total / whole for name, mean in means.items()}
        return rounded(total, spread_evenly(quotas, most))


def spread_evenly(quotas: Mapping[str, Fraction], most: Mapping[str, int]) -> dict[str, Fraction]:
    """Numbers within their bounds, with what is beyond a bound shared out evenly among those that are not at theirs."""
    total, full = sum(quotas.values(), Fraction()), [False] * len(quotas)
    while True:
        others = [name for name, at_most in zip(quotas, full, strict=True) if not at_most]
        taken = sum(most[name] for name in quotas if name not in others)
        more = (total - taken - sum((quotas[name] for name in others), Fraction())) / max(len(others), 1)
        spread = {name: quotas[name] + more if name in others else Fraction(most[name]) for name in quotas}
        beyond = [spread[name] > most[name] for name in quotas]
        if not any(beyond):
            return spread
        full = [a or b for a, b in zip(full, beyond, strict=True)]


def snfs(
    s_t: float, T: int, *, delta_t: int | None = None, fraction: float = 0.5, lr: LrFactor | None = None
) -> Recipe:
    """Sparse momentum: at regular intervals the smallest weights go, and those with the largest momentum come.

    Layers whose weights have a larger momentum get more of the weights that come; the model's sparsity stays as it is.
    The first update only prunes. Weights that come start at zero, with the momentum that they have. Adam's momentum is
    divided by the root of its second moment.

    Args:
        s_t: Sparsity from the first update on, a fraction in [0, 1).
        T: Number of updates.
        delta_t: Updates between two exchanges; a hundredth of the run if not given, the authors' epoch on ImageNet.
        fraction: Part of the weights that stay which is exchanged at first; it falls to 0.005 along half a cosine.
        lr: Learning-rate factor over the whole run; a drop if not given.
    """
    interval = max(T // 100, 1) if delta_t is None else delta_t
    if interval < 1 or not _LEAST <= fraction <= 1:
        raise PruningError(
            f"delta_t={delta_t}, fraction={fraction} cannot work: give delta_t >= 1, {_LEAST} <= fraction <= 1"
        )
    return Recipe(
        s=constant(s_t),
        eta=(lr or lr_drop())(T),
        update_at=lambda t: t % interval == 0,
        cycles=split(T, 1),
        choose=Regrowth(zero_first(cosine(fraction, _LEAST, T)), momentum, ByMomentum()),
        forget=forget_weights,
        hold_at=lambda t: t == 0,
        needs_momentum=True,
    )
