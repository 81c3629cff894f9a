"""Operators on planes: each states what padding it needs, and writes its rows when layouts are final."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .bands import for_bands, pixel_mask, with_rows_for
from .copies import External, Phases, exchange, first_pixels, in_rows_of, split_phases
from .native import Kernel
from .pixelwise import COMBINE, MAXIMUM, MEAN, NORM, emit_combine, emit_maximum, emit_mean, emit_norm
from .plan import Plan
from .planes import Tensor
from .program import Place, Program, Row

__all__ = [
    "IDENTITY",
    "RELU",
    "Activation",
    "combine",
    "max_pool",
    "mean",
    "need_taps",
    "norm",
    "tap_places",
]


@dataclass(frozen=True)
class Activation:
    """A function that a kernel applies to what it stores; `clamp` is the identity, ReLU and ReLU6."""

    kind: str = "clamp"
    low: float = -math.inf
    high: float = math.inf

    @property
    def nonnegative(self) -> bool:
        """Whether all results are at least 0."""
        return self.kind in ("sigmoid", "hard_sigmoid") or (self.kind == "clamp" and self.low >= 0)

    def fields(self) -> dict[str, float]:
        return {"low": self.low, "high": self.high}


IDENTITY, RELU = Activation(), Activation(low=0.0)


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
    target = plan.tensor(channels, height, width, flat=first.layout.flat, band_rows=first.layout.band_rows)
    if isinstance(second, Tensor) and operation != "scale":
        second = in_rows_of(plan, second, first.layout.band_rows)
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
                ends[f"{name}_stride"] = 4 * layout.stride
        kernel = Kernel("combine", COMBINE, emit_combine, (operation, activation.kind))
        rows = for_bands(Row(kernel, ends | size | activation.fields()), target)
        for band, row in enumerate(rows):
            if isinstance(second, np.ndarray) and operation != "scale":
                row.fields["second"] = _laid_out(second, target, band)
        program.rows += rows

    plan.later(emit)
    return target


def _laid_out(array: np.ndarray, like: Tensor, band: int) -> np.ndarray:
    """The part of a constant for a band of a tensor, in its layout, from its first pixel on."""
    layout, start = like.layout, band * like.layout.rows
    count = layout.rows_of(band)
    planes = np.zeros((layout.channels + 1, layout.stride), np.float32)
    rows = planes[:-1, layout.lead : layout.lead + count * layout.pitch]
    rows.reshape(layout.channels, count, layout.pitch)[:, :, : layout.width] = array[:, start : start + count]
    return planes.reshape(-1)[layout.lead :]


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
    phases.tensor.layout = replace(phases.tensor.layout, fill=-math.inf)
    phases = with_rows_for(plan, phases, size[0])
    target = plan.tensor(phases.channels, *size, band_rows=phases.tensor.layout.band_rows)
    taps = tap_places(phases, kernel, (1, 1), padding)
    need_taps(plan, phases.tensor, target, [(dy, dx) for _, dy, dx in taps])

    def emit(program: Program) -> None:
        layout = phases.tensor.layout
        exchange(plan, program, phases.tensor)
        offsets = [4 * (channel * layout.stride + dy * layout.pitch + dx) for channel, dy, dx in taps]
        fields = {
            "source": first_pixels(phases.tensor),
            "source_stride": 4 * layout.stride,
            "target": first_pixels(target),
            "target_stride": 4 * target.layout.stride,
            "planes": phases.channels,
            "vectors": target.layout.vectors,
            "mask": pixel_mask(target),
            "offsets": np.array(offsets, np.int32),
        }
        program.rows += for_bands(Row(Kernel("maximum", MAXIMUM, emit_maximum, (len(offsets),)), fields), target)

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
        below=max(0, max(rows) if source.layout.band_rows else max(rows) + out_height - height),
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
            bands=source.layout.bands,
            band_bytes=4 * source.layout.band_floats,
            mask=pixel_mask(source),
            last_mask=pixel_mask(source, source.layout.bands - 1),
            factor=1.0 / (height * width),
        )

    plan.later(emit)
    return target


def norm(plan: Plan, source: Tensor, weight: np.ndarray, bias: np.ndarray, epsilon: float) -> Tensor:
    """LayerNorm over channels."""
    channels, height, width = source.shape
    target = plan.tensor(channels, height, width, band_rows=source.layout.band_rows)
    plan.same_rows(source, target)

    def emit(program: Program) -> None:
        fields = {
            "source": first_pixels(source),
            "source_stride": 4 * source.layout.stride,
            "target": first_pixels(target),
            "target_stride": 4 * target.layout.stride,
            "planes": channels,
            "vectors": source.layout.vectors,
            "mask": pixel_mask(target),
            "weight": weight,
            "bias": bias,
            "epsilon": float(epsilon),
            "factor": 1.0 / channels,
        }
        program.rows += for_bands(Row(Kernel("norm", NORM, emit_norm), fields), target)

    plan.later(emit)
    return target
