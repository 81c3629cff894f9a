"""magprune, and the application of masks.

A mask is a bool tensor of its weight's shape, True where the weight is kept. The weights that go are exactly the
k = round(s * n) smallest in magnitude, ties broken by index (the lower index goes first), so that every process, device
and run chooses the same masks. A share says how the k are shared out among layers, and a floor can spare the largest
weights of every row.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np  # noqa: TID251 - torch brings it along, and multiplies by a bool mask more slowly
import torch
from torch import Tensor

from .errors import PruningError
from .shards import Shards, local
from .shares import Layers, Share, uniform
from .topk import Masks, floor_kept, keep_largest, refuse_unranked

_FEW_THREADS = 2  # threads of torch up to which numpy, which has one, is as fast or faster
_BUFFER = 1024  # weights for which numpy widens the mask in one go: both fit into the innermost cache
_WIDENED = 1 << 20  # weights masked in one go on a CPU, where torch widens the mask to the integers' size first


@torch.no_grad()
def magprune(
    params: Mapping[str, Tensor], s: float, share: Share = uniform, *, row_floor: int = 0, out: Masks | None = None
) -> Masks:
    """Magnitude pruning: the masks that drop the fraction `s` of the weights of smallest magnitude.

    Args:
        params: Weights by name. Of weights that are split among processes (DTensors, as FSDP2 makes them) every
            process gets the masks of its parts, and all of them must call this.
        s: Sparsity, a fraction in [0, 1].
        share: How many weights go in each layer: `uniform` prunes every layer to `s`, as the paper does. Whatever it
            says, every layer keeps at least one weight.
        row_floor: Every row of a weight, a convolution's filter or a linear map's output, keeps at least so many of its
            largest weights. First come those, then the others by rank, so that the model still loses exactly
            round(s * n) weights. A layer that `s` would leave fewer than that keeps just them, and the other layers
            make up for it. 0 is the paper's magprune.
        out: Masks to overwrite instead of making new ones.

    Raises:
        PruningError: If a layer holds NaN or infinite weights, which have no rank, or if `s` leaves fewer weights than
            the floor of the rows keeps.
    """
    check_sparsity(s, row_floor)
    if row_floor:
        refuse_unreachable({name: p.shape for name, p in params.items()}, s, row_floor)
    parts = {name: local(p) for name, p in params.items()}
    shards = Shards.of(params.values())
    masks = {name: torch.empty_like(w, dtype=torch.bool) for name, w in parts.items()} if out is None else out
    prune_shares(Layers({name: p.shape for name, p in params.items()}, parts, row_floor, shards), s, share, masks)
    return masks


def prune_shares(layers: Layers, s: float, share: Share, masks: Masks) -> None:
    """Write the masks that drop, of every layer, the smallest scores, as many as its share of `s`."""
    lost = share(layers, s)
    for name, scores in layers.scores.items():
        keep_largest({name: scores}, lost[name], masks, layers.shards, layers.row_floor)


def refuse_unreachable(
    shapes: Mapping[str, Sequence[int]], s: float, row_floor: int, of: str = "", units: str = "weights"
) -> None:
    """Raise a PruningError if a sparsity leaves fewer weights than the rows keep.

    Args:
        shapes: Of the weights, or of tensors of other units.
        s: Sparsity.
        row_floor: Units that every row keeps.
        of: Says in the error of what the sparsity is.
        units: What they are called in it.
    """
    total = sum(math.prod(shape) for shape in shapes.values())
    held = sum(floor_kept(shape, row_floor) for shape in shapes.values())
    if total - round(s * total) < held:
        raise PruningError(
            f"sparsity {s:g}{of} leaves {total - round(s * total):,} of {total:,} {units}, and row_floor {row_floor} "
            f"keeps {held:,}: use a sparsity of at most {int(1e4 * (1 - held / total)) / 1e4:g}, or row_floor 0"
        )


@torch.no_grad()
def apply_masks_(params: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> None:
    """Theta <- theta * M, in place (line 7 of Algorithm 1).

    Multiplies the bits by 0 or 1: a pruned weight becomes +0.0, also where it was negative, infinite or NaN.
    """
    for name, p in params.items():
        bits = local(p).view({2: torch.int16, 4: torch.int32, 8: torch.int64}[p.element_size()])
        kept = masks[name].view(torch.uint8)
        if bits.device.type == "cpu" and torch.get_num_threads() <= _FEW_THREADS:
            array = bits.numpy()
            with _numpy_buffer(_BUFFER):
                array *= kept.numpy()
            torch.autograd.graph.increment_version(bits)  # as torch's own writes do
        elif bits.device.type == "cpu" and bits.numel() > _WIDENED:
            rows = max(_WIDENED * len(bits) // bits.numel(), 1)
            for some, mask in zip(torch.split(bits, rows), torch.split(kept, rows), strict=True):
                some.mul_(mask)
        else:
            bits.mul_(kept)


def kept(masks: Mapping[str, Tensor]) -> int:
    """Number of weights that the masks keep."""
    return sum(int(mask.count_nonzero()) for mask in masks.values())


def sparsity(masks: Mapping[str, Tensor]) -> float:
    """Fraction of the weights that the masks drop."""
    total = sum(mask.numel() for mask in masks.values())
    return 1 - kept(masks) / total if total else 0.0


def refuse_non_finite(params: Mapping[str, Tensor]) -> None:
    """Raise a PruningError that names the first layer with NaN or infinite weights."""
    refuse_unranked({name: local(p) for name, p in params.items()}, Shards.of(params.values()))


@contextmanager
def _numpy_buffer(size: int) -> Iterator[None]:
    before = np.setbufsize(size)  # of this thread
    try:
        yield
    finally:
        np.setbufsize(before)


def check_sparsity(s: float, row_floor: int) -> None:
    """Raise a PruningError if a sparsity is no fraction, or a floor no number of weights."""
    if not 0 <= s <= 1:
        raise PruningError(f"sparsity {s!r} is outside [0, 1]: give a fraction, such as 0.9 for 90 %")
    if row_floor < 0:
        raise PruningError(f"row_floor {row_floor!r} is below 0: give the weights that every row keeps, such as 1")
