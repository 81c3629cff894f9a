"""What the report of a run says at its start and at its end."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedConfig

from hf_cyclical.config import PruningConfig
from hf_cyclical.core import MASK, TVPGD, Recipe, RecoveryTracker, Shards, local

from .report import LayerReport, PruningReport


def new_report(
    pruning: PruningConfig, model: nn.Module, pruner: TVPGD, learning_rate: Callable[[int], float]
) -> PruningReport:
    """The report of a run that is about to start."""
    recipe, config = pruner.recipe, pruning.to_dict()
    if config["mask_momentum"]:
        config["mask_momentum"] = recipe.moments is MASK
    return PruningReport(
        config=config,
        updates=recipe.T,
        dense_updates=recipe.cycles[0].start,
        parameters=sum(p.numel() for p in model.parameters()),
        start_sparsity=zeros(pruner.params) / sum(p.numel() for p in pruner.params.values()),
        schedule=tuple((t, learning_rate(t)) for t in _points(recipe)),
    )


def layer_reports(pruner: TVPGD, tracker: RecoveryTracker, row_floor: int) -> tuple[LayerReport, ...]:
    """What became of each layer."""
    kept, rows, regrown = pruner.kept_by_layer(), pruner.rows_by_layer(row_floor), tracker.regrown_by_layer
    return tuple(
        LayerReport(
            name=name,
            shape=tuple(p.shape),
            weights=p.numel(),
            kept=kept[name],
            regrown=regrown[name],
            empty=rows[name].empty,
            at_floor=rows[name].at_floor,
        )
        for name, p in pruner.params.items()
    )


def row_report(model: nn.Module, pruner: TVPGD, row_floor: int) -> dict[str, Any]:
    """What a cycle's row says of the rows of all weights, and of the largest weight."""
    rows = pruner.rows_by_layer(row_floor)
    head = classifier(model, pruner.params)
    return {
        "empty_rows": sum(layer.empty for layer in rows.values()),
        "floor_rows": sum(layer.at_floor for layer in rows.values()),
        "largest": pruner.largest,
        "classes": rows[head].rows - rows[head].empty if head else None,
    }


def classifier(model: nn.Module, params: Mapping[str, Tensor]) -> str | None:
    """The last of the model's weights that has a row for every class; None if there is none, or it is not pruned."""
    config = getattr(model, "config", None)
    if not isinstance(config, PreTrainedConfig):
        return None
    found = [name for name, p in model.named_parameters() if p.dim() > 1 and len(p) == config.num_labels]
    return found[-1] if found and found[-1] in params else None


def zeros(params: Mapping[str, Tensor]) -> int:
    """How many of the weights are zero, on all processes that share them."""
    nonzero = [int(local(p).count_nonzero()) for p in params.values()]
    device = local(next(iter(params.values()))).device
    return sum(p.numel() for p in params.values()) - sum(Shards.of(params.values()).totals(nonzero, device))


def _points(recipe: Recipe, most: int = 1000) -> list[int]:
    """Updates to sample a curve at: evenly, and both ends of every cycle."""
    ends = {t for cycle in recipe.cycles for t in (cycle.start, cycle.stop - 1)}
    return sorted({*range(0, recipe.T, max(recipe.T // most, 1)), *ends})
