"""Patterns: which weights stay or go together, or how many of every few stay.

A pattern chooses the masks of all layers at a sparsity, as `magprune` does, which is the pattern `UNSTRUCTURED`. Groups
and blocks lie along the outputs (the first dimension of a weight) and the inputs (the second: the channels, at each
position of a convolution's kernel). What fills no group or block, where they do not divide a layer, is pruned
unstructured.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .errors import PruningError
from .groups import prune_groups
from .masks import check_sparsity, magprune, prune_shares, refuse_unreachable
from .regions import covered_shape, prune_rest, regions_of, whole_layers
from .shards import is_split
from .shares import Layers, Share, uniform
from .topk import Masks, floor_kept
from .units import Units, units_of

_MOST = 64  # inputs of a group: every two of them are compared


class Pattern(Protocol):
    """How zeros are arranged."""

    @property
    def sparsity(self) -> float | None:
        """The target that follows from the pattern, if it is fixed by it."""

    @property
    def words(self) -> str:
        """What it is, for people."""

    @property
    def unit(self) -> str:
        """What it is made of, for people."""

    def __call__(self, scores: Mapping[str, Tensor], s: float, share: Share, row_floor: int, out: Masks) -> None:
        """Write the masks at sparsity `s`; arguments as of `magprune`."""

    def units(
        self, params: Mapping[str, Tensor], scores: Mapping[str, Tensor], row_floor: int, masks: Masks
    ) -> list[Units]:
        """What can be exchanged so that the pattern stays; `scores` are what weights come by, as `params` are split."""

    def refuse(self, params: Mapping[str, Tensor], s: float, row_floor: int, of: str = "") -> None:
        """Raise a PruningError if these weights cannot have the pattern at this sparsity, `of` says of what."""

    def covers(self, shape: Sequence[int]) -> int:
        """How many weights of a layer of this shape have the pattern; the others are pruned unstructured."""

    def least(self, shape: Sequence[int], row_floor: int) -> int:
        """How many weights of a layer of this shape stay at least."""


@dataclass(frozen=True)
class Unstructured:
    """Any weight can go."""

    sparsity = None
    words = "unstructured"
    unit = "weight"

    def __call__(self, scores: Mapping[str, Tensor], s: float, share: Share, row_floor: int, out: Masks) -> None:
        magprune(scores, s, share, row_floor=row_floor, out=out)

    def units(
        self, params: Mapping[str, Tensor], scores: Mapping[str, Tensor], row_floor: int, masks: Masks
    ) -> list[Units]:
        return units_of(whole_layers(params, masks), whole_layers(scores, masks), row_floor)

    def refuse(self, params: Mapping[str, Tensor], s: float, row_floor: int, of: str = "") -> None:
        refuse_unreachable({name: p.shape for name, p in params.items()}, s, row_floor, of)

    def covers(self, shape: Sequence[int]) -> int:
        return math.prod(shape)

    def least(self, shape: Sequence[int], row_floor: int) -> int:
        return max(floor_kept(shape, row_floor), 1)


UNSTRUCTURED = Unstructured()


@dataclass(frozen=True)
class NofM:
    """`n` of every `m` consecutive inputs stay (2:4): `magprune` with every group of `m` weights a layer of its own.

    At sparsity s every group loses round(s * m) weights, and never more than m - n: a schedule that rises to the
    target 1 - n/m lowers the number kept from m to n, one by one, and a cycle that starts lower raises it again. Every
    layer has the same sparsity, and every row with a group keeps n weights or more.
    """

    n: int
    m: int
    unit = "group"

    def __post_init__(self) -> None:
        if not 1 <= self.n < self.m <= _MOST:
            raise PruningError(f"pattern '{self}' must keep 1 or more of 2 to {_MOST}, and not all: write 2:4")

    def __str__(self) -> str:
        return f"{self.n}:{self.m}"

    @property
    def sparsity(self) -> float:
        return (self.m - self.n) / self.m

    @property
    def words(self) -> str:
        return f"{self} along the inputs"

    def __call__(self, scores: Mapping[str, Tensor], s: float, share: Share, row_floor: int, out: Masks) -> None:
        check_sparsity(s, row_floor)
        self.refuse(scores, s, row_floor)
        if share is not uniform:
            raise PruningError(f"pattern {self} prunes every layer alike: use share uniform")
        regions = regions_of(scores, out, 1, self.m)
        gone = min(round(s * self.m), self.m - self.n)
        for region in regions.inside.values():
            prune_groups(region, self.m, gone)
        prune_rest(regions, s, share, row_floor)

    def units(
        self, params: Mapping[str, Tensor], scores: Mapping[str, Tensor], row_floor: int, masks: Masks
    ) -> list[Units]:
        w, by = (regions_of(tensors, masks, 1, self.m) for tensors in (params, scores))
        inside = units_of(w.inside, by.inside, 0, moves=False, group=self.m)
        beside = units_of(w.beside, by.beside, 0, moves=False)
        return inside + beside + units_of(w.below, by.below, row_floor, moves=False)

    def refuse(self, params: Mapping[str, Tensor], s: float, row_floor: int, of: str = "") -> None:
        if row_floor > self.n:
            raise PruningError(f"row_floor {row_floor} is more than pattern {self} keeps: use {self.n} at most")

    def covers(self, shape: Sequence[int]) -> int:
        return math.prod(covered_shape(shape, 1, self.m))

    def least(self, shape: Sequence[int], row_floor: int) -> int:
        inside = self.covers(shape)
        return inside // self.m * self.n if inside else max(floor_kept(shape, row_floor), 1)

    def broken(self, w: Tensor) -> int:
        """How many groups of a weight have more than `n` that are not zero."""
        covered = covered_shape(w.shape, 1, self.m)
        if not math.prod(covered):
            return 0
        groups = torch.unflatten(w[:, : covered[1]] != 0, 1, (covered[1] // self.m, self.m))
        return int((groups.sum(2) > self.n).count_nonzero())


@dataclass(frozen=True)
class Blocks:
    """Blocks of consecutive outputs times consecutive inputs stay or go together, by the sum of their magnitudes.

    Blocks are chosen as `magprune` chooses weights: exactly round(s * blocks) of them go, ties broken by index, shared
    out among the layers by any share. The floor of the rows spares the largest blocks of every row of blocks.

    Attributes:
        rows: Outputs of a block.
        columns: Inputs of a block.
    """

    rows: int
    columns: int
    unit = "block"
    sparsity = None

    def __post_init__(self) -> None:
        if min(self.rows, self.columns) < 1 or self.rows * self.columns < 2:
            raise PruningError(f"pattern '{self}' is no block of several weights: write 4x1 for 4 outputs and 1 input")

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"

    @property
    def words(self) -> str:
        return f"blocks of {self} (outputs x inputs)"

    def __call__(self, scores: Mapping[str, Tensor], s: float, share: Share, row_floor: int, out: Masks) -> None:
        check_sparsity(s, row_floor)
        self.refuse(scores, s, row_floor)
        regions = regions_of(scores, out, self.rows, self.columns)
        if regions.inside:
            shapes = {name: self._shape(region.shape) for name, region in regions.inside.items()}
            sums = {name: self._sums(region.score) for name, region in regions.inside.items()}
            masks = {name: torch.empty_like(total, dtype=torch.bool) for name, total in sums.items()}
            layers = Layers(shapes, sums, self._block_floor(row_floor), regions.shards)
            prune_shares(layers, s, share, masks)
            for name, region in regions.inside.items():
                self._blocks(region.mask).copy_(masks[name][:, None, :, None])
        prune_rest(regions, s, share, row_floor)

    def units(
        self, params: Mapping[str, Tensor], scores: Mapping[str, Tensor], row_floor: int, masks: Masks
    ) -> list[Units]:
        w, by = (regions_of(tensors, masks, self.rows, self.columns) for tensors in (params, scores))
        rest = units_of(w.beside, by.beside, 0) + units_of(w.below, by.below, row_floor)
        if not w.inside:
            return rest
        blocks = {name: self._blocks(region.mask) for name, region in w.inside.items()}
        inside = Units(
            {name: math.prod(self._shape(region.shape)) for name, region in w.inside.items()},
            {name: self._sums(region.score) for name, region in w.inside.items()},
            {name: self._sums(region.score) for name, region in by.inside.items()},
            {name: block[:, 0, :, 0] for name, block in blocks.items()},
            self._block_floor(row_floor),
            True,
            None,
            lambda name, mask: blocks[name].copy_(mask[:, None, :, None]),
        )
        return [inside, *rest]

    def refuse(self, params: Mapping[str, Tensor], s: float, row_floor: int, of: str = "") -> None:
        for name, p in params.items():
            if is_split(p) and self.covers(p.shape):
                self._refuse_cut(name, len(p), p.device_mesh.size())
        covered = {name: covered_shape(p.shape, self.rows, self.columns) for name, p in params.items()}
        shapes = {name: self._shape(shape) for name, shape in covered.items() if math.prod(shape)}
        refuse_unreachable(shapes, s, self._block_floor(row_floor), of, f"blocks of {self}")

    def covers(self, shape: Sequence[int]) -> int:
        return math.prod(covered_shape(shape, self.rows, self.columns))

    def least(self, shape: Sequence[int], row_floor: int) -> int:
        covered = covered_shape(shape, self.rows, self.columns)
        if not math.prod(covered):
            return max(floor_kept(shape, row_floor), 1)
        blocks = max(floor_kept(self._shape(covered), self._block_floor(row_floor)), 1)
        return blocks * self.rows * self.columns + floor_kept((shape[0] - covered[0], *shape[1:]), row_floor)

    def _block_floor(self, row_floor: int) -> int:
        """Blocks that a row of blocks keeps at least, so that every row keeps its weights."""
        return -(-row_floor // self.columns)

    def _shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return shape[0] // self.rows, shape[1] // self.columns, *shape[2:]

    def _blocks(self, w: Tensor) -> Tensor:
        """A weight with dimensions of their own for the outputs and inputs inside a block."""
        rows, columns, *_ = self._shape(w.shape)
        return torch.unflatten(torch.unflatten(w, 1, (columns, self.columns)), 0, (rows, self.rows))

    def _sums(self, w: Tensor) -> Tensor:
        """The sum of the magnitudes of each block, added up in the order of the index, the same on every device."""
        blocks = self._blocks(w)
        total = torch.zeros_like(blocks[:, 0, :, 0], dtype=torch.float64)
        for row in range(self.rows):
            for column in range(self.columns):
                total += blocks[:, row, :, column].abs()
        return total

    def _refuse_cut(self, name: str, rows: int, processes: int) -> None:
        part = -(-rows // processes)
        if part < rows and part % self.rows:
            raise PruningError(
                f"pattern {self} would be cut: {name} has {rows} rows, {part} of them on each of {processes} processes "
                f"(FSDP2): use DDP, processes that hold a multiple of {self.rows} rows each, or blocks of one row"
            )


def pattern_of(text: str | None) -> Pattern:
    """The pattern that a text names: n:m, such as 2:4, or outputs x inputs of a block, such as 4x1.

    Raises:
        PruningError: If it is neither.
    """
    if text is None:
        return UNSTRUCTURED
    found = re.fullmatch(r"(\d{1,4})([:x])(\d{1,4})", text)
    if not found:
        raise PruningError(
            f"pattern {text!r} is neither n:m nor a block: write 2:4 or 4x1 (in a YAML file in quotes: '2:4')"
        )
    first, kind, second = found.groups()
    return NofM(int(first), int(second)) if kind == ":" else Blocks(int(first), int(second))


def refuse_unfit(pattern: Pattern, params: Mapping[str, Tensor]) -> None:
    """Raise a PruningError if no layer has a group or block of the pattern."""
    if not any(pattern.covers(p.shape) for p in params.values()):
        shapes = ", ".join(f"{name} {'x'.join(map(str, p.shape))}" for name, p in list(params.items())[:3])
        raise PruningError(f"pattern {pattern} fits into no layer ({shapes}): use a smaller one, or none")
