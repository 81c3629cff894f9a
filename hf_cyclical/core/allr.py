"""ALLR (Zimmer et al., 2023): how far below the largest learning rate retraining starts, by what pruning removes."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from .choices import Choice, View
from .masks import sparsity


@torch.no_grad()
def allr(params: Mapping[str, Tensor], choose: Choice, s: float, least: float = 0.0) -> float:
    """The part of the largest learning rate: what pruning takes of the norm, relative to the most that it could take.

    With a fraction f of the weights pruned that is |theta - theta * M| / (|theta| sqrt(f)): 1 if all weights are of
    one size.

    Args:
        params: The weights as they come, by name.
        choose: Which of them stay.
        s: At which sparsity.
        least: The part that it is at least. The authors take the epochs of retraining over those of dense training.
    """
    masks = {name: torch.empty_like(p, dtype=torch.bool) for name, p in params.items()}
    choose(View(params, masks, 0), s, masks)
    norm = sum(float(p.double().square().sum()) for p in params.values())  # squares of half precision overflow
    lost = sum(float(p[~masks[name]].double().square().sum()) for name, p in params.items())
    most = norm * sparsity(masks)
    return min(max(math.sqrt(lost / most) if most else 0.0, least), 1.0)
