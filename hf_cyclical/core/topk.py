"""Which weights are the smallest: one exact selection over layers, whatever its scope.

A row floor spares the largest weights of every row from it: a filter or an output that has lost all its weights has no
gradient to return by, or, in front of a normalisation, one that is far too large.

The selection counts magnitudes by the bits of |w|, which order non-negative floats as integers do: two passes of
histograms find the k-th smallest exactly, whatever the number of ties, without sorting and without copying a layer.
Counts can be summed over processes, so that weights which are split among them get the masks that they would get in
one piece, and no process ever sees another's weights.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .errors import DivergedError
from .shards import Shards

Masks = dict[str, Tensor]

_CHUNK = 1 << 18  # weights looked at in one go: bounds the temporary memory
SMALL = 1 << 16  # weights up to which one selection beats histograms
_MANY_ZEROS = 0.75  # share of zeros from which it pays to copy the other weights
_DIGIT = 16  # bits counted per pass: a histogram that stays in the cache
_SENT_DIGIT = 11  # the same where histograms travel: one pass more, of 16 KiB instead of 512
_KEYS = {torch.float32: (torch.int32, 31), torch.float64: (torch.int64, 63)}  # integer type and bits of |w|


class Ranked(NamedTuple):
    """Weights in the order of their index, some of which may be spared: they count as larger than all others.

    Attributes:
        w: The weights, flat.
        spared: Indices, ascending.
    """

    w: Tensor
    spared: Tensor | None = None

    def parts(self) -> Iterator[Tensor]:
        """The weights chunk by chunk, infinite where they are spared."""
        chunks: Sequence[Tensor] = torch.split(self.w, _CHUNK)
        if self.spared is None:
            return iter(chunks)
        starts = torch.arange(0, len(chunks) + 1, device=self.w.device) * _CHUNK
        cuts = torch.searchsorted(self.spared, starts).tolist()
        return (
            chunk.index_fill(0, self.spared[cuts[i] : cuts[i + 1]] - i * _CHUNK, torch.inf)
            for i, chunk in enumerate(chunks)
        )

    def magnitudes(self, key: torch.dtype) -> Iterator[Tensor]:
        """The bits of |w| as integers in the order of magnitude, chunk by chunk; 16-bit floats widen exactly."""
        integer, _ = _KEYS[key]
        return (chunk.to(key).abs().view(integer) for chunk in self.parts())

    def count_nonzero(self) -> int:
        """How many are not zero, with those that are spared."""
        zeros_spared = 0 if self.spared is None else int((self.w[self.spared] == 0).count_nonzero())
        return int(self.w.count_nonzero()) + zeros_spared


def _device(layers: Mapping[str, Ranked]) -> torch.device:
    return next(iter(layers.values())).w.device


def prune_group(
    params: Mapping[str, Tensor],
    sizes: Mapping[str, int],
    k: int,
    least: Mapping[str, int],
    masks: Masks,
    shards: Shards,
    row_floor: int = 0,
) -> None:
    """Write the masks that drop the `k` smallest weights of all these layers, or fewer where each must keep `least`."""
    params = dict(params)
    k = min(k, sum(sizes[name] - least[name] for name in params))
    while True:
        keep_largest(params, k, masks, shards, row_floor)
        short = _short_layers(params, least, masks, shards) if len(params) > 1 else []
        if not short:
            return
        # A layer that would keep too few keeps its largest, and the others make up for it. Doing so in rounds is the
        # same as exempting these weights from the start: the more the others lose, the less a short layer would keep.
        for name in short:
            keep_largest({name: params.pop(name)}, sizes[name] - least[name], masks, shards, row_floor)
            k -= sizes[name] - least[name]


def _short_layers(params: Mapping[str, Tensor], least: Mapping[str, int], masks: Masks, shards: Shards) -> list[str]:
    kept = shards.totals([int(masks[name].count_nonzero()) for name in params], next(iter(params.values())).device)
    return [name for name, n in zip(params, kept, strict=True) if n < least[name]]


def keep_largest(params: Mapping[str, Tensor], k: int, masks: Masks, shards: Shards, row_floor: int = 0) -> None:
    """Write the masks that drop the `k` smallest of all these weights, in order of magnitude and index.

    With a `row_floor`, the `k` smallest except those that are among the `row_floor` largest of their row.
    """
    layers = {name: Ranked(p.flatten()) for name, p in params.items()}
    _keep_ranked(layers, k, masks, shards)
    if row_floor and shards.totals([_short_rows(params, masks, row_floor)], _device(layers)) != [0]:
        # Where no row falls short, the largest weights contain all that the floor spares. Else these count as larger
        # than all others.
        spared = {name: Ranked(layers[name].w, row_tops(p, row_floor)) for name, p in params.items()}
        _keep_ranked(spared, k, masks, shards)


def row_tops(w: Tensor, n: int, among: Tensor | None = None) -> Tensor:
    """Flat indices, ascending, of the `n` largest weights of every row, of ties the last; none of a vector.

    Those for which the mask `among` is True come before all others.
    """
    rows = w.flatten(1) if w.dim() > 1 else w.new_empty(0, 1)
    masks = None if among is None or w.dim() < 2 else among.flatten(1)
    columns = rows.shape[1]
    found = [torch.empty(0, dtype=torch.int64, device=w.device)]
    for start in range(0, len(rows), step := max(_CHUNK // max(columns, 1), 1)):
        part = rows[start : start + step].flip(1).abs()  # argmax takes the first of ties
        if masks is not None:
            part.masked_fill_(~masks[start : start + step].flip(1), -0.5)
        first = torch.arange(start + 1, start + len(part) + 1, device=w.device)[:, None] * columns - 1
        for _ in range(min(n, columns)):
            top = part.argmax(1, keepdim=True)
            found.append(first - top)
            part.scatter_(1, top, -1.0)
    return torch.cat([index.flatten() for index in found]).sort().values


def floor_kept(shape: Sequence[int], row_floor: int) -> int:
    """How many weights of a layer of this shape stay at least: those of its rows, or one of a vector."""
    return shape[0] * min(row_floor, math.prod(shape[1:])) if len(shape) > 1 else 1


def _short_rows(params: Mapping[str, Tensor], masks: Masks, row_floor: int) -> int:
    """How many rows keep fewer weights than the floor."""
    short = 0
    for rows in (masks[name].flatten(1) for name, w in params.items() if w.dim() > 1 and w.numel()):
        kept = rows.any(1) if row_floor == 1 else rows.sum(1)
        short += int((kept < min(row_floor, rows.shape[1])).count_nonzero())
    return short


def _keep_ranked(layers: dict[str, Ranked], k: int, masks: Masks, shards: Shards) -> None:
    key = torch.float64 if any(layer.w.dtype == torch.float64 for layer in layers.values()) else torch.float32
    threshold, ties = _threshold(layers, k, key, shards)
    shares = _shares_of_ties(layers, threshold, ties, key, shards) if shards.several else None
    for i, (name, layer) in enumerate(layers.items()):
        mask = masks[name]
        ties = shares[i] if shares else ties
        flat = mask.view(-1) if mask.is_contiguous() else torch.empty_like(layer.w, dtype=torch.bool)
        for bits, part in zip(layer.magnitudes(key), torch.split(flat, _CHUNK), strict=True):
            cut, ties = _cut(bits, threshold, ties)
            torch.gt(bits[:cut], threshold, out=part[:cut])
            torch.ge(bits[cut:], threshold, out=part[cut:])
        if not mask.is_contiguous():
            mask.copy_(flat.view(mask.shape))


def _shares_of_ties(
    layers: dict[str, Ranked], threshold: int, ties: int, key: torch.dtype, shards: Shards
) -> list[int]:
    """How many of the weights equal to the threshold go in each layer's part: by layer, then process, then index."""
    equal = [sum(int((bits == threshold).count_nonzero()) for bits in w.magnitudes(key)) for w in layers.values()]
    here = torch.tensor(equal, dtype=torch.int64, device=_device(layers))
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


