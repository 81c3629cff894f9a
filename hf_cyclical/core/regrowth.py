"""Drop-and-grow: the smallest of the weights that stay go, and others, which were pruned, come in their place."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from .choices import Choice, Largest, Score, View
from .schedules import Schedule
from .shards import Shards, local
from .topk import Masks, finite, keep_largest, row_tops


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
        row_floor: How many weights every row keeps at least.
    """

    fraction: Schedule
    score: Score
    exchange: Exchange = _WITHIN
    prune: Choice = _MAGPRUNE
    row_floor: int = 0

    def __call__(self, view: View, s: float, out: Masks) -> None:
        if s > view.s:
            self.prune(view, s, out)
        fraction = self.fraction(view.t)
        if fraction:
            self._exchange(view, fraction, out)

    def _exchange(self, view: View, fraction: float, out: Masks) -> None:
        shards = Shards.of(view.params.values())
        scores = {name: local(score) for name, score in self.score(view).items()}
        device = next(iter(scores.values())).device
        if shards.totals([sum(not finite(score) for score in scores.values())], device) != [0]:
            return  # gradients that have overflowed, of a step that a gradient scaler left out, rank nothing
        counts = shards.totals((int(out[name].count_nonzero()) for name in scores), device)

        def means() -> Mapping[str, float]:
            sums = shards.sums((float(w[out[name]].abs().double().sum()) for name, w in scores.items()), device)
            return {name: total / max(n, 1) for name, total, n in zip(scores, sums, counts, strict=True)}

        sizes = {name: p.numel() for name, p in view.params.items()}
        kept = Kept(sizes, dict(zip(scores, counts, strict=True)), means)
        planned = self.exchange.drop(kept, fraction)
        stay = {name: out[name].flatten().clone() for name in scores}
        dropped = {
            name: _drop(name, local(p), out[name], stay[name], planned[name], self.row_floor, shards)
            for name, p in view.params.items()
        }
        grown = self.exchange.grow(kept, dropped)
        for name, score in scores.items():
            _grow(name, score, stay[name], grown[name], shards)
        for name, flat in stay.items():
            out[name].copy_(flat.view(out[name].shape))


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
