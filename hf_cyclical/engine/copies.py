"""Operators that move pixels: from torch tensors into planes and back, and from planes to planes."""

from dataclasses import dataclass

from .movement import COPY, emit_copy
from .native import Kernel
from .plan import Plan
from .planes import Tensor
from .program import Cell, Place, Program

__all__ = [
    "External",
    "Phases",
    "copy_in",
    "copy_into",
    "copy_out",
    "first_pixels",
    "flatten",
    "split_phases",
    "take_column",
]


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
