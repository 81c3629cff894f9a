"""Depthwise convolutions on planes: every channel by its own weights, few of which are zero."""

import numpy as np

from .depthwise import DEPTHWISE, emit_depthwise
from .layers import Convolution
from .native import Kernel
from .operators import IDENTITY, Activation
from .plan import Choice, Plan
from .planes import Tensor
from .program import Place, Program

__all__ = ["by_channel", "convolve_channels"]

# By stride; beyond, the sparse kernel wins, although for stride 2 its input is taken apart first.
MOST_ZEROS = {1: 0.5, 2: 0.8}
MOST_TAPS = 7  # rows and columns of a kernel


def by_channel(layer: Convolution) -> bool:
    """Whether this is a depthwise convolution for `convolve_channels`."""
    outputs, inputs, *kernel = layer.weight.shape
    (stride, other), depthwise = layer.stride, inputs == 1 and layer.groups == outputs
    regular = stride == other and layer.dilation == (1, 1) and max(kernel) <= MOST_TAPS
    return depthwise and regular and layer.sparsity < MOST_ZEROS.get(stride, 0.0)


def convolve_channels(plan: Plan, source: Tensor, layer: Convolution, activation: Activation = IDENTITY) -> Tensor:
    """activation(depthwise convolution of the source)."""
    channels, _, *kernel = layer.weight.shape
    (height, width), (above, before), stride = layer.size, layer.padding, layer.stride[0]
    target = plan.tensor(channels, height, width)
    # Rows and columns that the last output's window has after those of the source.
    below, after = (
        max(0, (out - 1) * stride + k - pad - n)
        for out, k, pad, n in zip(layer.size, kernel, layer.padding, source.shape[1:], strict=True)
    )
    plan.pad(source, above=above, below=below, gap=max(before, after))

    def emit(program: Program) -> None:
        lanes, strip = plan.target.width, 4 if plan.target.width == 16 else 2
        vectors = -(-width // lanes)
        strips = (vectors - 1) // strip
        here, there = source.layout, target.layout
        start = here.first_pixel() - 4 * (above * here.pitch + before)
        _check_reach(layer, source, start, vectors)
        variant = (tuple(kernel), stride, strip, vectors - strips * strip, activation.kind)
        program.add(
            Kernel("depthwise", DEPTHWISE, emit_depthwise, variant),
            source=Place(source, start),
            source_stride=4 * here.stride,
            source_row=4 * here.pitch,
            target=Place(target, there.first_pixel()),
            target_stride=4 * there.stride,
            target_row=4 * there.pitch,
            planes=channels,
            rows=height,
            strips=strips,
            rest=width - (vectors - 1) * lanes,
            weights=np.ascontiguousarray(layer.weight, np.float32),
            bias=np.ascontiguousarray(layer.bias, np.float32),
            **activation.fields(),
        )
        plan.choices.append(Choice(layer.name, "dense", f"{channels} groups: depthwise", float(layer.sparsity)))

    plan.later(emit)
    return target


def _check_reach(layer: Convolution, source: Tensor, start: int, vectors: int) -> None:
    """Every vector that the kernel will read lies in the source's buffer."""
    layout, stride = source.layout, layer.stride[0]
    channels, _, rows, columns = layer.weight.shape
    row = (layer.size[0] - 1) * stride + rows - 1
    floats = (channels - 1) * layout.stride + row * layout.pitch + stride * vectors * layout.lanes + columns
    if start < 0 or start + 4 * floats > 4 * layout.floats:
        raise ValueError(f"{layer.name} would read bytes {start} to {start + 4 * floats} of {4 * layout.floats}")