def _threshold(layers: dict[str, Ranked], k: int, key: torch.dtype, shards: Shards) -> tuple[int, int]:
    """Bits of the smallest magnitude that stays, and how many of the weights equal to it go all the same."""
    total, nonzero, bad = shards.totals(
        (
            sum(layer.w.numel() for layer in layers.values()),
            sum(layer.count_nonzero() for layer in layers.values()),
            sum(not finite(layer.w) for layer in layers.values()),
        ),
        _device(layers),
    )
    if bad:
        refuse_unranked({name: layer.w for name, layer in layers.items()}, shards)
    zeros = total - nonzero  # a common tie: weights that were pruned and had no gradient
    if k <= zeros:
        return (1, 0) if k == zeros else (0, k)
    weights = list(layers.values())
    if zeros >= _MANY_ZEROS * total:
        weights = [Ranked(part[part != 0]) for layer in weights for part in layer.parts()]
        total, k, zeros = nonzero, k - zeros, 0
    if total > SMALL or shards.several:
        value, dropped, equal = _select(weights, k, zeros, key, shards)
    else:
        value, dropped, equal = _select_of_few(weights, k, key)
    return (value + 1, 0) if dropped == equal else (value, dropped)


def _select(weights: list[Ranked], k: int, zeros: int, key: torch.dtype, shards: Shards) -> tuple[int, int, int]:
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


