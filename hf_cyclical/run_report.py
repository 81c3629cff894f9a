"""What the report of a run says at its start and at its end."""

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from .config import PruningConfig
from .core import TVPGD, Recipe, RecoveryTracker
from .core.processes import Shards, local
from .report import LayerReport, PruningReport


def new_report(
    pruning: PruningConfig, model: nn.Module, pruner: TVPGD, learning_rate: Callable[[int], float]
) -> PruningReport:
    """The report of a run that is about to start."""
    recipe = pruner.recipe
    return PruningReport(
        config=pruning.to_dict(),
        updates=recipe.T,
        dense_updates=recipe.cycles[0].start,
        parameters=sum(p.numel() for p in model.parameters()),
        start_sparsity=zeros(pruner.params) / sum(p.numel() for p in pruner.params.values()),
        schedule=[[t, learning_rate(t)] for t in _points(recipe)],
    )


def layer_reports(pruner: TVPGD, tracker: RecoveryTracker) -> list[LayerReport]:
    """What became of each layer."""
    kept, empty, regrown = pruner.kept_by_layer(), pruner.empty_by_layer(), tracker.regrown_by_layer
    return [
        LayerReport(
            name=name,
            shape=list(p.shape),
            weights=p.numel(),
            kept=kept[name],
            regrown=regrown[name],
            empty=empty[name],
        )
        for name, p in pruner.params.items()
    ]


def zeros(params: Mapping[str, Tensor]) -> int:
    """How many of the weights are zero, on all processes that share them."""
    nonzero = [int(local(p).count_nonzero()) for p in params.values()]
    device = local(next(iter(params.values()))).device
    return sum(p.numel() for p in params.values()) - sum(Shards.of(params.values()).totals(nonzero, device))


def _points(recipe: Recipe, most: int = 1000) -> list[int]:
    """Updates to sample a curve at: evenly, and both ends of every cycle."""
    ends = {t for cycle in recipe.cycles for t in (cycle.start, cycle.stop - 1)}
    return sorted({*range(0, recipe.T, max(recipe.T // most, 1)), *ends})
