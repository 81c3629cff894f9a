"""Convolutions and linear layers on planes: sparse, or dense where zeros are too few."""

from dataclasses import dataclass, replace

import numpy as np

from .bands import for_bands, pixel_mask, with_rows_for
from .copies import External, Phases, copy_in, exchange, first_pixels, in_rows_of, split_phases
from .native import Kernel
from .operators import IDENTITY, Activation, need_taps, tap_places
from .plan import Choice, Plan
from .planes import Tensor, tile_sizes
from .products import PRODUCT, emit_dense, emit_sparse
from .program import Field, Program, Row
from .tuning import fastest
from .weights import Matrix, dense_rows, sparse_pairs

__all__ = ["SURELY_DENSE", "Convolution", "Residual", "as_phases", "convolve"]

CACHE_BYTES = 20 * 1024, 56 * 1024  # of inputs that a block's tile may take, where blocks are tried
AROUND = 3  # vectors around a tile that a kernel of more than one pixel reads
AHEAD = 2048  # bytes of pairs, which take longer than memory does to answer
MANY_PAIRS = 128 * 1024  # bytes: fewer may still be in a cache from the last image
SURELY_SPARSE, SURELY_DENSE = 0.85, 0.4  # beyond these sparsities there is nothing to measure
TILES_TRIED = 3


@dataclass(frozen=True)
class Convolution:
    """The weights and the geometry of a convolution; a linear layer is one of 1x1.

    Attributes:
        name: Of the layer, for the table of choices.
        weight: (outputs, inputs by group, kernel rows, kernel columns).
        padding: Rows above and columns before; what follows below and after, `size` decides.
        size: Rows and columns of the result.
    """

    name: str
    weight: np.ndarray
    bias: np.ndarray
    size: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    @property
    def sparsity(self) -> float:
        return 1 - np.count_nonzero(self.weight) / max(self.weight.size, 1)


@dataclass(frozen=True)
class Residual:
    """Planes to add: the first ones of the tensor, after some that are zero, and before others."""

    tensor: Tensor
    channels: int
    zeros_before: int = 0


def convolve(
    plan: Plan,
    source: Tensor | External | Phases,
    layer: Convolution,
    residual: Residual | None = None,
    activation: Activation = IDENTITY,
) -> Tensor:
    """activation(convolution(source) + residual)."""
    phases = with_rows_for(plan, as_phases(plan, source, layer.stride), layer.size[0])
    target = plan.tensor(len(layer.weight), *layer.size, band_rows=phases.tensor.layout.band_rows)
    target.nonnegative = activation.nonnegative
    taps = tap_places(phases, layer.weight.shape[2:], layer.dilation, layer.padding)
    need_taps(plan, phases.tensor, target, [(dy, dx) for _, dy, dx in taps])
    if residual is not None:
        residual = replace(residual, tensor=in_rows_of(plan, residual.tensor, target.layout.band_rows))
        plan.same_rows(residual.tensor, target)

    def emit(program: Program) -> None:
        if any(dy for _, dy, _ in taps):
            exchange(plan, program, phases.tensor)
        matrix = _matrix(layer, phases, taps, target)
        ends = _ends(phases.tensor, target, layer.bias, residual, activation)
        row, choice = _choose(plan, layer, matrix, target, ends, activation)
        plan.choices.append(choice)
        program.rows += for_bands(row, target)

    plan.later(emit)
    return target


def as_phases(plan: Plan, source: Tensor | External | Phases, stride: tuple[int, int] = (1, 1)) -> Phases:
    """An image taken apart by a stride; it may be so already."""
    if isinstance(source, Phases):
        return source
    if stride == (1, 1):
        tensor = copy_in(plan, source) if isinstance(source, External) else source
        return Phases(tensor, stride, tensor.layout.channels, set())
    return split_phases(plan, source, stride)


def _matrix(layer: Convolution, phases: Phases, taps: list[tuple[int, int, int]], target: Tensor) -> Matrix:
    outputs, inputs = layer.weight.shape[:2]
    layout = phases.tensor.layout
    channel = np.arange(inputs)[:, None] + np.array([first for first, _, _ in taps])[None]
    within = np.array([dy * layout.pitch + dx for _, dy, dx in taps])[None]
    offsets = 4 * (channel * layout.stride + within)
    group = np.arange(outputs) // (outputs // layer.groups)
    shifts = 4 * group * inputs * layout.stride
    weights = layer.weight.reshape(outputs, -1)
    channels = np.broadcast_to(np.arange(inputs)[:, None], offsets.shape)
    _check_reach(layer.name, target, offsets, shifts, phases.tensor)
    return Matrix(weights, offsets.reshape(-1), channels.reshape(-1), shifts)


def _check_reach(name: str, target: Tensor, offsets: np.ndarray, shifts: np.ndarray, source: Tensor) -> None:
    """Every vector that the kernel will read lies in the source's buffer, in the same band."""
    layout = source.layout
    span = 4 * (target.layout.vectors + target.layout.slack) * layout.lanes
    first = layout.first_pixel() + int(offsets.min())
    last = layout.first_pixel() + int(offsets.max()) + int(shifts.max()) + span
    size = 4 * layout.band_floats
    if first < 0 or last > size or size >= 2**31 or layout.bands != target.layout.bands:
        raise ValueError(f"{name} would read bytes {first} to {last} of a buffer of {size}")


