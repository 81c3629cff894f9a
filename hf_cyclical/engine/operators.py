"""Operators on planes: each states what padding it needs, and writes its rows when layouts are final."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .movement import COPY, emit_copy
from .native import Kernel
from .pixelwise import COMBINE, MAXIMUM, MEAN, NORM, emit_combine, emit_maximum, emit_mean, emit_norm
from .plan import Plan
from .planes import Tensor
from .program import Cell, Place, Program

__all__ = [
    "IDENTITY",
    "RELU",
    "Activation",
    "External",
    "Phases",
    "combine",
    "copy_in",
    "copy_into",
    "copy_out",
    "first_pixels",
    "flatten",
    "max_pool",
    "mean",
    "need_taps",
    "norm",
    "pixel_mask",
    "split_phases",
    "take_column",
    "tap_places",
]


@dataclass(frozen=True)
class Activation:
    """A function that a kernel applies to what it stores; `clamp` is the identity, ReLU and ReLU6."""

    kind: str = "clamp"
    low: float = -math.inf
    high: float = math.inf

    def fields(self) -> dict[str, float]:
        return {"low": self.low, "high": self.high}


IDENTITY, RELU = Activation(), Activation(low=0.0)


@dataclass(frozen=True)
class External:
    """A torch tensor of one image, contiguous: what the program reads or writes at a cell.

    Attributes:
        strides: Bytes from one channel, row and column to the next.
    """

    cell: int
    shape: tuple[int, int, int]
    strides: tuple[int, int, int]


@dataclass(eq=False)
class Phases:
    """An image taken apart by a stride: the pixels of row py and column px of every cell are planes of their own.

    The planes of phase (py, px) begin at channel (py * stride_x + px) * channels.
    """

    tensor: Tensor
    stride: tuple[int, int]
    channels: int
    needed: set[tuple[int, int]]

    def channel(self, phase: tuple[int, int]) -> int:
        return (phase[0] * self.stride[1] + phase[1]) * self.channels


def _strides(tensor: Tensor) -> tuple[int, int, int]:
    layout = tensor.layout
    return 4 * layout.stride, 4 * layout.pitch, 4


def first_pixels(tensor: Tensor, channel: int = 0) -> Place:
    """Where the pixels of a channel begin."""
    return Place(tensor, tensor.layout.first_pixel(channel))


def copy(
    program: Program,
    source: tuple[Place | Cell, int, tuple[int, int, int]],
    target: tuple[Place | Cell, int, tuple[int, int, int]],
    size: tuple[int, int, int],
) -> None:
    """A row that copies channels x rows x columns; either end is (where, bytes to add, strides in bytes)."""
    ends = {}
    for name, (where, offset, strides) in (("source", source), ("target", target)):
        if isinstance(where, Cell):
            ends |= {name: offset, f"{name}_cell": where}
        else:
            ends[name] = Place(where.tensor, where.offset + offset)
        ends |= dict(zip((f"{name}_channel", f"{name}_row", f"{name}_column"), strides, strict=True))
    step = {(4, 4): 1, (8, 4): 2}.get((source[2][2], target[2][2]), 0)
    channels, rows, columns = size
    program.add(Kernel("copy", COPY, emit_copy, (step,)), **ends, channels=channels, rows=rows, columns=columns)


def copy_in(plan: Plan, source: External) -> Tensor:
    """The planes of a torch tensor."""
    target = plan.tensor(*source.shape)
    plan.later(
        lambda program: copy(
            program, (Cell(source.cell), 0, source.strides), (first_pixels(target), 0, _strides(target)), source.shape
        )
    )
    return target


def copy_out(plan: Plan, source: Tensor, target: External, *, channel: int = 0) -> None:
    """Write planes, from a channel on, into a torch tensor."""
    plan.later(
        lambda program: copy(
            program,
            (first_pixels(source, channel), 0, _strides(source)),
            (Cell(target.cell), 0, target.strides),
            target.shape,
        )
    )


def copy_into(
    plan: Plan,
    source: Tensor,
    target: Tensor,
    channels: int,
    *,
    of: int = 0,
    channel: int = 0,
    row: int = 0,
    column: int = 0,
) -> None:
    """Copy channels of a tensor, from `of` on, into another one at some channel, row and column."""
    height = min(source.layout.height, target.layout.height - row)
    width = min(source.layout.width, target.layout.width - column)

    def emit(program: Program) -> None:
        start = (first_pixels(target, channel), 4 * (row * target.layout.pitch + column), _strides(target))
        copy(program, (first_pixels(source, of), 0, _strides(source)), start, (channels, height, width))

    plan.later(emit)


def flatten(plan: Plan, source: Tensor) -> Tensor:
    """The same pixels in one row."""
    channels, height, width = source.shape
    target = plan.tensor(channels, 1, height * width)

    def emit(program: Program) -> None:
        strides = (4 * target.layout.stride, 4 * width, 4)
        copy(program, (first_pixels(source), 0, _strides(source)), (first_pixels(target), 0, strides), source.shape)

    plan.later(emit)
    return target


def take_column(plan: Plan, source: Tensor, column: int) -> Tensor:
    """One pixel of a row."""
    target = plan.tensor(source.layout.channels, 1, 1)

    def emit(program: Program) -> None:
        start = (first_pixels(source), 4 * column, _strides(source))
        copy(program, start, (first_pixels(target), 0, _strides(target)), (source.layout.channels, 1, 1))

    plan.later(emit)
    return target


def split_phases(plan: Plan, source: Tensor | External, stride: tuple[int, int]) -> Phases:
    """Take an image apart by a stride. Only the phases that are `needed` in the end are copied."""
    channels, height, width = source.shape
    sy, sx = stride
    target = plan.tensor(channels * sy * sx, -(-height // sy), -(-width // sx), exclusive=True)
    phases = Phases(target, stride, channels, set())

    def emit(program: Program) -> None:
        strides = source.strides if isinstance(source, External) else _strides(source)
        where = Cell(source.cell) if isinstance(source, External) else first_pixels(source)
        apart = (strides[0], sy * strides[1], sx * strides[2])
        for py, px in sorted(phases.needed):
            rows, columns = -(-(height - py) // sy), -(-(width - px) // sx)
            start = first_pixels(target, phases.channel((py, px)))
            if rows > 0 and columns > 0:
                offset = py * strides[1] + px * strides[2]
                copy(program, (where, offset, apart), (start, 0, _strides(target)), (channels, rows, columns))

    plan.later(emit)
    return phases


def combine(
    plan: Plan, operation: str, first: Tensor, second: Tensor | np.ndarray | None, activation: Activation = IDENTITY
) -> Tensor:
    """activation(first operation second): `add`, `multiply`, `scale` (by one pixel per channel) or `only`.

    Args:
        plan: Where to.
        operation: Which one.
        first: The one whose layout the result has.
        second: The other one; an array is a constant of the same shape, or of one value per channel for `scale`.
        activation: What is applied to the result.
    """
    channels, height, width = first.shape
    target = plan.tensor(channels, height, width, flat=first.layout.flat)
    if not first.layout.flat:
        plan.same_rows(first, target)
        if isinstance(second, Tensor) and operation != "scale":
            plan.same_rows(first, second)

    def emit(program: Program) -> None:
        layout = target.layout
        factor = second if second is not None else first
        size = {"planes": channels, "vectors": layout.vectors, "mask": pixel_mask(target)}
        if layout.flat:
            size = {"planes": 1, "vectors": -(-channels // layout.lanes)}
        ends: dict[str, Place | np.ndarray | int] = {}
        for name, tensor in (("first", first), ("second", factor), ("target", target)):
            if isinstance(tensor, Tensor):
                ends |= {name: first_pixels(tensor), f"{name}_stride": 4 * tensor.layout.stride}
            elif operation == "scale":
                ends |= {name: np.ascontiguousarray(tensor, np.float32), f"{name}_stride": 4}
            else:
                ends |= {name: _laid_out(tensor, target), f"{name}_stride": 4 * layout.stride}
        kernel = Kernel("combine", COMBINE, emit_combine, (operation, activation.kind))
        program.add(kernel, **ends, **size, **activation.fields())

    plan.later(emit)
    return target


def _laid_out(array: np.ndarray, like: Tensor) -> np.ndarray:
    """A constant in the layout of a tensor, from its first pixel on."""
    layout = like.layout
    planes = np.zeros((layout.channels + 1, layout.stride), np.float32)
    rows = planes[:-1, layout.lead : layout.lead + layout.height * layout.pitch]
    rows.reshape(layout.channels, layout.height, layout.pitch)[:, :, : layout.width] = array
    return planes.reshape(-1)[layout.lead :]


def pixel_mask(tensor: Tensor) -> np.ndarray:
    """All bits set where a plane has pixels; the same array for all tensors of a geometry."""
    layout = tensor.layout
    key = (layout.height, layout.width, layout.pitch, layout.lanes)
    if key not in _MASKS:
        _MASKS[key] = layout.mask()
    return _MASKS[key]


_MASKS: dict[tuple[int, ...], np.ndarray] = {}  # one per geometry: a network has few


def max_pool(
    plan: Plan,
    source: Tensor | External,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    size: tuple[int, int],
) -> Tensor:
    """Max pooling to a given size. The padding of the copy that it reads is -inf."""
    phases = split_phases(plan, source, stride)
    old = phases.tensor.layout
    phases.tensor.layout = type(old)(old.channels, old.height, old.width, old.lanes, fill=-math.inf)
    target = plan.tensor(phases.channels, *size)
    taps = tap_places(phases, kernel, (1, 1), padding)
    need_taps(plan, phases.tensor, target, [(dy, dx) for _, dy, dx in taps])

    def emit(program: Program) -> None:
        layout = phases.tensor.layout
        offsets = [4 * (channel * layout.stride + dy * layout.pitch + dx) for channel, dy, dx in taps]
        program.add(
            Kernel("maximum", MAXIMUM, emit_maximum, (len(offsets),)),
            source=first_pixels(phases.tensor),
            source_stride=4 * layout.stride,
            target=first_pixels(target),
            target_stride=4 * target.layout.stride,
            planes=phases.channels,
            vectors=target.layout.vectors,
            mask=pixel_mask(target),
            offsets=np.array(offsets, np.int32),
        )

    plan.later(emit)
    return target


def tap_places(
    phases: Phases, kernel: tuple[int, int], dilation: tuple[int, int], padding: tuple[int, int]
) -> list[tuple[int, int, int]]:
    """For each tap, row by row: the first channel of its phase, and how many rows and columns away it is there."""
    (sy, sx), places = phases.stride, []
    for ky in range(kernel[0]):
        for kx in range(kernel[1]):
            y, x = ky * dilation[0] - padding[0], kx * dilation[1] - padding[1]
            phase = (y % sy, x % sx)
            phases.needed.add(phase)
            places.append((phases.channel(phase), y // sy, x // sx))
    return places


def need_taps(plan: Plan, source: Tensor, target: Tensor, taps: Sequence[tuple[int, int]]) -> None:
    """Pad the source so that every tap of every output pixel lies in it."""
    rows, columns = ([tap[i] for tap in taps] for i in range(2))
    (_, height, width), (_, out_height, out_width) = source.shape, target.shape
    plan.same_rows(source, target)
    plan.pad(
        source,
        above=max(0, -min(rows)),
        below=max(0, max(rows) + out_height - height),
        gap=max(0, -min(columns), max(columns) + out_width - width),
    )


def mean(plan: Plan, source: Tensor) -> Tensor:
    """The mean of each plane: one pixel per channel."""
    channels, height, width = source.shape
    target = plan.tensor(channels, 1, 1)

    def emit(program: Program) -> None:
        program.add(
            Kernel("mean", MEAN, emit_mean),
            source=first_pixels(source),
            source_stride=4 * source.layout.stride,
            target=first_pixels(target),
            target_stride=4 * target.layout.stride,
            planes=channels,
            vectors=source.layout.vectors,
            factor=1.0 / (height * width),
        )

    plan.later(emit)
    return target


def norm(plan: Plan, source: Tensor, weight: np.ndarray, bias: np.ndarray, epsilon: float) -> Tensor:
    """LayerNorm over channels."""
    channels, height, width = source.shape
    target = plan.tensor(channels, height, width)
    plan.same_rows(source, target)

    def emit(program: Program) -> None:
        program.add(
            Kernel("norm", NORM, emit_norm),
            source=first_pixels(source),
            source_stride=4 * source.layout.stride,
            target=first_pixels(target),
            target_stride=4 * target.layout.stride,
            planes=channels,
            vectors=source.layout.vectors,
            mask=pixel_mask(target),
            weight=weight,
            bias=bias,
            epsilon=float(epsilon),
            factor=1.0 / channels,
        )

    plan.later(emit)
    return target
