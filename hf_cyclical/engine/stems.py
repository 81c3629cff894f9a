"""The dense convolution at a network's start, where it has many rows of taps: 7x7 with stride 2 in a ResNet."""

import numpy as np

from .bands import for_bands, pad_windows
from .channelwise import window_fields, windows_for_bands
from .copies import Phases, exchange, first_pixels, in_rows_of
from .depthwise import WINDOWS, emit_depthwise
from .layers import SURELY_DENSE, Convolution
from .native import Kernel
from .operators import Activation, tap_places
from .plan import Choice, Plan
from .planes import Tensor
from .program import Field, Program, Row
from .winograd import AT_ONCE, ROWS, WINOGRAD, emit_winograd, transforms

__all__ = ["convolve_stem", "is_stem"]

TAPS = (3, 4)  # rows of taps, after a stride took the image apart, for which fewer products are worth the sums
MOST_CHANNELS = 4
WORTH = 1e7  # multiply-adds; a smaller convolution takes less time than the sums


def is_stem(layer: Convolution) -> bool:
    """Whether `convolve_stem` computes this convolution."""
    outputs, inputs, rows, _ = layer.weight.shape
    few = inputs <= MOST_CHANNELS and layer.groups == 1 and layer.sparsity < SURELY_DENSE
    even = outputs % AT_ONCE == 0 and layer.size[0] % ROWS == 0 and layer.dilation == (1, 1)
    above, stride = -layer.padding[0], layer.stride[0]
    worth = layer.weight.size * layer.size[0] * layer.size[1] >= WORTH
    return few and even and worth and (above + rows - 1) // stride - above // stride + 1 in TAPS


def convolve_stem(plan: Plan, phases: Phases, layer: Convolution, activation: Activation) -> Tensor:
    """activation(convolution of the image that is taken apart)."""
    taps = tap_places(phases, layer.weight.shape[2:], (1, 1), layer.padding)
    first, last = (limit(dy for _, dy, _ in taps) for limit in (min, max))
    count, (height, width), image = last - first + 1, layer.size, phases.tensor
    products, tiles, planes = ROWS + count - 1, height // ROWS, image.shape[0]
    rows = plan.band_rows(tiles, image.shape[2]) if image.layout.band_rows else 0
    if not rows:
        image = in_rows_of(plan, image, 0)
    sums = plan.tensor(products * planes, tiles, image.shape[2], exclusive=True, band_rows=rows)
    target = plan.tensor(len(layer.weight), height, width, band_rows=ROWS * rows)
    target.nonnegative = activation.nonnegative
    scratch = plan.tensor(plan.threads, 1, 1)
    columns = [dx for _, _, dx in taps]
    above = (-first, 0)
    pad_windows(plan, image, sums.layout, (products, 1), (ROWS, 1), above)
    plan.pad(sums, gap=max(0, -min(columns), max(columns) + width - image.shape[2]))

    def emit_sums(program: Program) -> None:
        exchange(plan, program, image)
        for i, factors in enumerate(transforms(count)[2]):
            fields, strips = window_fields(image, sums, (products, 1), (ROWS, 1), above)
            fields |= {"target": first_pixels(sums, i * planes), "planes": planes}
            weights = np.tile(np.float32(factors), (planes, 1))
            fields |= {"weights": weights, "bias": np.zeros(planes, np.float32), **Activation().fields()}
            variant = ((products, 1), (ROWS, 1), *strips, "clamp")
            row = Row(Kernel("depthwise", WINDOWS, emit_depthwise, variant), fields)
            program.rows += windows_for_bands(row, image, sums, (products, 1), (ROWS, 1), above)

    def emit(program: Program) -> None:
        window = (1, max(columns) - min(columns) + 1)
        fields, strips = window_fields(sums, target, window, (1, 1), (0, -min(columns)), rows=sums.layout.rows)
        lanes = sums.layout.lanes
        scratch.layout = type(scratch.layout)(plan.threads, 1, products * AT_ONCE * max(strips) * lanes, lanes)
        fields = {name: fields[name] for name in ("target", "target_stride", "target_row", "strips", "rest")}
        fields |= _weights(layer, taps, first, sums, planes) | activation.fields()
        fields |= {
            "source": first_pixels(sums),
            "source_row": 4 * sums.layout.pitch,
            "product_bytes": 4 * sums.layout.stride * planes,
            "tiles": sums.layout.rows,
            "outputs": len(layer.weight) // AT_ONCE,
            "bias": np.ascontiguousarray(layer.bias, np.float32),
            "scratch": first_pixels(scratch),
            "scratch_bytes": 4 * scratch.layout.stride,
        }
        kernel = Kernel("winograd", WINOGRAD, emit_winograd, (count, *strips, activation.kind))
        for band, row in enumerate(for_bands(Row(kernel, fields), target)):
            row.fields.update(tiles=sums.layout.rows_of(band), scratch=first_pixels(scratch, band))
            program.rows.append(row)
        why = f"{layer.sparsity:.1%} zeros are too few: Winograd's algorithm"
        plan.choices.append(Choice(layer.name, "dense", why, float(layer.sparsity)))

    plan.later(emit_sums)
    plan.later(emit)
    return target


def _weights(
    layer: Convolution, taps: list[tuple[int, int, int]], first: int, sums: Tensor, planes: int
) -> dict[str, Field]:
    """Weights by product, and where the inputs are: one for each plane and column of taps."""
    outputs, channels = layer.weight.shape[:2]
    flat = layer.weight.reshape(outputs, channels, -1).astype(np.float64)
    count = max(dy for _, dy, _ in taps) - first + 1
    inputs = sorted({(plane + c, dx) for plane, _, dx in taps for c in range(channels)})
    index = {key: i for i, key in enumerate(inputs)}
    rows = np.zeros((outputs, len(inputs), count))
    for tap, (plane, dy, dx) in enumerate(taps):
        for c in range(channels):
            rows[:, index[plane + c, dx], dy - first] = flat[:, c, tap]
    by_product = np.einsum("pt,oit->opi", transforms(count)[1], rows)
    grouped = by_product.reshape(outputs // AT_ONCE, AT_ONCE, *by_product.shape[1:]).transpose(0, 2, 3, 1)
    offsets = [4 * (plane * sums.layout.stride + dx) for plane, dx in inputs]
    return {
        "weights": np.ascontiguousarray(grouped, np.float32),
        "offsets": np.array(offsets, np.int32),
        "inputs": len(inputs),
    }