def _ends(
    source: Tensor, target: Tensor, bias: np.ndarray, residual: Residual | None, activation: Activation
) -> dict[str, Field]:
    ends: dict[str, Field] = {
        "source": first_pixels(source),
        "target": first_pixels(target),
        "target_stride": 4 * target.layout.stride,
        "bias": np.ascontiguousarray(bias, np.float32),
        "mask": pixel_mask(target),
        **activation.fields(),
    }
    if residual is not None:
        layout = residual.tensor.layout
        planes = np.arange(target.layout.channels) - residual.zeros_before
        planes[(planes < 0) | (planes >= residual.channels)] = layout.channels  # the spare plane, which is zero
        ends |= {
            "residual": first_pixels(residual.tensor),
            "residual_planes": (4 * layout.stride * planes).astype(np.int32),
        }
    return ends


@dataclass(frozen=True)
class Way:
    """One way to compute a layer: its path, vectors in a tile, outputs at once, and inputs in a block."""

    path: str
    tile: int
    at_once: int
    block: int


_TUNED: dict[tuple[object, ...], tuple[Way, str]] = {}  # what was measured in this process, by geometry and zeros


def _choose(
    plan: Plan, layer: Convolution, matrix: Matrix, target: Tensor, ends: dict[str, Field], activation: Activation
) -> tuple[Row, Choice]:
    """The fastest way; layers of the same shapes and about as many zeros share what was measured."""
    sparsity = layer.sparsity
    zeros = round(20 * sparsity) if sparsity < SURELY_SPARSE else round(np.log2(max(1 - sparsity, 1e-6)))
    shape = (plan.target, target.layout, layer.weight.shape, layer.stride, layer.groups, activation.kind)
    key = (*shape, plan.threads, zeros, sparsity < SURELY_SPARSE)
    if key not in _TUNED:
        ways = _ways(plan, layer, matrix, target)
        rows = [_row(plan, way, matrix, target, ends, activation) for way in ways]
        best, times = fastest(plan.target, [[row] for row in rows]) if len(rows) > 1 else (0, [0.0])
        _TUNED[key] = ways[best], _comparison(ways, times)
    way, comparison = _TUNED[key]
    row = _row(plan, way, matrix, target, ends, activation)
    return row, Choice(layer.name, way.path, _reason(layer, way) + comparison, float(sparsity))


def _comparison(ways: list[Way], times: list[float]) -> str:
    best = {
        path: min((1e6 * t for w, t in zip(ways, times, strict=True) if w.path == path), default=None)
        for path in ("sparse", "dense")
    }
    if None in best.values():
        return ""
    return f": sparse {best['sparse']:.3g} us, dense {best['dense']:.3g} us"


def _reason(layer: Convolution, way: Way) -> str:
    if layer.groups > 1:
        return f"{layer.groups} groups: one output channel at a time"
    zeros = f"{layer.sparsity:.1%} zeros"
    return f"{zeros} are too few" if way.path == "dense" and layer.sparsity < SURELY_DENSE else zeros


def _ways(plan: Plan, layer: Convolution, matrix: Matrix, target: Tensor) -> list[Way]:
    registers, (outputs, inputs) = plan.target.registers, matrix.weights.shape
    ways = []
    if layer.groups > 1 or layer.sparsity >= SURELY_DENSE:
        sizes = tile_sizes(target.layout, registers)[:TILES_TRIED]
        channels = int(matrix.channels.max(initial=0)) + 1
        around = 0 if layer.weight.shape[2:] == (1, 1) else AROUND
        tile_bytes = 4 * plan.target.width * (max(sizes) + around)
        blocks = {channels}
        if layer.groups == 1:
            blocks |= {min(channels, max(8, size // tile_bytes)) for size in CACHE_BYTES}
        ways += [Way("sparse", size, 1, block) for block in sorted(blocks) for size in sizes]
    if layer.groups == 1 and layer.sparsity < SURELY_SPARSE:
        at_once = next(n for n in (4, 2, 1) if outputs % n == 0)
        size = tile_sizes(target.layout, max(1, (registers - at_once) // at_once))[0]
        ways += [Way("dense", size, at_once, block) for block in {inputs, min(inputs, 128)}]
    return ways


def _row(plan: Plan, way: Way, matrix: Matrix, target: Tensor, ends: dict[str, Field], activation: Activation) -> Row:
    tiles = -(-target.layout.vectors // way.tile)
    # With few tiles, outputs are shared more evenly by threads.
    by_tiles = tiles >= 4 * plan.threads or (tiles > 1 and tiles % plan.threads == 0)
    fields: dict[str, Field] = {"tiles": tiles, "by_tiles": int(by_tiles)}
    if way.path == "sparse":
        chains = 2 if 2 * way.tile <= plan.target.registers // 2 else 1
        pairs = sparse_pairs(matrix, way.block, chains)
        fields |= {"starts": pairs.starts, "weights": pairs.pairs, "blocks": pairs.blocks}
        fields["outputs"] = len(matrix.weights)
        ahead = AHEAD if tiles == 1 and pairs.pairs.nbytes > MANY_PAIRS else 0
        return Row(Kernel("sparse", PRODUCT, emit_sparse, (way.tile, chains, activation.kind, ahead)), ends | fields)
    dense = dense_rows(matrix, way.at_once, way.block)
    fields |= {"starts": dense.starts, "weights": dense.weights, "offsets": dense.offsets}
    fields |= {"blocks": dense.blocks, "block_inputs": dense.block_inputs}
    fields["outputs"] = len(matrix.weights) // way.at_once
    return Row(Kernel("dense", PRODUCT, emit_dense, (way.tile, way.at_once, activation.kind)), ends | fields)
