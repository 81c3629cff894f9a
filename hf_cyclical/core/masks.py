"""magprune, local and global, and the application of masks.

A mask is a bool tensor of its weight's shape, True where the weight is kept. The weights that go are exactly the
k = round(s * n) smallest in magnitude, ties broken by index (the lower index goes first), so that every process, device
and run chooses the same masks.

The selection counts magnitudes by the bits of |w|, which order non-negative floats as integers do: two passes of
histograms find the k-th smallest exactly, whatever the number of ties, without sorting, without copying a layer, and
in a form (counts) that can be summed over processes.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from .errors import PruningError

Scope = Literal["local", "global"]
Masks = dict[str, Tensor]

_CHUNK = 1 << 18  # weights looked at in one go: bounds the temporary memory
_SMALL = 1 << 16  # weights up to which one selection beats histograms
_DIGIT = 16  # bits counted per pass: a histogram that stays in the cache
_KEYS = {torch.float32: (torch.int32, 31), torch.float64: (torch.int64, 63)}  # integer type and bits of |w|


@torch.no_grad()
def magprune(params: Mapping[str, Tensor], s: float, scope: Scope = "local", *, out: Masks | None = None) -> Masks:
    """Magnitude pruning: the masks that drop the fraction `s` of the weights of smallest magnitude.

    Args:
        params: Weights by name.
        s: Sparsity, a fraction in [0, 1].
        scope: "local" prunes every layer to `s`, "global" ranks the weights of all layers together. In both, every
            layer keeps at least one weight.
        out: Masks to overwrite instead of making new ones.

    Raises:
        PruningError: If a layer holds NaN or infinite weights, which have no rank.
    """
    masks = {name: torch.empty_like(p, dtype=torch.bool) for name, p in params.items()} if out is None else out
    if not 0 <= s <= 1:
        raise PruningError(f"sparsity {s!r} is outside [0, 1]: give a fraction, such as 0.9 for 90 %")
    if scope not in get_args(Scope):
        raise PruningError(f"scope {scope!r} is not one of {', '.join(get_args(Scope))}: choose one of them")
    groups = [[name] for name in params] if scope == "local" else [list(params)]
    for names in groups:
        _prune_group({name: params[name].detach() for name in names}, s, masks)
    return masks


@torch.no_grad()
def apply_masks_(params: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> None:
    """Theta <- theta * M, in place (line 7 of Algorithm 1).

    Multiplies the bits by 0 or 1: a pruned weight becomes +0.0, also where it was negative, infinite or NaN.
    """
    for name, p in params.items():
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[p.element_size()]
        p.detach().view(bits).mul_(masks[name].view(torch.uint8))


def kept(masks: Mapping[str, Tensor]) -> int:
    """Number of weights that the masks keep."""
    return sum(int(mask.count_nonzero()) for mask in masks.values())


def sparsity(masks: Mapping[str, Tensor]) -> float:
    """Fraction of the weights that the masks drop."""
    total = sum(mask.numel() for mask in masks.values())
    return 1 - kept(masks) / total if total else 0.0


def refuse_non_finite(params: Mapping[str, Tensor]) -> None:
    """Raise a PruningError that names the first layer with NaN or infinite weights."""
    for name, w in params.items():
        bad = w.numel() - int(torch.isfinite(w).count_nonzero())
        if bad:
            raise PruningError(
                f"{name} has {bad} NaN or infinite weights of {w.numel()}, which cannot be ranked: "
                "check the learning rate and the weights that the run started from"
            )


def _prune_group(params: dict[str, Tensor], s: float, masks: Masks) -> None:
    """Masks of layers that share one budget of k = round(s * n) weights."""
    total = sum(p.numel() for p in params.values())
    k = min(round(s * total), total - len(params))
    while True:
        _keep_largest({name: p.flatten() for name, p in params.items()}, k, masks)
        empty = [name for name in params if not masks[name].any()] if len(params) > 1 else []
        if not empty:
            return
        # A layer that would vanish keeps its largest weight, and the others make up for it. Doing so in rounds is the
        # same as exempting the largest weight of every layer from the start: one that was spared stays spared.
        for name in empty:
            p = params.pop(name)
            _keep_largest({name: p.flatten()}, p.numel() - 1, masks)
            k -= p.numel() - 1


def _keep_largest(layers: dict[str, Tensor], k: int, masks: Masks) -> None:
    """Write the masks that drop the `k` smallest of all the weights in `layers`, in order of magnitude and index."""
    if not all(_finite(w) for w in layers.values()):
        refuse_non_finite(layers)
    key = torch.float64 if any(w.dtype == torch.float64 for w in layers.values()) else torch.float32
    threshold, ties = _threshold(layers, k, key)
    for name, w in layers.items():
        mask = masks[name]
        flat = mask.view(-1) if mask.is_contiguous() else torch.empty_like(w, dtype=torch.bool)
        for bits, part in zip(_magnitudes(w, key), torch.split(flat, _CHUNK), strict=True):
            cut, ties = _cut(bits, threshold, ties)
            torch.gt(bits[:cut], threshold, out=part[:cut])
            torch.ge(bits[cut:], threshold, out=part[cut:])
        if not mask.is_contiguous():
            mask.copy_(flat.view(mask.shape))


def _cut(bits: Tensor, threshold: int, ties: int) -> tuple[int, int]:
    """Index before which the weights equal to the threshold go, and how many of the `ties` to drop are left then."""
    if not ties:
        return 0, 0
    equal = bits == threshold
    here = int(equal.count_nonzero())
    if here <= ties:
        return bits.numel(), ties - here
    return int(equal.nonzero()[ties]), 0


def _threshold(layers: dict[str, Tensor], k: int, key: torch.dtype) -> tuple[int, int]:
    """Bits of the smallest magnitude that stays, and how many of the weights equal to it go all the same."""
    total = sum(w.numel() for w in layers.values())
    nonzero = sum(int(w.count_nonzero()) for w in layers.values())
    zeros = total - nonzero  # a common tie: weights that were pruned and had no gradient
    if k <= zeros:
        return (1, 0) if k == zeros else (0, k)
    if total > _SMALL:
        value, dropped, equal = _select(layers, k, zeros, key)
    else:
        value, dropped, equal = _select_of_few(layers, k, key)
    return (value + 1, 0) if dropped == equal else (value, dropped)


def _select(layers: dict[str, Tensor], k: int, zeros: int, key: torch.dtype) -> tuple[int, int, int]:
    """Bits of the k-th smallest magnitude, how many weights equal to it are among the `k`, and how many there are.

    Finds the bits from the top, some at a time: the counts of the next digit, among the weights that share the digits
    found so far, tell which value of it the k-th smallest has.
    """
    _, width = _KEYS[key]
    value, remaining, equal = 0, k - zeros, 0
    for shift in reversed(range(0, width, _DIGIT)):
        top = shift + _DIGIT >= width
        counts = _digit_counts(layers, None if top else value, shift, zeros > 0, key)
        up_to = counts.cumsum(0)
        digit = int(torch.searchsorted(up_to, remaining))
        equal = int(counts[digit])
        remaining -= int(up_to[digit]) - equal
        value = (value << _DIGIT) + digit
    return value, remaining, equal


def _select_of_few(layers: dict[str, Tensor], k: int, key: torch.dtype) -> tuple[int, int, int]:
    bits = torch.cat([part for w in layers.values() for part in _magnitudes(w, key)])
    value = int(bits.kthvalue(k).values)
    return value, k - int((bits < value).count_nonzero()), int((bits == value).count_nonzero())


def _digit_counts(
    layers: dict[str, Tensor], above: int | None, shift: int, skip_zeros: bool, key: torch.dtype
) -> Tensor:
    """How many weights have each value of the digit at `shift`, among those with `above` as their higher digits."""
    radix = 1 << _DIGIT
    integer, _ = _KEYS[key]
    device = next(iter(layers.values())).device
    counts = torch.zeros(radix, dtype=torch.int64, device=device)
    # Weights that do not count go to bins of their own, in turns: counting into one bin over and over is slow.
    longest = min(_CHUNK, max(w.numel() for w in layers.values()))
    others = torch.arange(longest, dtype=integer, device=device).bitwise_and_(255).bitwise_or_(radix)
    for w in layers.values():
        for bits in _magnitudes(w, key):
            matching = bits > 0 if skip_zeros and not above else None
            if above is not None:
                same = (bits >> (shift + _DIGIT)) == above
                matching = same if matching is None else matching.logical_and_(same)
            digits = bits.bitwise_right_shift_(shift)
            if matching is not None:
                digits = torch.where(matching, digits.bitwise_and_(radix - 1), others[: len(digits)])
            counts += torch.bincount(digits, minlength=radix)[:radix].to(device)
    return counts


def _magnitudes(w: Tensor, key: torch.dtype) -> Iterator[Tensor]:
    """The bits of |w| as integers in the order of magnitude, chunk by chunk; 16-bit floats widen exactly."""
    integer, _ = _KEYS[key]
    chunks: Sequence[Tensor] = torch.split(w, _CHUNK)
    return (chunk.to(key).abs().view(integer) for chunk in chunks)


def _finite(w: Tensor) -> bool:
    low, high = torch.aminmax(w)  # NaN propagates to both
    return bool(torch.isfinite(low) and torch.isfinite(high))
