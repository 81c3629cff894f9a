"""Regions of weights: what whole blocks cover, and what is left over beside and below them."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from .masks import prune_shares
from .shards import Shards, local
from .shares import Layers, Share
from .topk import Masks, finite, refuse_unranked


class Region(NamedTuple):
    """A part of a weight: its shape on all processes, and what is here of its scores and of its mask, as views."""

    shape: tuple[int, ...]
    score: Tensor
    mask: Tensor


class Regions(NamedTuple):
    """The parts of all layers.

    Attributes:
        inside: What whole blocks cover.
        beside: The last inputs of the rows that have blocks.
        below: The last rows, which have no blocks, or all of a layer that has none.
        shards: The processes that the weights are split among.
    """

    inside: dict[str, Region]
    beside: dict[str, Region]
    below: dict[str, Region]
    shards: Shards


def covered_shape(shape: Sequence[int], rows: int, columns: int) -> tuple[int, ...]:
    """The shape of what whole blocks cover of a layer, which is its upper left part; a vector has no inputs."""
    if len(shape) < 2:
        return (0,)
    return shape[0] // rows * rows, shape[1] // columns * columns, *shape[2:]


def whole_layers(scores: Mapping[str, Tensor], masks: Masks) -> dict[str, Region]:
    """Every layer as one region."""
    return {name: Region(tuple(p.shape), local(p), masks[name]) for name, p in scores.items()}


def regions_of(scores: Mapping[str, Tensor], out: Masks, rows: int, columns: int) -> Regions:
    """The regions of all layers for blocks of this size, with views of the masks to write.

    Raises:
        PruningError: If a layer holds NaN or infinite weights, which have no rank.
    """
    parts, shards = {name: local(p) for name, p in scores.items()}, Shards.of(scores.values())
    device = next(iter(parts.values())).device
    if shards.totals([sum(not finite(w) for w in parts.values())], device) != [0]:
        refuse_unranked(parts, shards)
    regions = Regions({}, {}, {}, shards)
    for name, w in parts.items():
        shape, mask = tuple(scores[name].shape), out[name]
        covered = covered_shape(shape, rows, columns)
        if not math.prod(covered):
            regions.below[name] = Region(shape, w, mask)
            continue
        i, o = covered[1], len(w) // rows * rows  # blocks are never cut: the last rows are those of the last part
        regions.inside[name] = Region(covered, w[:o, :i], mask[:o, :i])
        if i < shape[1]:
            regions.beside[name] = Region((covered[0], shape[1] - i, *shape[2:]), w[:o, i:], mask[:o, i:])
        if covered[0] < shape[0]:
            regions.below[name] = Region((shape[0] - covered[0], *shape[1:]), w[o:], mask[o:])
    return regions


def prune_rest(regions: Regions, s: float, share: Share, row_floor: int) -> None:
    """Prune unstructured what fills no block; rows that have blocks have their floor there."""
    for rest, floor in ((regions.beside, 0), (regions.below, row_floor)):
        if rest:
            shapes = {name: region.shape for name, region in rest.items()}
            layers = Layers(shapes, {name: region.score for name, region in rest.items()}, floor, regions.shards)
            prune_shares(layers, s, share, {name: region.mask for name, region in rest.items()})
