"""Which layers and targets are refused before training starts."""

from collections.abc import Mapping

from torch import nn

from hf_cyclical.config import PruningConfig
from hf_cyclical.core import PruningError, layer_targets, refuse_non_finite, refuse_transposed, refuse_unfit
from hf_cyclical.methods import METHODS
from hf_cyclical.reports import zeros

_UNFIT = {
    "has no weights: exclude it": lambda p: p.numel() == 0,
    "is on the meta device, without values: load the model's weights first": lambda p: p.is_meta,
    "has complex weights, which masks are not made for: exclude it": lambda p: p.is_complex(),
}


def refuse_layers(model: nn.Module, params: Mapping[str, nn.Parameter], pruning: PruningConfig) -> None:
    """Raise a PruningError if these weights cannot be pruned as asked."""
    for name, p in params.items():
        if problem := next((words for words, has in _UNFIT.items() if has(p)), None):
            raise PruningError(f"{name} {problem}")
    refuse_non_finite(params)
    if METHODS[pruning.method].keeps_zeros:
        if not zeros(params):
            raise PruningError(
                f"method {pruning.method!r} keeps the zeros of a model, and this one has none: load a sparse model"
            )
        return
    row_floor, pattern = pruning.resolved("row_floor"), pruning.arrangement
    if pruning.pattern:
        refuse_transposed(model, params)
        refuse_unfit(pattern, params)
    own = layer_targets(params, pruning.layer_targets)
    for name, target in own.items():
        pattern.refuse({name: params[name]}, target, row_floor, of=f" of {name}")
    others = {name: p for name, p in params.items() if name not in own}
    target = pruning.resolved("target_sparsity")
    pattern.refuse(others, target, row_floor)
    total = sum(p.numel() for p in others.values())
    if (kept := total - round(target * total)) < len(others):
        raise PruningError(
            f"target_sparsity {target:g} leaves {kept:,} of {total:,} weights, and each of {len(others)} layers keeps "
            "one at least: lower it, or exclude small layers"
        )
