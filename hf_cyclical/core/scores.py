"""Scores: what weights are ranked by, other than their magnitudes."""

import zlib
from collections.abc import Mapping

import torch
from torch import Tensor

from .choices import Score, View
from .errors import PruningError
from .moments import RANKING, momentum_name
from .shards import distributed

_EPSILON = 1e-8


def random_scores(seed: int) -> Score:
    """Numbers that follow from the seed and the layer's name: the same on every process and in every run."""

    def score(view: View) -> Mapping[str, Tensor]:
        scores = {}
        for name, p in view.params.items():
            generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
            scores[name] = distributed(torch.rand(p.shape, generator=generator), p)
        return scores

    return score


def gradient(view: View) -> Mapping[str, Tensor]:
    """The gradients of this update, which are dense: also of weights that are pruned.

    Raises:
        PruningError: If there are none at all.
    """
    if all(p.grad is None for p in view.params.values()):
        raise PruningError("there are no gradients to rank weights by: call the pruner's step before zero_grad")
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in view.params.items()}


def momentum(view: View) -> Mapping[str, Tensor]:
    """The optimizer's momentum; Adam's is divided by the root of its second moment, as in its step."""
    if view.optimizer is None:
        raise PruningError("weights cannot be ranked by a momentum without an optimizer: give TVPGD the optimizer")
    key = momentum_name(type(view.optimizer), RANKING)
    scores = {}
    for name, p in view.params.items():
        state = view.optimizer.state.get(p, {})
        first, second = state.get(key), state.get("exp_avg_sq")
        if first is None:
            first = torch.zeros_like(p)
        scores[name] = first if second is None else first / (second.sqrt() + _EPSILON)
    return scores
