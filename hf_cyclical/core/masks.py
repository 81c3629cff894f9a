"""magprune in its three scopes, and the application of masks.

A mask is a bool tensor of its weight's shape, True where the weight is kept. The weights that go are exactly the
k = round(s * n) smallest in magnitude, ties broken by index (the lower index goes first), so that every process, device
and run chooses the same masks. Scopes differ in how the k are shared out among layers, and a floor can spare the
largest weights of every row.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, get_args

import numpy as np  # noqa: TID251 - torch brings it along, and multiplies by a bool mask more slowly
import torch
from torch import Tensor

from .errors import PruningError
from .lamp import lamp_counts
from .shards import Shards, local
from .topk import Masks, floor_kept, keep_largest, prune_group, refuse_unranked

Scope = Literal["local", "global", "lamp"]

# Where a normalisation follows, a filter that has lost all weights has an output without variance, by whose root its
# gradients are divided. Pruned weights of such filters return far larger than all others, and without a floor they
# would crowd out whole layers, those without a normalisation first.
LAYER_FLOOR = 0.5

_NEAR = 1.5  # times the floor up to which a layer is near it
_FEW_THREADS = 2  # threads of torch up to which numpy, which has one, is as fast or faster
_BUFFER = 1024  # weights for which numpy widens the mask in one go: both fit into the innermost cache
_WIDENED = 1 << 20  # weights masked in one go on a CPU, where torch widens the mask to the integers' size first


@torch.no_grad()
def magprune(
    params: Mapping[str, Tensor],
    s: float,
    scope: Scope = "local",
    *,
    layer_floor: float | None = None,
    row_floor: int = 0,
    out: Masks | None = None,
) -> Masks:
    """Magnitude pruning: the masks that drop the fraction `s` of the weights of smallest magnitude.

    Args:
        params: Weights by name. Of weights that are split among processes (DTensors, as FSDP2 makes them) every
            process gets the masks of its parts, and all of them must call this.
        s: Sparsity, a fraction in [0, 1].
        scope: "local" prunes every layer to `s`, "global" ranks the weights of all layers together, "lamp" ranks them
            by magnitudes that are adapted to their layer (see `lamp`). In all, every layer keeps at least one weight.
        layer_floor: For "global": every layer keeps at least this fraction of an equal share of the weights that stay,
            that is of their number over that of the layers, or all its weights if it has fewer. A layer that the rank
            would take below it keeps its largest, and the other layers make up for them. 0.5 unless told, and 0, which
            turns it off, where there is a `row_floor`.
        row_floor: Every row of a weight, a convolution's filter or a linear map's output, keeps at least so many of its
            largest weights. First come those, then the others by rank, so that the model still
            loses exactly round(s * n) weights. In local scope a layer that `s` would leave fewer than that keeps just
            them, and the other layers make up for it. 0 is the paper's magprune.
        out: Masks to overwrite instead of making new ones.

    Raises:
        PruningError: If a layer holds NaN or infinite weights, which have no rank, or if `s` leaves fewer weights than
            the floor of the rows keeps.
    """
    _check(s, scope, layer_floor, row_floor)
    shards = Shards.of(params.values())
    sizes = {name: p.numel() for name, p in params.items()}
    parts = {name: local(p) for name, p in params.items()}
    masks = {name: torch.empty_like(w, dtype=torch.bool) for name, w in parts.items()} if out is None else out
    k = round(s * sum(sizes.values()))
    held = {name: floor_kept(p.shape, row_floor) for name, p in params.items()}
    if row_floor:
        refuse_unreachable(params, s, row_floor)
    if scope == "global":
        floor = default_layer_floor(row_floor) if layer_floor is None else layer_floor
        least = {name: max(n, held[name]) for name, n in least_kept(sizes, s, floor).items()}
        prune_group(parts, sizes, k, least, masks, shards, row_floor)
        return masks
    if scope == "lamp":
        if shards.several:
            raise PruningError(
                "scope 'lamp' is not made for weights that are split among processes: use DDP, or global"
            )
        dropped = lamp_counts(parts, k, row_floor)
    else:
        dropped = {name: sizes[name] - n for name, n in kept_locally(params, s, row_floor).items()}
    for name, w in parts.items():
        keep_largest({name: w}, dropped[name], masks, shards, row_floor)
    return masks


def default_layer_floor(row_floor: int) -> float:
    """The `layer_floor` of global scope unless told: none where every row has a floor already."""
    return 0.0 if row_floor else LAYER_FLOOR


def kept_locally(params: Mapping[str, Tensor], s: float, row_floor: int = 0) -> dict[str, int]:
    """How many of its weights each layer keeps in local scope.

    Without a floor of the rows, its share of its own. With one, an equal share of those that the model keeps: layers
    that this would leave fewer than their floor keep just that, and the others share what is left.
    """
    sizes = {name: p.numel() for name, p in params.items()}
    if not row_floor:
        return {name: max(n - round(s * n), 1) for name, n in sizes.items()}
    held = {name: floor_kept(p.shape, row_floor) for name, p in params.items()}
    stay = sum(sizes.values()) - round(s * sum(sizes.values()))
    shared = dict(sizes)
    while short := [name for name, n in shared.items() if stay * n < held[name] * sum(shared.values())]:
        stay -= sum(held[name] for name in short)
        shared = {name: n for name, n in shared.items() if name not in short}
    return held | _apportioned(stay, shared)


def _apportioned(total: int, sizes: Mapping[str, int]) -> dict[str, int]:
    """A number shared out in proportion to sizes: rounded down, and one more for the largest remainders."""
    whole = sum(sizes.values())
    shares = {name: total * n // whole for name, n in sizes.items()}
    by_remainder = sorted(sizes, key=lambda name: -(total * sizes[name] % whole))
    for name in by_remainder[: total - sum(shares.values())]:
        shares[name] += 1
    return shares


def refuse_unreachable(params: Mapping[str, Tensor], s: float, row_floor: int) -> None:
    """Raise a PruningError if a sparsity leaves fewer weights than the rows keep."""
    total = sum(p.numel() for p in params.values())
    held = sum(floor_kept(p.shape, row_floor) for p in params.values())
    if total - round(s * total) < held:
        raise PruningError(
            f"sparsity {s:g} leaves {total - round(s * total):,} of {total:,} weights, and row_floor {row_floor} keeps "
            f"{held:,}: use a sparsity of at most {int(1e4 * (1 - held / total)) / 1e4:g}, or row_floor 0"
        )


def least_kept(sizes: Mapping[str, int], s: float, layer_floor: float) -> dict[str, int]:
    """How many weights layers of these sizes keep at least, each, in a rank over all of them."""
    total = sum(sizes.values())
    share = (total - round(s * total)) / max(len(sizes), 1)
    return {name: min(max(int(layer_floor * share), 1), n) for name, n in sizes.items()}


def near_floor(kept: Mapping[str, int], sizes: Mapping[str, int], s: float, layer_floor: float) -> list[str]:
    """The layers that a rank over all of them has left little more than the fewest weights that it may."""
    least = least_kept(sizes, s, layer_floor)
    return [name for name, n in kept.items() if n < sizes[name] and n <= _NEAR * least[name]]


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


def _check(s: float, scope: Scope, layer_floor: float | None, row_floor: int) -> None:
    if not 0 <= s <= 1:
        raise PruningError(f"sparsity {s!r} is outside [0, 1]: give a fraction, such as 0.9 for 90 %")
    if scope not in get_args(Scope):
        raise PruningError(f"scope {scope!r} is not one of {', '.join(get_args(Scope))}: choose one of them")
    if row_floor < 0:
        raise PruningError(f"row_floor {row_floor!r} is below 0: give the weights that every row keeps, such as 1")
    if layer_floor is None:
        return
    if scope != "global":
        raise PruningError(f"layer_floor {layer_floor!r} has no meaning for scope {scope}: leave it out")
    if not 0 <= layer_floor <= 1:
        raise PruningError(f"layer_floor {layer_floor!r} is outside [0, 1]: give a fraction, such as {LAYER_FLOOR}")
