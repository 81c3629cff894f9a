"""A run in progress: the pruner, the history of its masks, the average of the weights, and the report so far."""

import dataclasses
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from hf_cyclical.config import PruningConfig
from hf_cyclical.core import TVPGD, DivergedError, PruningError, Recipe, RecoveryTracker, any_process, finite, local
from hf_cyclical.reports import CycleReport, layer_reports, new_report, row_report

from .ema import WeightAverage
from .pruning_state import has_state, load_state, save_state
from .recalibration import Recalibration

logger = logging.getLogger(__name__)

_NOT_METRICS = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time", "sparsity", "at_target")
_STATISTICS = ("running_mean", "running_var")  # other buffers may hold infinities, such as masks of attention


class PruningRun:
    """What a run of `CyclicalPruningTrainer` has and its Trainer has not.

    Args:
        model: The model, without wrappers.
        pruning: The configuration, fitted to the number of updates.
        params: The weights to prune, by name.
        recipe: What is to happen at each update.
        optimizer: The optimizer, without Accelerate's wrapper.
        learning_rate: The learning rate of each update.
        replicas: The processes that each hold a copy of the weights, if there are several.
        recalibration: Re-estimates BatchNorm's statistics of the pruned model, if that was asked for.

    Attributes:
        pruner: TV-PGD with its masks.
        tracker: The history of the masks.
        average: The moving average of the weights, if `ema_decay` asks for one, until the run ends.
        report: What happened so far.
        sparsity: Of the masks.
    """

    def __init__(
        self,
        model: nn.Module,
        pruning: PruningConfig,
        params: dict[str, nn.Parameter],
        recipe: Recipe,
        *,
        optimizer: torch.optim.Optimizer,
        learning_rate: Callable[[int], float],
        replicas: dist.ProcessGroup | None,
        recalibration: Recalibration | None = None,
    ) -> None:
        self.model, self.pruning = model, pruning
        self.row_floor = pruning.resolved("row_floor") or 0
        self.learning_rate, self.recalibration = learning_rate, recalibration
        self.pruner = TVPGD(params, recipe, optimizer=optimizer, replicas=replicas)
        self.tracker = RecoveryTracker(self.pruner.masks, params)
        self.average = WeightAverage(model, pruning.ema_decay, recipe) if pruning.ema_decay else None
        self.report = new_report(pruning, model, self.pruner, learning_rate)
        self.sparsity = self.pruner.sparsity

    @property
    def recipe(self) -> Recipe:
        """The recipe."""
        return self.pruner.recipe

    @property
    def _used_average(self) -> WeightAverage | None:
        """The average, from the first update of pruning on: until then the model is the dense one, which teaches."""
        return self.average if self.pruner.t > self.recipe.cycles[0].start else None

    def cycle(self, updates: int) -> int:
        """The number of the cycle after so many updates, from 1; 0 in a dense start."""
        return sum(cycle.start < updates for cycle in self.recipe.cycles)

    def logs(self, updates: int) -> dict[str, float]:
        """What is logged in training after so many updates."""
        values = {"cycle": self.cycle(updates), "sparsity": self.sparsity, "regrown": self.tracker.regrown}
        if self.tracker.cycles_ended:
            values["mask_distance"] = self.tracker.mask_distance(self.pruner.masks)
        return values

    def project(self, t: int) -> None:
        """Lines 4 to 8 of Algorithm 1 for update `t`."""
        if self.pruner.step(t):
            self.refuse_replaced()
            self.tracker.update(self.pruner.masks)
            self.sparsity = self.pruner.sparsity
            self.report = self.report.with_masks(t, self.sparsity, self.tracker.regrown)
        if self.average is not None:
            self.average.update(t)

    def refuse_replaced(self) -> None:
        """Raise a PruningError if a weight is no longer the one that the masks are of."""
        if self.pruner.shards.several:  # FSDP puts others in their place for a while
            return
        now = dict(self.model.named_parameters(remove_duplicate=False))
        if lost := [name for name, p in self.pruner.params.items() if now.get(name) is not p]:
            raise PruningError(f"{lost[0]} was replaced during training, and stays dense: change weights in place")

    def refuse_non_finite(self) -> None:
        """Raise a DivergedError if a weight of the model, pruned or not, or a statistic of it is NaN or infinite."""
        tensors = dict(self.model.named_parameters())
        device = local(next(iter(tensors.values()))).device
        tensors |= {name: b for name, b in self.model.named_buffers() if name.endswith(_STATISTICS)}
        broken = [name for name, tensor in tensors.items() if not finite(local(tensor))]
        if any_process(bool(broken), device):
            raise DivergedError(
                f"{broken[0] if broken else 'a weight of another process'} is NaN or infinite after update "
                f"{self.pruner.t:,}: lower the learning rate or clip gradients, and start from a checkpoint before it"
            )

    def end_cycle(self, cycle: int, update: int, epoch: float) -> None:
        """Add the row of a cycle to the report; the evaluation that follows completes it."""
        recovery = self.tracker.end_cycle(self.pruner.masks)
        self.report = self.report.with_cycle(
            CycleReport(
                cycle=cycle,
                update=update,
                epoch=epoch,
                sparsity=self.sparsity,
                regrown=self.tracker.regrown,
                recovered=recovery.recovered,
                mask_distance=recovery.mask_distance,
                learning_rate=self.learning_rate(update - 1),
                at_target=self.pruner.at_target,
                layers=layer_reports(self.pruner, self.tracker, self.row_floor),
                **row_report(self.model, self.pruner, self.row_floor),
            )
        )

    def note_evaluation(self, update: int, metrics: dict[str, Any]) -> None:
        """Add an evaluation to the report, and to the row of the cycle that it closes."""
        values = {name.removeprefix("eval_"): value for name, value in metrics.items() if name.startswith("eval_")}
        numbers = {name: value for name, value in values.items() if isinstance(value, (int, float))}
        kept = {name: value for name, value in numbers.items() if not name.endswith(_NOT_METRICS)}
        self.report = self.report.with_evaluation(update, kept)

    @contextmanager
    def as_result(self, averaged: bool = True) -> Iterator[None]:
        """The model as it is evaluated and saved: masked, and averaged and recalibrated if that was asked for.

        A checkpoint, from which training resumes, is only masked: `averaged` is False.
        """
        average = self._used_average if averaged else None
        statistics = self.recalibration if averaged and self.sparsity else None  # a dense model keeps its own
        weights = average.applied(self.pruner.masks) if average else self.pruner.masked()
        with weights, statistics.applied() if statistics else nullcontext():
            yield

    def finish(self) -> None:
        """Leave the model as the result of the run, and the layers in the report."""
        self.refuse_replaced()
        self.pruner.project_()  # gradual_recovery may have been stopped while its weights were dense
        if self._used_average is not None:
            self.average.apply_(self.pruner.masks)
        self.average = None
        if self.recalibration is not None:
            self.recalibration.apply_()
            self.recalibration = None
        self.refuse_non_finite()
        self.report = dataclasses.replace(self.report, layers=layer_reports(self.pruner, self.tracker, self.row_floor))
        if not self.pruner.at_target:
            s = self.sparsity, self.recipe.s_t
            logger.warning("training ended at sparsity %.4f, short of the target %g", *s)

    def save(self, folder: str, settings: dict[str, Any], *, write: bool) -> None:
        """Write all that the run needs to resume into a checkpoint."""
        save_state(folder, settings, self.pruner, self.tracker, self.report, self.average, write=write)

    def resume(self, folder: str) -> None:
        """Take over the state of a checkpoint whose weights the model has."""
        report = load_state(folder, self.pruner, self.tracker, self.average)
        if report.updates != self.report.updates:
            raise PruningError(
                f"the checkpoint is of another run: it has {report.updates} updates there, {self.report.updates} here: "
                "resume with the data, batch size and epochs it was made with"
            )
        self.report, self.sparsity = report, self.pruner.sparsity

    def take_best(self, folder: str | Path, update: int) -> None:
        """Take over the masks of the best checkpoint, whose weights the model has."""
        if has_state(folder):
            load_state(folder, self.pruner, self.tracker, self.average)
        else:  # save_only_model: the zeros are the masks, and the weights the average
            self.average = None
            for name, p in self.pruner.params.items():
                self.pruner.masks[name].copy_(local(p) != 0)
        self.sparsity = self.pruner.sparsity
        self.report = dataclasses.replace(self.report, chosen_update=update)
