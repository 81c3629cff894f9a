"""Operators on each channel alone, window by window: depthwise convolutions and max pooling."""

from collections.abc import Sequence

import numpy as np

from .bands import for_bands, pad_windows, window_start
from .copies import exchange, in_rows_of
from .depthwise import WINDOWS, emit_depthwise, emit_window_maximum
from .layers import Convolution
from .native import Kernel
from .operators import IDENTITY, Activation
from .plan import Choice, Plan
from .planes import Tensor
from .program import Field, Place, Program, Row

__all__ = ["by_channel", "convolve_channels", "pool_windows", "pools_in_place", "window_fields", "windows_for_bands"]

# By stride; beyond, the sparse kernel wins, although for stride 2 its input is taken apart first.
MOST_ZEROS = {1: 0.5, 2: 0.8}
MOST_TAPS = 7  # rows and columns of a kernel
FEW_ROWS = 5  # of a window: with more, the results that a strip carries do not fit in the registers


def by_channel(layer: Convolution) -> bool:
    """Whether this is a depthwise convolution for `convolve_channels`."""
    outputs, inputs, *kernel = layer.weight.shape
    (stride, other), depthwise = layer.stride, inputs == 1 and layer.groups == outputs
    regular = stride == other and layer.dilation == (1, 1) and max(kernel) <= MOST_TAPS
    return depthwise and regular and layer.sparsity < MOST_ZEROS.get(stride, 0.0)


def convolve_channels(plan: Plan, source: Tensor, layer: Convolution, activation: Activation = IDENTITY) -> Tensor:
    """activation(depthwise convolution of the source)."""
    channels, _, *kernel = layer.weight.shape
    source, target = _windows_of(plan, source, kernel, layer.stride[0], layer.padding, layer.size)
    target.nonnegative = activation.nonnegative

    def emit(program: Program) -> None:
        exchange(plan, program, source)
        ends, strips = window_fields(source, target, kernel, layer.stride, layer.padding)
        weights = {name: np.ascontiguousarray(getattr(layer, name), np.float32) for name in ("weight", "bias")}
        ends |= {"weights": weights["weight"], "bias": weights["bias"], **activation.fields()}
        variant = (tuple(kernel), layer.stride, *strips, activation.kind)
        row = Row(Kernel("depthwise", WINDOWS, emit_depthwise, variant), ends)
        program.rows += windows_for_bands(row, source, target, kernel, layer.stride, layer.padding)
        plan.choices.append(Choice(layer.name, "dense", f"{channels} groups: depthwise", float(layer.sparsity)))

    plan.later(emit)
    return target


def pools_in_place(source: object, stride: tuple[int, int]) -> bool:
    """Whether `pool_windows` can pool this: the padding holds zeros, which must not be larger than the pixels."""
    return isinstance(source, Tensor) and source.nonnegative and stride[0] == stride[1] <= 2


def pool_windows(
    plan: Plan, source: Tensor, kernel: Sequence[int], stride: int, padding: tuple[int, int], size: tuple[int, int]
) -> Tensor:
    """Max pooling of an image without negative pixels to a given size."""
    source, target = _windows_of(plan, source, kernel, stride, padding, size)
    target.nonnegative = True

    def emit(program: Program) -> None:
        exchange(plan, program, source)
        ends, strips = window_fields(source, target, kernel, (stride, stride), padding)
        kind = Kernel("window maximum", WINDOWS, emit_window_maximum, (tuple(kernel), (stride, stride), *strips))
        program.rows += windows_for_bands(Row(kind, ends), source, target, kernel, (stride, stride), padding)

    plan.later(emit)
    return target


def _windows_of(
    plan: Plan, source: Tensor, kernel: Sequence[int], stride: int, padding: tuple[int, int], size: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """The source, in bands that fit, and padded so that every window lies in it; and a tensor for the results."""
    here, rows = source.layout, plan.band_rows(*size) if source.layout.band_rows else 0
    source = source if rows and here.bands == plan.threads else in_rows_of(plan, source, 0)
    target = plan.tensor(source.shape[0], *size, band_rows=rows if source.layout.band_rows else 0)
    pad_windows(plan, source, target.layout, kernel, (stride, stride), padding)
    return source, target


def windows_for_bands(
    row: Row,
    source: Tensor,
    target: Tensor,
    kernel: Sequence[int],
    stride: tuple[int, int],
    padding: tuple[int, int],
) -> list[Row]:
    """A row for each band of the target; `window_fields` says what changes from band to band."""
    rows = for_bands(row, target)
    if len(rows) > 1:
        for band, own in enumerate(rows):
            ends, _ = window_fields(source, target, kernel, stride, padding, band=band)
            own.fields.update({name: ends[name] for name in ("source", "rows")})
    return rows


def window_fields(
    source: Tensor,
    target: Tensor,
    kernel: Sequence[int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    rows: int | None = None,
    band: int = 0,
) -> tuple[dict[str, Field], tuple[int, int]]:
    """Where the kernel reads and writes, and how many vectors are in a strip and in the last one.

    Args:
        source: What windows are of.
        target: Where results go.
        kernel: Rows and columns of a window.
        stride: From one window to the next.
        padding: Rows above the source and columns before it where the first window begins.
        rows: Rows of windows; those of the target's band if not given.
        band: Which one.
    """
    here, there = source.layout, target.layout
    strip = 4 if there.lanes == 16 and kernel[0] <= FEW_ROWS else 2
    vectors = -(-there.width // there.lanes)
    strips = (vectors - 1) // strip
    above = window_start(here, there, stride[0], padding[0], band) if rows is None else -padding[0]
    start = here.first_pixel() + 4 * (above * here.pitch - padding[1])
    below = ((there.rows_of(band) if rows is None else rows) - 1) * stride[0] + kernel[0] - 1
    reach = (here.channels - 1) * here.stride + below * here.pitch + stride[1] * vectors * here.lanes + kernel[1]
    size = 4 * here.band_floats
    if start < 0 or start + 4 * reach > size or here.bands != there.bands:
        raise ValueError(f"windows would read bytes {start} to {start + 4 * reach} of a buffer of {size}")
    ends: dict[str, Field] = {
        "source": Place(source, start, band if here.bands > 1 else 0),
        "source_stride": 4 * here.stride,
        "source_row": 4 * here.pitch,
        "target": Place(target, there.first_pixel(), band),
        "target_stride": 4 * there.stride,
        "target_row": 4 * there.pitch,
        "planes": there.channels,
        "rows": there.rows_of(band),
        "strips": strips,
        "rest": there.width - (vectors - 1) * there.lanes,
    }
    return ends, (strip, vectors - strips * strip)
