"""Which weights are the smallest: one exact selection over layers, whatever its scope.

The selection counts magnitudes by the bits of |w|, which order non-negative floats as integers do: two passes of
histograms find the k-th smallest exactly, whatever the number of ties, without sorting and without copying a layer.
Counts can be summed over processes, so that weights which are split among them get the masks that they would get in
one piece, and no process ever sees another's weights.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from .errors import PruningError
from .processes import Shards

Masks = dict[str, Tensor]

_CHUNK = 1 << 18  # weights looked at in one go: bounds the temporary memory
SMALL = 1 << 16  # weights up to which one selection beats histograms
_MANY_ZEROS = 0.75  # share of zeros from which it pays to copy the other weights
_DIGIT = 16  # bits counted per pass: a histogram that stays in the cache
_SENT_DIGIT = 11  # the same where histograms travel: one pass more, of 16 KiB instead of 512
_KEYS = {torch.float32: (torch.int32, 31), torch.float64: (torch.int64, 63)}  # integer type and bits of |w|


def prune_group(
    params: Mapping[str, Tensor],
    sizes: Mapping[str, int],
    k: int,
    least: Mapping[str, int],
    masks: Masks,
    shards: Shards,
) -> None:
    """Write the masks that drop the `k` smallest weights of all these layers, or fewer where each must keep `least`."""
    params = dict(params)
    k = min(k, sum(sizes[name] - least[name] for name in params))
    while True:
        keep_largest(params, k, masks, shards)
        short = _short_layers(params, least, masks, shards) if len(params) > 1 else []
        if not short:
            return
        # A layer that would keep too few keeps its largest, and the others make up for it. Doing so in rounds is the
        # same as exempting these weights from the start: the more the others lose, the less a short layer would keep.
        for name in short:
            keep_largest({name: params.pop(name)}, sizes[name] - least[name], masks, shards)
            k -= sizes[name] - least[name]


def _short_layers(params: Mapping[str, Tensor], least: Mapping[str, int], masks: Masks, shards: Shards) -> list[str]:
    kept = shards.totals([int(masks[name].count_nonzero()) for name in params], next(iter(params.values())).device)
    return [name for name, n in zip(params, kept, strict=True) if n < least[name]]


def keep_largest(params: Mapping[str, Tensor], k: int, masks: Masks, shards: Shards) -> None:
    """Write the masks that drop the `k` smallest of all these weights, in order of magnitude and index."""
    layers = {name: flat(p) for name, p in params.items()}
    key = torch.float64 if any(w.dtype == torch.float64 for w in layers.values()) else torch.float32
    threshold, ties = _threshold(layers, k, key, shards)
    shares = _shares_of_ties(layers, threshold, ties, key, shards) if shards.several else None
    for i, (name, p) in enumerate(params.items()):
        ties = _write(masks[name], p, threshold, shares[i] if shares else ties, key)


def _write(mask: Tensor, p: Tensor, threshold: int, ties: int, key: torch.dtype) -> int:
    """Write the mask of a layer, and return how many of the `ties` to drop are left for the layers after it."""
    order = range(p.dim()) if ties else _order_in_memory(p)  # only ties go by index
    w, mask = p.permute(*order).flatten(), mask.permute(*order)
    kept = mask.view(-1) if mask.is_contiguous() else torch.empty_like(w, dtype=torch.bool)
    for bits, part in zip(magnitudes(w, key), torch.split(kept, _CHUNK), strict=True):
        cut, ties = _cut(bits, threshold, ties)
        torch.gt(bits[:cut], threshold, out=part[:cut])
        torch.ge(bits[cut:], threshold, out=part[cut:])
    if not mask.is_contiguous():
        mask.copy_(kept.view(mask.shape))
    return ties


def flat(p: Tensor) -> Tensor:
    """The weights in one row, in their order in memory: a view, unless they are a part of something larger."""
    return p.permute(*_order_in_memory(p)).flatten()


def _order_in_memory(p: Tensor) -> Sequence[int]:
    """Dimensions from the outermost to the innermost; not those of the index if, say, channels are innermost."""
    return range(p.dim()) if p.is_contiguous() else sorted(range(p.dim()), key=p.stride, reverse=True)


def _shares_of_ties(
    layers: dict[str, Tensor], threshold: int, ties: int, key: torch.dtype, shards: Shards
) -> list[int]:
    """How many of the weights equal to the threshold go in each layer's part: by layer, then process, then index."""
    equal = [sum(int((bits == threshold).count_nonzero()) for bits in magnitudes(w, key)) for w in layers.values()]
    here = torch.tensor(equal, dtype=torch.int64, device=next(iter(layers.values())).device)
    earlier = shards.before(here)
    all_of = shards.sum(here.clone())
    first = all_of.cumsum(0) - all_of + earlier  # how many of the ties come before this part's
    return [min(max(ties - int(start), 0), n) for start, n in zip(first, equal, strict=True)]


def _cut(bits: Tensor, threshold: int, ties: int) -> tuple[int, int]:
    """Index before which the weights equal to the threshold go, and how many of the `ties` to drop are left then."""
    if not ties:
        return 0, 0
    equal = bits == threshold
    here = int(equal.count_nonzero())
    if here <= ties:
        return bits.numel(), ties - here
    return int(equal.nonzero()[ties]), 0