def _select_of_few(weights: list[Ranked], k: int, key: torch.dtype) -> tuple[int, int, int]:
    bits = torch.cat([part for layer in weights for part in layer.magnitudes(key)])
    value = int(bits.kthvalue(k).values)
    return value, k - int((bits < value).count_nonzero()), int((bits == value).count_nonzero())


def _digit_counts(
    weights: list[Ranked], above: int | None, shift: int, digit_bits: int, skip_zeros: bool, key: torch.dtype
) -> Tensor:
    """How many weights have each value of the digit at `shift`, among those with `above` as their higher digits."""
    radix = 1 << digit_bits
    integer, _ = _KEYS[key]
    device = weights[0].w.device
    counts = torch.zeros(radix, dtype=torch.int64, device=device)
    # Weights that do not count go to bins of their own, in turns: counting into one bin over and over is slow.
    longest = min(_CHUNK, max(layer.w.numel() for layer in weights))
    others = torch.arange(longest, dtype=integer, device=device).bitwise_and_(255).bitwise_or_(radix)
    for layer in weights:
        for bits in layer.magnitudes(key):
            matching = bits > 0 if skip_zeros and not above else None
            if above is not None:
                same = (bits >> (shift + digit_bits)) == above
                matching = same if matching is None else matching.logical_and_(same)
            digits = bits.bitwise_right_shift_(shift)
            if matching is not None:
                digits = torch.where(matching, digits.bitwise_and_(radix - 1), others[: len(digits)])
            counts += torch.bincount(digits, minlength=radix)[:radix].to(device)
    return counts


def refuse_unranked(parts: Mapping[str, Tensor], shards: Shards) -> None:
    """Raise a DivergedError that names the first layer with NaN or infinite weights."""
    device = next(iter(parts.values())).device
    sizes = shards.totals((w.numel() for w in parts.values()), device)
    finite = shards.totals((int(torch.isfinite(w).count_nonzero()) for w in parts.values()), device)
    for name, n, good in zip(parts, sizes, finite, strict=True):
        if good < n:
            raise DivergedError(
                f"{name} has {n - good} NaN or infinite weights of {n}, which cannot be ranked: "
                "check the learning rate and the weights that the run started from"
            )


def finite(w: Tensor) -> bool:
    """Whether all of these weights have a rank."""
    if not w.numel():  # a process with no part of a small layer
        return True
    low, high = torch.aminmax(torch.view_as_real(w) if w.is_complex() else w)  # NaN propagates to both
    return bool(torch.isfinite(low) and torch.isfinite(high))
