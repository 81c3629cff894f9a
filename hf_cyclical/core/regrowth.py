"""Drop-and-grow: the smallest of the weights that stay go, and others, which were pruned, come in their place."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from .choices import Choice, Largest, Score, View
from .groups import grow_in_groups
from .moments import Forget, forget_nothing
from .patterns import UNSTRUCTURED, Pattern
from .schedules import Schedule
from .shards import Shards, local
from .topk import Masks, finite, keep_largest, row_tops
from .units import Units


class Kept(NamedTuple):
    """What an exchange is planned by, of each layer.

    Attributes:
        sizes: Its weights.
        counts: How many of them stay.
        means: The mean score, as a magnitude, of those that stay; made when called.
    """

    sizes: Mapping[str, int]
    counts: Mapping[str, int]
    means: Callable[[], Mapping[str, float]]


class Exchange(Protocol):
    """How many weights of each layer are exchanged."""

    def drop(self, kept: Kept, fraction: float) -> Mapping[str, int]:
        """How many go, when the fraction of those that stay is to go."""

    def grow(self, kept: Kept, dropped: Mapping[str, int]) -> Mapping[str, int]:
        """How many come; as many in all as have gone."""


@dataclass(frozen=True)
class Within:
    """As many come as go, layer by layer.

    Attributes:
        rounded: What makes the fraction of a layer a number.
    """

    rounded: Callable[[float], int] = math.floor

    def drop(self, kept: Kept, fraction: float) -> Mapping[str, int]:
        return {name: self.rounded(fraction * n) for name, n in kept.counts.items()}

    def grow(self, kept: Kept, dropped: Mapping[str, int]) -> Mapping[str, int]:
        return dropped


_WITHIN, _MAGPRUNE = Within(), Largest()


@dataclass(frozen=True)
class Regrowth:
    """Prunes where the sparsity rises, and then exchanges a fraction of the weights that stay.

    A weight that has just been dropped can be among those that come. It is as if it had never gone.

    Attributes:
        fraction: Which part of the weights that stay is exchanged, in local time.
        score: By what others come in their place, the largest first.
        exchange: How many in each layer.
        prune: Which weights stay where the sparsity rises.
        forget: What those that it prunes lose, which may come back in the same update.
        row_floor: How many weights every row keeps at least.
        pattern: How the zeros are arranged. Blocks are exchanged for blocks; of n:m as many come in a group as go, and
            nothing moves to another layer. What fills no group or block is exchanged for its like.
    """

    fraction: Schedule
    score: Score
    exchange: Exchange = _WITHIN
    prune: Choice = _MAGPRUNE
    forget: Forget = forget_nothing
    row_floor: int = 0
    pattern: Pattern = UNSTRUCTURED

    def __call__(self, view: View, s: float, out: Masks) -> None:
        if s > view.s:
            self.prune(view, s, out)
            self.forget(view.optimizer, view.params, out)
        fraction = self.fraction(view.t)
        if fraction:
            self._exchange(view, fraction, out)

    def _exchange(self, view: View, fraction: float, out: Masks) -> None:
        shards, scores = Shards.of(view.params.values()), self.score(view)
        parts = [local(score) for score in scores.values()]
        if shards.totals([sum(not finite(part) for part in parts)], parts[0].device) != [0]:
            return  # gradients that have overflowed, of a step that a gradient scaler left out, rank nothing
        for units in self.pattern.units(view.params, scores, self.row_floor, out):
            self._exchange_units(units, fraction, shards)

    def _exchange_units(self, units: Units, fraction: float, shards: Shards) -> None:
        device = next(iter(units.scores.values())).device
        counts = shards.totals((int(mask.count_nonzero()) for mask in units.masks.values()), device)

        def means() -> Mapping[str, float]:
            kept = ((units.scores[name], mask) for name, mask in units.masks.items())
            sums = shards.sums((float(w[mask].abs().double().sum()) for w, mask in kept), device)
            return {name: total / max(n, 1) for name, total, n in zip(units.masks, sums, counts, strict=True)}

        kept = Kept(units.sizes, dict(zip(units.masks, counts, strict=True)), means)
        planned = self.exchange.drop(kept, fraction)
        stay = {name: mask.flatten().clone() for name, mask in units.masks.items()}
        dropped = {
            name: _drop(name, w, units.masks[name], stay[name], planned[name], units.row_floor, shards)
            for name, w in units.weights.items()
        }
        grown = self.exchange.grow(kept, dropped) if units.moves else dropped
        for name, score in units.scores.items():
            shape = units.masks[name].shape
            if units.group:
                new = grow_in_groups(score, units.masks[name], stay[name].view(shape), units.group)
            else:
                _grow(name, score, stay[name], grown[name], shards)
                new = stay[name].view(shape)
            units.write(name, new)


def _drop(name: str, w: Tensor, mask: Tensor, stay: Tensor, n: int, row_floor: int, shards: Shards) -> int:
    """Drop the `n` smallest weights of `stay`, a flat mask, except what the rows must keep; how many that were."""
    free = stay.clone()
    if row_floor:
        free[row_tops(w, row_floor, among=mask)] = False
    places = free.nonzero().flatten()
    n = min(n, *shards.totals([len(places)], w.device))
    stay[places[~_largest(name, w.flatten()[places], n, shards)]] = False
    return n


def _grow(name: str, score: Tensor, stay: Tensor, n: int, shards: Shards) -> None:
    """Let the `n` weights with the largest scores come back among those that are not in `stay`, a flat mask."""
    places = (~stay).nonzero().flatten()
    [free] = shards.totals([len(places)], score.device)
    stay[places[_largest(name, score.flatten()[places], free - n, shards)]] = True


def _largest(name: str, values: Tensor, k: int, shards: Shards) -> Tensor:
    """Which values are not among the `k` smallest."""
    masks = {name: torch.empty_like(values, dtype=torch.bool)}
    keep_largest({name: values}, k, masks, shards)
    return masks[name]
