"""Groups of consecutive inputs, of which n:m keeps as many each: which go, and which come in their place."""

import math

import torch
from torch import Tensor

from .regions import Region

_ROWS_AT_ONCE = 1 << 20  # weights that are compared in one go: bounds the temporary memory
_SORTED_AT_ONCE = 1 << 18  # the same where they are sorted, which takes more


def prune_groups(region: Region, m: int, gone: int) -> None:
    """Write the masks that drop the `gone` smallest of every `m` inputs, of equal ones those of lower index."""
    groups = region.shape[1] // m
    step = max(_ROWS_AT_ONCE // max(math.prod(region.shape[1:]), 1), 1)
    for score, mask in zip(torch.split(region.score, step), torch.split(region.mask, step), strict=True):
        inputs = torch.unflatten(score.abs(), 1, (groups, m)).unbind(2)
        smaller = [torch.zeros_like(inputs[0], dtype=torch.uint8) for _ in inputs]
        for i in range(m):
            for j in range(i):
                wins = inputs[i] >= inputs[j]
                smaller[i] += wins
                smaller[j] += ~wins
        for kept, rank in zip(torch.unflatten(mask, 1, (groups, m)).unbind(2), smaller, strict=True):
            torch.ge(rank, gone, out=kept)


def grow_in_groups(score: Tensor, mask: Tensor, stay: Tensor, m: int) -> Tensor:
    """`stay` with as many more weights in every `m` consecutive inputs as it lacks, those with the largest scores.

    Args:
        score: By what weights come.
        mask: Which stayed before.
        stay: Which of those still stay.
        m: Inputs of a group.
    """
    step = max(_SORTED_AT_ONCE // max(score[:1].numel(), 1), 1)
    parts = [torch.split(tensor, step) for tensor in (score, mask, stay)]
    return torch.cat([_grow(*part, m=m) for part in zip(*parts, strict=True)]) if len(score) else stay


def _grow(score: Tensor, mask: Tensor, stay: Tensor, *, m: int) -> Tensor:
    grouped, before, now = (torch.unflatten(tensor, 1, (-1, m)) for tensor in (score, mask, stay))
    lacking = before.sum(2, keepdim=True) - now.sum(2, keepdim=True)
    free = torch.where(now, -1.0, grouped.abs().double())
    rank = free.argsort(dim=2, stable=True).argsort(dim=2)  # of equal ones the last come first, as everywhere
    return (now | (rank >= m - lacking)).flatten(1, 2)
