"""Operators on vectors and tokens: a linear layer on one vector, such as a classifier's head, and attention."""

import numpy as np

from .attention import ATTENTION, ROWS, emit_attention
from .bands import pixel_mask
from .copies import first_pixels
from .layers import SURELY_DENSE
from .matvec import MATVEC, emit_dense_matvec, emit_sparse_matvec
from .native import Kernel
from .operators import Activation
from .plan import Choice, Plan
from .planes import Tensor, tile_sizes
from .program import Field, Program, Row
from .tuning import fastest
from .weights import matvec_pairs, matvec_rows

__all__ = ["attend", "matvec"]


def matvec(
    plan: Plan, name: str, source: Tensor, weight: np.ndarray, bias: np.ndarray, activation: Activation
) -> Tensor:
    """A linear layer on one pixel per channel. The result is flat."""
    outputs, inputs = weight.shape
    target = plan.tensor(outputs, 1, 1, flat=True)
    sparsity = 1 - np.count_nonzero(weight) / max(weight.size, 1)
    lanes = plan.target.width
    tile = 4 if outputs > 2 * lanes else 1

    def emit(program: Program) -> None:
        stride = 4 * source.layout.stride
        ends = {
            "source": first_pixels(source),
            "source_stride": stride,
            "target": first_pixels(target),
            "inputs": inputs,
        }
        ends |= activation.fields()
        group = tile * lanes
        padded = np.zeros(-(-outputs // group) * group, np.float32)
        padded[:outputs] = bias
        dense = {"outputs": len(padded) // group, "weights": matvec_rows(weight, group), "bias": padded}
        rows = [Row(Kernel("matvec", MATVEC, emit_dense_matvec, (tile, activation.kind)), ends | dense)]
        if sparsity >= SURELY_DENSE:
            pairs, starts = matvec_pairs(weight, stride)
            sparse = {"outputs": outputs, "weights": pairs, "starts": starts, "bias": padded}
            rows.append(Row(Kernel("sparse matvec", MATVEC, emit_sparse_matvec, (activation.kind,)), ends | sparse))
        best, times = fastest(plan.target, [[row] for row in rows]) if len(rows) > 1 else (0, [0.0])
        why = f"{sparsity:.0%} zeros"
        why += (
            ": sparse {1:.3g} us, dense {0:.3g} us".format(*(1e6 * t for t in times))
            if len(rows) > 1
            else " are too few"
        )
        plan.choices.append(Choice(name, ("dense", "sparse")[best], why, sparsity))
        program.rows.append(rows[best])

    plan.later(emit)
    return target


def attend(
    plan: Plan,
    query: tuple[Tensor, int],
    key: tuple[Tensor, int],
    value: tuple[Tensor, int],
    heads: int,
    features: int,
    scale: float,
) -> Tensor:
    """Softmax attention; each of query, key and value is a tensor and the channel where its first head begins."""
    channels, tokens = heads * features, query[0].layout.width
    target = plan.tensor(channels, 1, tokens)
    scratch = plan.tensor(1, 1, 1)

    def emit(program: Program) -> None:
        layout = target.layout
        most = plan.target.registers // ROWS if plan.target.width == 16 else 2
        tile = tile_sizes(layout, most)[0]
        tiles = -(-layout.vectors // tile)
        scratch_vectors = (tokens + ROWS) * tile
        scratch.layout = type(layout)(plan.threads, 1, scratch_vectors * layout.lanes, layout.lanes)
        ends: dict[str, Field] = {"target": first_pixels(target), "target_stride": 4 * layout.stride}
        for name, (tensor, channel) in (("query", query), ("key", key), ("value", value)):
            ends |= {name: first_pixels(tensor, channel), f"{name}_stride": 4 * tensor.layout.stride}
        program.add(
            Kernel("attention", ATTENTION, emit_attention, (tile,)),
            **ends,
            heads=heads,
            features=features,
            tokens=tokens,
            tiles=tiles,
            scale=float(scale),
            scratch=first_pixels(scratch),
            scratch_bytes=4 * scratch.layout.stride,
            mask=pixel_mask(target),
        )

    plan.later(emit)
    return target
