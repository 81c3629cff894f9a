"""Operators that move pixels: from torch tensors into planes and back, from planes to planes, and between bands."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from .movement import COPY, emit_copy
from .native import Kernel
from .plan import Plan
from .planes import Layout, Tensor
from .program import Cell, Place, Program

__all__ = [
    "External",
    "Phases",
    "copy_in",
    "copy_into",
    "copy_out",
    "exchange",
    "first_pixels",
    "flatten",
    "in_rows_of",
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


def first_pixels(tensor: Tensor, channel: int = 0) -> Place:
    """Where the pixels of a channel begin."""
    return Place(tensor, tensor.layout.first_pixel(channel))


@dataclass(frozen=True)
class _End:
    """Where a copy reads or writes: from a channel, a row and a column on, every so many-th row and column.

    Attributes:
        image: What is read or written.
        row_floats: From one row to the next, if not as the image says.
    """

    image: Tensor | External
    channel: int = 0
    row: int = 0
    column: int = 0
    step: tuple[int, int] = (1, 1)
    row_floats: int = 0

    @property
    def layout(self) -> Layout | None:
        return self.image.layout if isinstance(self.image, Tensor) else None

    def place(self, y: int) -> tuple[int, int]:
        """The band and the row in it of the copy's row y."""
        row = self.row + y * self.step[0]
        return divmod(row, self.layout.rows) if self.layout and not self.row_floats else (0, row)

    def fields(self, name: str, band: int, row: int) -> dict[str, Place | Cell | int]:
        """Of a kernel that copies, for what begins at a row of a band."""
        layout = self.layout
        if layout is None:
            strides = self.image.strides
            ends = {f"{name}_cell": Cell(self.image.cell)}
        else:
            strides = (4 * layout.stride, 4 * (self.row_floats or layout.pitch), 4)
            ends = {}
        start = self.channel * strides[0] + row * strides[1] + self.column * strides[2]
        ends[name] = start if layout is None else Place(self.image, layout.first_pixel() + start, band)
        steps = (1, *self.step)
        names = (f"{name}_{axis}" for axis in ("channel", "row", "column"))
        return ends | {key: stride * n for key, stride, n in zip(names, strides, steps, strict=True)}


def _copy(program: Program, source: _End, target: _End, size: tuple[int, int, int]) -> None:
    """Copy channels x rows x columns: as many rows at once as are in the same bands, each by its band's thread."""
    channels, height, columns = size
    bundle = object()
    owned = next((end for end in (target, source) if end.layout and end.layout.bands > 1), None)

    def bands(y: int) -> tuple[int, ...]:
        return tuple(end.place(y)[0] for end in (source, target))

    for _, group in groupby(range(height), bands):
        rows = list(group)
        ends = source.fields("source", *source.place(rows[0])) | target.fields("target", *target.place(rows[0]))
        step = {(4, 4): 1, (8, 4): 2}.get((ends["source_column"], ends["target_column"]), 0)
        ends |= {"channels": channels, "rows": len(rows), "columns": columns}
        owner = owned.place(rows[0])[0] if owned else -1
        program.add(Kernel("copy", COPY, emit_copy, (step,)), owner=owner, bundle=bundle, **ends)


def copy_in(plan: Plan, source: External) -> Tensor:
    """The planes of a torch tensor."""
    target = plan.tensor(*source.shape, band_rows=plan.band_rows(*source.shape[1:]))
    plan.later(lambda program: _copy(program, _End(source), _End(target), source.shape))
    return target


def copy_out(plan: Plan, source: Tensor, target: External, *, channel: int = 0) -> None:
    """Write planes, from a channel on, into a torch tensor."""
    plan.later(lambda program: _copy(program, _End(source, channel), _End(target), target.shape))


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
    ends = _End(source, of), _End(target, channel, row, column)
    plan.later(lambda program: _copy(program, *ends, (channels, height, width)))


def in_rows_of(plan: Plan, tensor: Tensor, band_rows: int) -> Tensor:
    """The same image in bands of so many rows; in one piece if 0."""
    if tensor.layout.band_rows == band_rows:
        return tensor
    target = plan.tensor(*tensor.shape, band_rows=band_rows, exclusive=tensor.exclusive)
    target.layout = replace(target.layout, fill=tensor.layout.fill)
    target.nonnegative = tensor.nonnegative
    copy_into(plan, tensor, target, tensor.shape[0])
    return target


def exchange(plan: Plan, program: Program, tensor: Tensor) -> None:
    """Copy the rows that a band needs from those before and after it, once for all that read them."""
    layout = tensor.layout
    if layout.bands == 1 or tensor in plan.exchanged:
        return
    plan.exchanged.add(tensor)
    for band in range(layout.bands):
        for row, source_band, source_row, rows in _neighbours(layout, band):
            start, source = (layout.first_pixel() + 4 * r * layout.pitch for r in (row, source_row))
            program.add(
                Kernel("copy", COPY, emit_copy, (1,)),
                owner=band,
                bundle=("exchange", tensor),
                source=Place(tensor, source, source_band),
                target=Place(tensor, start, band),
                channels=layout.channels,
                rows=rows,
                columns=layout.width,
                **{f"{end}_channel": 4 * layout.stride for end in ("source", "target")},
                **{f"{end}_row": 4 * layout.pitch for end in ("source", "target")},
            )


def _neighbours(layout: Layout, band: int) -> Iterator[tuple[int, int, int, int]]:
    """Rows of a band that other bands have: the first one, where that is (band and row), and how many they are."""
    outside = [*range(-layout.above, 0), *range(layout.rows, layout.rows + layout.below)]
    inside = [row for row in outside if 0 <= band * layout.rows + row < layout.height]
    for source_band, group in groupby(inside, lambda row: (band * layout.rows + row) // layout.rows):
        rows = list(group)
        yield rows[0], source_band, band * layout.rows + rows[0] - source_band * layout.rows, len(rows)


def flatten(plan: Plan, source: Tensor) -> Tensor:
    """The same pixels in one row."""
    channels, height, width = source.shape
    target = plan.tensor(channels, 1, height * width)
    plan.later(lambda program: _copy(program, _End(source), _End(target, row_floats=width), source.shape))
    return target


def take_column(plan: Plan, source: Tensor, column: int) -> Tensor:
    """One pixel of a row."""
    target = plan.tensor(source.layout.channels, 1, 1)
    size = (source.layout.channels, 1, 1)
    plan.later(lambda program: _copy(program, _End(source, column=column), _End(target), size))
    return target


def split_phases(plan: Plan, source: Tensor | External, stride: tuple[int, int]) -> Phases:
    """Take an image apart by a stride. Only the phases that are `needed` in the end are copied."""
    channels, height, width = source.shape
    sy, sx = stride
    size = (-(-height // sy), -(-width // sx))
    target = plan.tensor(channels * sy * sx, *size, exclusive=True, band_rows=plan.band_rows(*size))
    phases = Phases(target, stride, channels, set())

    def emit(program: Program) -> None:
        for py, px in sorted(phases.needed):
            rows, columns = -(-(height - py) // sy), -(-(width - px) // sx)
            if rows > 0 and columns > 0:
                there = _End(target, phases.channel((py, px)))
                _copy(program, _End(source, 0, py, px, stride), there, (channels, rows, columns))

    plan.later(emit)
    return phases