def _threshold(layers: dict[str, Tensor], k: int, key: torch.dtype, shards: Shards) -> tuple[int, int]:
    """Bits of the smallest magnitude that stays, and how many of the weights equal to it go all the same."""
    device = next(iter(layers.values())).device
    total, nonzero, bad = shards.totals(
        (
            sum(w.numel() for w in layers.values()),
            sum(int(w.count_nonzero()) for w in layers.values()),
            sum(not finite(w) for w in layers.values()),
        ),
        device,
    )
    if bad:
        refuse_unranked(layers, shards)
    zeros = total - nonzero  # a common tie: weights that were pruned and had no gradient
    if k <= zeros:
        return (1, 0) if k == zeros else (0, k)
    weights = list(layers.values())
    if zeros >= _MANY_ZEROS * total:
        weights = [part[part != 0] for w in weights for part in torch.split(w, _CHUNK)]
        total, k, zeros = nonzero, k - zeros, 0
    if total > SMALL or shards.several:
        value, dropped, equal = _select(weights, k, zeros, key, shards)
    else:
        value, dropped, equal = _select_of_few(weights, k, key)
    return (value + 1, 0) if dropped == equal else (value, dropped)


def _select(weights: list[Tensor], k: int, zeros: int, key: torch.dtype, shards: Shards) -> tuple[int, int, int]:
    """Bits of the k-th smallest magnitude, how many weights equal to it are among the `k`, and how many there are.

    Finds the bits from the top, some at a time: the counts of the next digit, among the weights that share the digits
    found so far, tell which value of it the k-th smallest has.
    """
    _, width = _KEYS[key]
    digit_bits = _SENT_DIGIT if shards.several else _DIGIT
    value, remaining, equal = 0, k - zeros, 0
    for shift in reversed(range(0, width, digit_bits)):
        top = shift + digit_bits >= width
        counts = shards.sum(_digit_counts(weights, None if top else value, shift, digit_bits, zeros > 0, key))
        up_to = counts.cumsum(0)
        digit = int(torch.searchsorted(up_to, remaining))
        equal = int(counts[digit])
        remaining -= int(up_to[digit]) - equal
        value = (value << digit_bits) + digit
    return value, remaining, equal


def _select_of_few(weights: list[Tensor], k: int, key: torch.dtype) -> tuple[int, int, int]:
    bits = torch.cat([part for w in weights for part in magnitudes(w, key)])
    value = int(bits.kthvalue(k).values)
    return value, k - int((bits < value).count_nonzero()), int((bits == value).count_nonzero())


def _digit_counts(
    weights: list[Tensor], above: int | None, shift: int, digit_bits: int, skip_zeros: bool, key: torch.dtype
) -> Tensor:
    """How many weights have each value of the digit at `shift`, among those with `above` as their higher digits."""
    radix = 1 << digit_bits
    integer, _ = _KEYS[key]
    device = weights[0].device
    counts = torch.zeros(radix, dtype=torch.int64, device=device)
    # Weights that do not count go to bins of their own, in turns: counting into one bin over and over is slow.
    longest = min(_CHUNK, max(w.numel() for w in weights))
    others = torch.arange(longest, dtype=integer, device=device).bitwise_and_(255).bitwise_or_(radix)
    for w in weights:
        for bits in magnitudes(w, key):
            matching = bits > 0 if skip_zeros and not above else None
            if above is not None:
                same = (bits >> (shift + digit_bits)) == above
                matching = same if matching is None else matching.logical_and_(same)
            digits = bits.bitwise_right_shift_(shift)
            if matching is not None:
                digits = torch.where(matching, digits.bitwise_and_(radix - 1), others[: len(digits)])
            counts += torch.bincount(digits, minlength=radix)[:radix].to(device)
    return counts


def magnitudes(w: Tensor, key: torch.dtype) -> Iterator[Tensor]:
    """The bits of |w| as integers in the order of magnitude, chunk by chunk; 16-bit floats widen exactly."""
    integer, _ = _KEYS[key]
    chunks: Sequence[Tensor] = torch.split(w, _CHUNK)
    return (chunk.to(key).abs().view(integer) for chunk in chunks)


def refuse_unranked(parts: Mapping[str, Tensor], shards: Shards) -> None:
    """Raise a PruningError that names the first layer with NaN or infinite weights."""
    device = next(iter(parts.values())).device
    sizes = shards.totals((w.numel() for w in parts.values()), device)
    finite = shards.totals((int(torch.isfinite(w).count_nonzero()) for w in parts.values()), device)
    for name, n, good in zip(parts, sizes, finite, strict=True):
        if good < n:
            raise PruningError(
                f"{name} has {n - good} NaN or infinite weights of {n}, which cannot be ranked: "
                "check the learning rate and the weights that the run started from"
            )


def finite(w: Tensor) -> bool:
    """Whether all of these weights have a rank."""
    if not w.numel():  # a process with no part of a small layer
        return True
    low, high = torch.aminmax(w)  # NaN propagates to both
    return bool(torch.isfinite(low) and torch.isfinite(high))
