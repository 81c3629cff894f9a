"""Shares: how many weights go in each layer, when the model as a whole is to lose the fraction s of them.

A share is a function of the layers and of s. `uniform` is the paper's, and every layer is as sparse as the model; `erk`
follows from the layers' shapes, `ranked` (global) and `lamp` from their weights.
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import torch
from torch import Tensor

from .lamp_counts import lamp_counts
from .shards import Shards
from .topk import Masks, floor_kept, prune_group


class Layers(NamedTuple):
    """What weights are shared out among.

    Attributes:
        shapes: Of each weight in one piece.
        scores: What weights are ranked by, of each weight the part that is here.
        row_floor: How many of its weights every row keeps at least.
        shards: The processes that the weights are split among.
    """

    shapes: Mapping[str, Sequence[int]]
    scores: Mapping[str, Tensor]
    row_floor: int = 0
    shards: Shards = Shards()

    @property
    def sizes(self) -> dict[str, int]:
        """Number of weights."""
        return {name: torch.Size(shape).numel() for name, shape in self.shapes.items()}

    @property
    def least(self) -> dict[str, int]:
        """How many weights each layer keeps at least: those of its rows' floor, and one."""
        return {name: max(floor_kept(shape, self.row_floor), 1) for name, shape in self.shapes.items()}


Share = Callable[[Layers, float], dict[str, int]]
"""How many weights go in each layer."""


def uniform(layers: Layers, s: float) -> dict[str, int]:
    """Every layer loses the same fraction: the paper's local scope.

    Without a floor of the rows, round(s * n) of its own weights. With one, the model loses round(s * n) of all: layers
    that would keep fewer than their floor keep just that, and the others make up for it.
    """
    if not layers.row_floor:
        return {name: min(round(s * n), n - 1) for name, n in layers.sizes.items()}
    return _lost(layers, proportional(_stay(layers, s), layers.sizes, layers.least, layers.sizes))


def erk(layers: Layers, s: float) -> dict[str, int]:
    """Erdos-Renyi kernel (Evci et al., 2020): density in proportion to the sum of the dimensions over their product."""
    sums = {name: sum(shape) for name, shape in layers.shapes.items()}  # density times weights
    return _lost(layers, proportional(_stay(layers, s), sums, layers.least, layers.sizes))


def lamp(layers: Layers, s: float) -> dict[str, int]:
    """Weights of all layers compete by magnitudes that are adapted to their layer (Lee et al., 2021)."""
    k = round(s * sum(layers.sizes.values()))
    return lamp_counts(layers.scores, layers.sizes, k, layers.row_floor, layers.shards)


def ranked(layers: Layers, s: float) -> dict[str, int]:
    """Weights of all layers compete by their magnitudes: global scope."""
    masks: Masks = {name: torch.empty_like(w, dtype=torch.bool) for name, w in layers.scores.items()}
    k = round(s * sum(layers.sizes.values()))
    prune_group(layers.scores, layers.sizes, k, layers.least, masks, layers.shards, layers.row_floor)
    device = next(iter(masks.values())).device
    kept = layers.shards.totals((int(mask.count_nonzero()) for mask in masks.values()), device)
    return _lost(layers, dict(zip(masks, kept, strict=True)))


def proportional(
    total: int, weights: Mapping[str, int], least: Mapping[str, int], most: Mapping[str, int]
) -> dict[str, int]:
    """A number shared out in proportion to `weights`, each within its bounds, rounded by the largest remainder."""
    fixed: dict[str, int] = {}
    while True:
        free = [name for name in weights if name not in fixed]
        left, whole = total - sum(fixed.values()), sum(weights[name] for name in free)
        quotas = {name: Fraction(left * weights[name], whole) for name in free}
        low = {name: least[name] for name in free if quotas[name] < least[name]}
        high = {name: most[name] for name in free if quotas[name] > most[name]}
        if not low and not high:
            return fixed | rounded(left, quotas)
        # Of both kinds, those go first that are out of bounds by more in all: the others may come inside again.
        above, below = (sum(abs(quotas[name] - n) for name, n in some.items()) for some in (high, low))
        fixed |= high if above >= below else low


def rounded(total: int, quotas: Mapping[str, Fraction]) -> dict[str, int]:
    """Numbers rounded down, and one more for those with the largest remainders, so that they add up to `total`."""
    shares = {name: int(quota) for name, quota in quotas.items()}
    by_remainder = sorted(quotas, key=lambda name: shares[name] - quotas[name])
    for name in by_remainder[: total - sum(shares.values())]:
        shares[name] += 1
    return shares


def _stay(layers: Layers, s: float) -> int:
    total = sum(layers.sizes.values())
    return max(total - round(s * total), sum(layers.least.values()))


def _lost(layers: Layers, kept: Mapping[str, int]) -> dict[str, int]:
    return {name: n - kept[name] for name, n in layers.sizes.items()}
