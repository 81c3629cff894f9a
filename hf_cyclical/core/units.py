"""Units: what drop-and-grow exchanges where zeros have a pattern: weights, blocks, or weights within their group."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from .regions import Region


class Units(NamedTuple):
    """Units of all layers that are exchanged for each other.

    Attributes:
        sizes: How many each layer has, on all processes.
        weights: Their weights, or sums of magnitudes; of each layer the part that is here.
        scores: By what they come.
        masks: Which of them stay.
        row_floor: How many every row keeps at least.
        moves: Whether units may move to other layers, where the method does that.
        group: Of so many consecutive inputs as many come as go, if given.
        write: Takes the new mask of a layer.
    """

    sizes: Mapping[str, int]
    weights: Mapping[str, Tensor]
    scores: Mapping[str, Tensor]
    masks: Mapping[str, Tensor]
    row_floor: int
    moves: bool
    group: int | None
    write: Callable[[str, Tensor], object]


def units_of(
    weights: Mapping[str, Region],
    scores: Mapping[str, Region],
    row_floor: int,
    *,
    moves: bool = True,
    group: int | None = None,
) -> list[Units]:
    """The weights of regions as units; none where there is no region."""
    if not weights:
        return []
    masks = {name: region.mask for name, region in weights.items()}
    return [
        Units(
            {name: torch.Size(region.shape).numel() for name, region in weights.items()},
            {name: region.score for name, region in weights.items()},
            {name: region.score for name, region in scores.items()},
            masks,
            row_floor,
            moves,
            group,
            lambda name, mask: masks[name].copy_(mask),
        )
    ]
