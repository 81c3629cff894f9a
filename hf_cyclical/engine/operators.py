"""Operators on planes: each states what padding it needs, and writes its rows when layouts are final."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .copies import External, Phases, first_pixels, split_phases
from .native import Kernel
from .pixelwise import COMBINE, MAXIMUM, MEAN, NORM, emit_combine, emit_maximum, emit_mean, emit_norm
from .plan import Plan
from .planes import Tensor
from .program import Place, Program

__all__ = [
    "IDENTITY",
    "RELU",
    "Activation",
    "combine",
    "max_pool",
    "mean",
    "need_taps",
    "norm",
    "pixel_mask",
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
