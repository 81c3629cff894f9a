"""How the dimensions of a torch tensor lie in planes, so that permutations and reshapes cost nothing."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .copies import External
from .planes import Tensor

__all__ = ["ONE", "Dim", "View", "image", "permute", "reshape", "select", "tokens", "vector"]


@dataclass(frozen=True)
class Dim:
    """One dimension: its axis ("c" for channels, "h", "w", "p" for all pixels, "1"), and its stride in that axis."""

    axis: str
    size: int
    stride: int = 1


ONE = Dim("1", 1)


@dataclass(frozen=True)
class View:
    """A tensor as torch sees it.

    Attributes:
        tensor: Where the data is.
        dims: The dimensions in torch's order.
        channel: The first channel.
        zeros: Channels of zeros that come before and after those of the tensor.
        border: Rows of zeros above and below, and columns before and after.
        step: Only every so many-th row and column.
    """

    tensor: Tensor | External
    dims: tuple[Dim, ...]
    channel: int = 0
    zeros: tuple[int, int] = (0, 0)
    border: tuple[int, int, int, int] = (0, 0, 0, 0)
    step: tuple[int, int] = (1, 1)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(dim.size for dim in self.dims)

    @property
    def axes(self) -> str:
        """The axes that are not of size 1, in order: "chw" for an image, "pc" for tokens."""
        return "".join(dim.axis for dim in self.dims if dim.size > 1)

    @property
    def plain(self) -> bool:
        """Whether there is nothing else than what the tensor holds."""
        return self.zeros == (0, 0) and self.border == (0, 0, 0, 0) and self.step == (1, 1)

    @property
    def spatial(self) -> tuple[int, int]:
        """Rows and columns."""
        (_, height, width), (top, bottom, left, right) = self.tensor.shape, self.border
        return -(-height // self.step[0]) + top + bottom, -(-width // self.step[1]) + left + right

    @property
    def simple(self) -> bool:
        """Whether its channels follow each other in the tensor, and so do its pixels."""
        channels, pixels = ([dim for dim in self.dims if dim.axis == axis and dim.size > 1] for axis in "cp")
        steps = [after.size * after.stride for after in pixels[1:]] + [1]
        in_order = all(dim.stride == step for dim, step in zip(pixels, steps, strict=False))
        return len(channels) <= 1 and all(dim.stride == 1 for dim in channels) and in_order

    @property
    def channels(self) -> int:
        return math.prod(dim.size for dim in self.dims if dim.axis == "c")

    @property
    def complete(self) -> bool:
        """Whether this is all of the tensor, in its own order of channels."""
        return self.simple and self.plain and self.channel == 0 and self.channels == self.tensor.shape[0]


def image(tensor: Tensor | External) -> View:
    """(1, channels, height, width)."""
    channels, height, width = tensor.shape
    return View(tensor, (ONE, Dim("c", channels), Dim("h", height), Dim("w", width)))


def tokens(tensor: Tensor | External) -> View:
    """(1, pixels, channels)."""
    channels, height, width = tensor.shape
    return View(tensor, (ONE, Dim("p", height * width), Dim("c", channels)))


def vector(tensor: Tensor) -> View:
    """(1, channels)."""
    return View(tensor, (ONE, Dim("c", tensor.shape[0])))


def permute(view: View, order: Sequence[int]) -> View:
    """The dimensions in another order."""
    return replace(view, dims=tuple(view.dims[i] for i in order))


def select(view: View, dim: int, index: int) -> View | None:
    """One index of a channel dimension."""
    chosen = view.dims[dim]
    if chosen.size == 1:
        return replace(view, dims=view.dims[:dim] + view.dims[dim + 1 :])
    if chosen.axis != "c" or not view.plain:
        return None
    index %= chosen.size
    rest = view.dims[:dim] + view.dims[dim + 1 :]
    return replace(view, dims=rest, channel=view.channel + index * chosen.stride)


def reshape(view: View, shape: Sequence[int]) -> View | None:
    """The same data in another shape, or None if it would have to move."""
    sizes = _known(view, shape)
    if sizes is None:
        return None
    source = [dim for dim in view.dims if dim.size > 1]
    dims: list[Dim] = []
    for size in sizes:
        if size == 1:
            dims.append(ONE)
            continue
        taken = _take(source, size)
        if taken is None:
            return None
        dims.append(taken)
    return replace(view, dims=tuple(dims)) if not source else None


def _known(view: View, shape: Sequence[int]) -> list[int] | None:
    total = math.prod(view.shape)
    sizes = [int(size) for size in shape]
    if -1 in sizes:
        rest = -math.prod(sizes)
        if not rest or total % rest:
            return None
        sizes[sizes.index(-1)] = total // rest
    return sizes if math.prod(sizes) == total else None


def _take(source: list[Dim], size: int) -> Dim | None:
    """Remove a dimension of a size from the front of others: one of them, a part of one, or several together."""
    if not source:
        return None
    first = source.pop(0)
    if first.size == size:
        return first
    if first.axis in "cp" and first.size % size == 0:
        source.insert(0, Dim(first.axis, first.size // size, first.stride))
        return Dim(first.axis, size, first.stride * (first.size // size))
    while first.size < size and source:
        second = source.pop(0)
        if first.axis in "cp" and first.axis == second.axis and first.stride == second.size * second.stride:
            first = Dim(first.axis, first.size * second.size, second.stride)
        elif (first.axis, second.axis) == ("h", "w"):
            first = Dim("p", first.size * second.size)
        else:
            return None
    return first if first.size == size else None
