"""LAMP, layer-adaptive magnitudes (Lee et al., 2021): one rank over all layers that knows each layer's scale.

The score of a weight is its square over the sum of the squares of all weights of its layer that are not smaller, itself
included. It does not change with the scale of a layer, which means little where a normalisation follows, and the
largest weight of every layer has the highest score there is, 1.

Within a layer scores have the order of magnitudes. So the scores only decide how many weights each layer loses, and
which ones is the same selection as everywhere. Nor must all scores be known: of a large layer, counts and sums over
bins of similar magnitude bound them, and only the weights of bins that the cut may pass through are sorted. The sums
are of whole numbers, so that they are the same in whatever order a device adds them, or processes that each hold a
part. Of these all get the magnitudes that are sorted, and no others; of small layers and of float64, that is all.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .shards import Shards
from .topk import SMALL, Masks, Ranked, finite, keep_largest, refuse_unranked, row_tops

_SHIFT = 16  # bits of |w| that differ within a bin, 1/128 of a weight
_BINS = 0x7F80  # up to infinity
_MARGIN = 1e-6  # far above what rounding does to a score


class _Bins(NamedTuple):
    """A layer's weights in bins by magnitude: how many may go, bounds of their scores, the sum of squares above.

    Bins of a single weight each have no such sum, as the bounds are its score.
    """

    counts: Tensor
    lowest: Tensor
    highest: Tensor
    above: Tensor | None


def lamp_counts(
    layers: Mapping[str, Tensor], sizes: Mapping[str, int], k: int, row_floor: int, shards: Shards
) -> dict[str, int]:
    """How many weights each layer loses when the `k` of lowest score go; of equal scores, those of earlier layers.

    With a `row_floor`, the `k` of lowest score except those that are among the `row_floor` largest of their row.

    Args:
        layers: The part of each layer that is here.
        sizes: How many weights it has in one piece.
        k: How many go.
        row_floor: How many every row keeps at least.
        shards: The processes that hold the parts.
    """
    device = next(iter(layers.values())).device
    if shards.totals([sum(not finite(w) for w in layers.values())], device) != [0]:
        refuse_unranked(layers, shards)
    spared = {name: _spared(w, row_floor) for name, w in layers.items()}
    stay = shards.totals((len(some) for some in spared.values()), device)
    k = min(k, sum(n - max(kept, 1) for n, kept in zip(sizes.values(), stay, strict=True)))
    if not k:
        return dict.fromkeys(layers, 0)
    bins = {name: _bins(w.flatten(), spared[name], sizes[name], shards) for name, w in layers.items()}
    low, high = _bracket(list(bins.values()), k)
    lost, scores = {}, {}
    for name, (counts, lowest, highest, above) in bins.items():
        first, last = int((highest < low).count_nonzero()), int((lowest <= high).count_nonzero())
        lost[name] = int(counts[:first].sum())
        if above is None:
            scores[name] = lowest[first:last]
        else:
            inside, stays = (shards.gather(_between(w, first, last)) for w in (layers[name].flatten(), spared[name]))
            scores[name] = _scores(inside, stays, float(above[last - 1]))
    masks: Masks = {name: torch.empty_like(score, dtype=torch.bool) for name, score in scores.items()}
    keep_largest(scores, k - sum(lost.values()), masks, Shards())
    return {name: lost[name] + scores[name].numel() - int(masks[name].count_nonzero()) for name in layers}


def _spared(w: Tensor, row_floor: int) -> Tensor:
    """The weights that the floor of the rows spares; the largest of the layer, whose score is 1, stays anyway."""
    return w.flatten()[row_tops(w, row_floor)] if row_floor else w.new_empty(0)


def _bracket(layers: Sequence[_Bins], k: int) -> tuple[float, float]:
    """Two scores between which the k-th lowest of all is, from the bounds of the scores in all bins."""
    counts = torch.cat([bins.counts for bins in layers])
    low = _at_rank(torch.cat([bins.lowest for bins in layers]), counts, k)
    high = _at_rank(torch.cat([bins.highest for bins in layers]), counts, k)
    return low * (1 - _MARGIN), high * (1 + _MARGIN)


def _at_rank(values: Tensor, counts: Tensor, k: int) -> float:
    values, order = values.sort()
    return float(values[torch.searchsorted(counts[order].cumsum(0), k)])


def _bins(w: Tensor, spared: Tensor, size: int, shards: Shards) -> _Bins:
    if size <= SMALL or w.dtype == torch.float64:
        key = torch.promote_types(w.dtype, torch.float32)  # which every backend can send
        scores = _scores(shards.gather(w.to(key)), shards.gather(spared.to(key)))
        return _Bins(torch.ones_like(scores, dtype=torch.int64), scores, scores, None)
    sums = torch.zeros(4, _BINS, dtype=torch.int64, device=w.device)
    counts, offsets, squares, stay = sums
    for bits in Ranked(w).magnitudes(torch.float32):
        number = bits >> _SHIFT
        offset = bits.bitwise_and_((1 << _SHIFT) - 1).double()
        counts += torch.bincount(number, minlength=_BINS)
        offsets += torch.bincount(number, offset, minlength=_BINS).long()
        squares += torch.bincount(number, offset.square_(), minlength=_BINS).long()
    for bits in Ranked(spared).magnitudes(torch.float32):
        stay += torch.bincount(bits >> _SHIFT, minlength=_BINS)
    counts, offsets, squares, stay = shards.sum(sums).cpu()
    edges = (torch.arange(_BINS + 1, dtype=torch.int32) << _SHIFT).view(torch.float32).double()
    edges[-1] = 2.0**128
    lower, upper = edges[:-1], edges[1:]
    unit = (upper - lower) / (1 << _SHIFT)  # |w| = lower + unit * offset
    in_bin = counts * lower**2 + 2 * lower * unit * offsets + unit**2 * squares
    down_to = in_bin.flip(0).cumsum(0).flip(0)
    above = torch.cat([down_to[1:], down_to.new_zeros(1)])
    return _Bins(counts - stay, (lower**2 / down_to).nan_to_num(0.0, posinf=2.0), upper**2 / (upper**2 + above), above)


def _between(w: Tensor, first: int, last: int) -> Tensor:
    """The magnitudes of the weights in a range of bins."""
    parts = []
    for bits in Ranked(w).magnitudes(torch.float32):
        parts.append(bits[(bits >= first << _SHIFT) & (bits < last << _SHIFT)])
    return torch.cat(parts).view(torch.float32)


def _scores(w: Tensor, spared: Tensor, above: float = 0.0) -> Tensor:
    """The scores of a layer's weights that may go, in ascending order.

    Args:
        w: The weights.
        spared: Those of them that stay in any case. Of equal weights they are the ones with the highest scores.
        above: The sum of the squares of all larger weights.
    """
    values = _descending(w)
    may_go = torch.ones(len(values), dtype=torch.bool)
    may_go[_positions(_descending(spared), values)] = False
    if w.dtype == torch.float64 and values.any():
        values /= 2.0 ** (math.frexp(float(values[0]))[1] - 1)  # exact, and keeps the squares finite
    squares = values.square_()
    scores = (squares / squares.cumsum(0).add_(above)).nan_to_num_(0.0)
    if not above:
        scores[:1] = 1.0  # also in a layer of zeros
    return scores[may_go].flip(0)


def _descending(w: Tensor) -> Tensor:
    return w.abs().sort(descending=True).values.cpu().double()


def _positions(some: Tensor, values: Tensor) -> Tensor:
    """Where some of the values are among all of them, both descending; of equal ones, the first places."""
    first = torch.searchsorted(-values, -some)
    nth = torch.arange(len(some)) - torch.searchsorted(-some, -some)
    return first + nth
