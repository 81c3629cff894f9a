"""LAMP, layer-adaptive magnitudes (Lee et al., 2021): one rank over all layers that knows each layer's scale.

The score of a weight is its square over the sum of the squares of all weights of its layer that are not smaller, itself
included. It does not change with the scale of a layer, which means little where a normalisation follows, and the
largest weight of every layer has the highest score there is, 1.

Within a layer scores have the order of magnitudes. So the scores only decide how many weights each layer loses, and
which ones is the same selection as everywhere. Nor must all scores be known: of a large layer, counts and sums over
bins of similar magnitude bound them, and only the weights of bins that the cut may pass through are sorted. The sums
are of whole numbers, so that they are the same in whatever order a device adds them.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .processes import Shards
from .selection import SMALL, Masks, finite, flat, keep_largest, magnitudes, refuse_unranked

_SHIFT = 16  # bits of |w| that differ within a bin, 1/128 of a weight
_BINS = 0x7F80  # up to infinity
_MARGIN = 1e-6  # far above what rounding does to a score


class _Bins(NamedTuple):
    """A layer's weights in bins by magnitude: how many, bounds of their scores, the sum of squares in higher bins.

    Bins of a single weight each have no such sum, as the bounds are its score.
    """

    counts: Tensor
    lowest: Tensor
    highest: Tensor
    above: Tensor | None


def lamp_counts(layers: Mapping[str, Tensor], k: int) -> dict[str, int]:
    """How many weights each layer loses when the `k` of lowest score go; of equal scores, those of earlier layers."""
    if not all(finite(flat(w)) for w in layers.values()):
        refuse_unranked(layers, Shards())
    k = min(k, sum(w.numel() - 1 for w in layers.values()))  # the largest of each layer, whose score is 1, stay
    if not k:
        return dict.fromkeys(layers, 0)
    bins = {name: _bins(flat(w)) for name, w in layers.items()}
    low, high = _bracket(list(bins.values()), k)
    lost, scores = {}, {}
    for name, (counts, lowest, highest, above) in bins.items():
        first, last = int((highest < low).count_nonzero()), int((lowest <= high).count_nonzero())
        lost[name] = int(counts[:first].sum())
        if above is None:
            scores[name] = lowest[first:last]
        else:
            scores[name] = _scores(_between(layers[name], first, last), float(above[last - 1]))
    masks: Masks = {name: torch.empty_like(score, dtype=torch.bool) for name, score in scores.items()}
    sizes = {name: score.numel() for name, score in scores.items()}
    keep_largest(scores, k - sum(lost.values()), masks, Shards())
    return {name: lost[name] + sizes[name] - int(masks[name].count_nonzero()) for name in layers}


def _bracket(layers: Sequence[_Bins], k: int) -> tuple[float, float]:
    """Two scores between which the k-th lowest of all is, from the bounds of the scores in all bins."""
    counts = torch.cat([bins.counts for bins in layers])
    low = _at_rank(torch.cat([bins.lowest for bins in layers]), counts, k)
    high = _at_rank(torch.cat([bins.highest for bins in layers]), counts, k)
    return low * (1 - _MARGIN), high * (1 + _MARGIN)


def _at_rank(values: Tensor, counts: Tensor, k: int) -> float:
    values, order = values.sort()
    return float(values[torch.searchsorted(counts[order].cumsum(0), k)])


def _bins(w: Tensor) -> _Bins:
    if w.numel() <= SMALL or w.dtype == torch.float64:
        scores = _scores(w)
        return _Bins(torch.ones_like(scores, dtype=torch.int64), scores, scores, None)
    counts, offsets, squares = torch.zeros(3, _BINS, dtype=torch.int64, device=w.device)
    for bits in magnitudes(w, torch.float32):
        number = bits >> _SHIFT
        offset = bits.bitwise_and_((1 << _SHIFT) - 1).double()
        counts += torch.bincount(number, minlength=_BINS)
        offsets += torch.bincount(number, offset, minlength=_BINS).long()
        squares += torch.bincount(number, offset.square_(), minlength=_BINS).long()
    counts, offsets, squares = counts.cpu(), offsets.cpu(), squares.cpu()
    edges = (torch.arange(_BINS + 1, dtype=torch.int32) << _SHIFT).view(torch.float32).double()
    edges[-1] = 2.0**128
    lower, upper = edges[:-1], edges[1:]
    unit = (upper - lower) / (1 << _SHIFT)  # |w| = lower + unit * offset
    sums = counts * lower**2 + 2 * lower * unit * offsets + unit**2 * squares
    down_to = sums.flip(0).cumsum(0).flip(0)
    above = torch.cat([down_to[1:], down_to.new_zeros(1)])
    return _Bins(counts, (lower**2 / down_to).nan_to_num(0.0, posinf=2.0), upper**2 / (upper**2 + above), above)


def _between(w: Tensor, first: int, last: int) -> Tensor:
    """The weights in a range of bins."""
    parts = []
    for bits in magnitudes(flat(w), torch.float32):
        parts.append(bits[(bits >= first << _SHIFT) & (bits < last << _SHIFT)])
    return torch.cat(parts).view(torch.float32)


def _scores(w: Tensor, above: float = 0.0) -> Tensor:
    """The scores of a layer's weights in ascending order; `above` is the sum of the squares of all larger ones."""
    values = w.abs().sort(descending=True).values.cpu().double()
    if w.dtype == torch.float64 and values.any():
        values /= 2.0 ** (math.frexp(float(values[0]))[1] - 1)  # exact, and keeps the squares finite
    squares = values.square_()
    scores = (squares / squares.cumsum(0).add_(above)).nan_to_num_(0.0)
    if not above:
        scores[:1] = 1.0  # also in a layer of zeros
    return scores.flip(0)
