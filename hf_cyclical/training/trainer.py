"""CyclicalPruningTrainer: transformers' Trainer, whose optimizer step is one update of TV-PGD."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import EarlyStoppingCallback, ProgressCallback, TrainerCallback

from hf_cyclical.config import PruningConfig
from hf_cyclical.core import (
    TVPGD,
    PruningError,
    Recipe,
    RecoveryTracker,
    broadcast_buffers,
    layer_targets,
    local,
    prunable_parameters,
    refuse_non_finite,
    refuse_transposed,
    refuse_unfit,
)
from hf_cyclical.methods import METHODS
from hf_cyclical.reports import CycleReport, PruningReport, layer_reports, new_report, row_report, zeros

from .callbacks import CycleCallback, ProjectionCallback, PruningProgressCallback, TargetEarlyStoppingCallback
from .checkpoints import newest_checkpoint
from .distributed import copies, prepare_for_fsdp
from .ema import WeightAverage
from .guards import fitting, refuse_other_schedules, refuse_planned_optimizer, refuse_untested, unwrapped
from .pruning_state import check_state, has_state, load_state, save_state
from .pushing import PushingTrainer
from .run_settings import run_settings
from .tested_versions import warn_of_newer

logger = logging.getLogger(__name__)
warn_of_newer()

_GATED = "hf_cyclical.training.TargetEarlyStoppingCallback"
_NOT_METRICS = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time", "sparsity", "at_target")


class CyclicalPruningTrainer(PushingTrainer):
    """A Trainer that prunes: `CyclicalPruningTrainer(model, args, pruning=PruningConfig(...), ...)`.

    Everything else is as in `Trainer`, but for the learning rate, whose schedule comes from the recipe, so that it
    and the sparsity read one clock. With `target_sparsity=0` it is `Trainer`, but that it does not push.
    With `channels_last=True` images go into the model with their channels innermost: convolutions are faster so.

    Attributes:
        pruning: The configuration.
        pruner: TV-PGD with its masks; `None` before `train()`.
        tracker: The history of the masks.
        report: What happened so far.
        average: The moving average of the weights, if `ema_decay` asks for one and training runs.
    """

    def __init__(self, *args: Any, pruning: PruningConfig, **kwargs: Any) -> None:
        self.pruning = pruning
        self.whole_checkpoints = pruning.prunes
        self.pruner: TVPGD | None = None
        self.tracker: RecoveryTracker | None = None
        self.report: PruningReport | None = None
        self.average: WeightAverage | None = None
        self.sparsity = 0.0
        super().__init__(*args, **kwargs)
        if not pruning.prunes:
            return
        # Some image heads of transformers take **kwargs and drop them; the Trainer would then scale the loss wrongly.
        self.model_accepts_loss_kwargs = False
        refuse_other_schedules(self)
        refuse_untested(self)
        prepare_for_fsdp(self)
        self.callback_handler.callbacks.insert(0, ProjectionCallback(self))
        self.add_callback(CycleCallback(self))
        if self.pop_callback(ProgressCallback) is not None:
            self.add_callback(PruningProgressCallback(self))
        for callback in list(self.callback_handler.callbacks):
            if isinstance(callback, EarlyStoppingCallback):
                self.remove_callback(callback)
                self.add_callback(callback)

    def add_callback(self, callback: type[TrainerCallback] | TrainerCallback) -> None:
        """As in Trainer; an EarlyStoppingCallback only counts evaluations at the target sparsity."""
        callback = callback() if isinstance(callback, type) else callback
        if self.pruning.prunes and isinstance(callback, EarlyStoppingCallback):
            self.args.restore_callback_states_from_checkpoint = True  # else its patience would begin anew at a resume
        if self.pruning.prunes and type(callback) is EarlyStoppingCallback:
            callback = TargetEarlyStoppingCallback(callback.early_stopping_patience, callback.early_stopping_threshold)
        gated = isinstance(callback, TargetEarlyStoppingCallback) or not isinstance(callback, EarlyStoppingCallback)
        if self.pruning.prunes and not gated:
            name = type(callback).__name__
            raise PruningError(f"{name} would count models short of the target: derive it from {_GATED}")
        super().add_callback(callback)

    # What the recipe drives ------------------------------------------------------------------------------------------

    def plan(self) -> Recipe:
        """The recipe of the run that `train()` would start, with the number of updates that the data gives."""
        params = self._checked_parameters()
        recipe = self._recipe(self.set_initial_training_values(self.args, self.get_train_dataloader())[-1])
        refuse_planned_optimizer(self, recipe, params)
        return recipe

    @property
    def recipe(self) -> Recipe:
        """The recipe of the current run."""
        return self.pruner.recipe

    @property
    def cycle(self) -> int:
        """The number of the current cycle, from 1; 0 in a dense start."""
        return sum(cycle.start < self.state.global_step for cycle in self.recipe.cycles)

    def settings(self) -> dict[str, Any]:
        """What decides how a run goes, its data included, and must be the same where it is resumed."""
        return run_settings(self)

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> torch.optim.lr_scheduler.LRScheduler:
        """The one place where the number of updates is final: recipe, pruner and learning rate are made together."""
        if not self.pruning.prunes:
            return super().create_scheduler(num_training_steps, optimizer)
        params = self._checked_parameters()
        optimizer = optimizer or self.optimizer
        recipe = fitting(self._recipe(num_training_steps), self.pruning, optimizer, params)
        self.lr_scheduler = LambdaLR(optimizer, recipe.eta)
        self._created_lr_scheduler = True
        self.pruner = TVPGD(params, recipe, optimizer=unwrapped(optimizer), replicas=copies(self))
        self.tracker = RecoveryTracker(self.pruner.masks, params)
        self.average = WeightAverage(self._unwrapped(), self.pruning.ema_decay) if self.pruning.ema_decay else None
        self.report = new_report(self.pruning, self.model, self.pruner, self._learning_rate)
        self.sparsity = self.pruner.sparsity
        return self.lr_scheduler

    def prunable_parameters(self) -> dict[str, torch.nn.Parameter]:
        """The weights that are pruned, by their names in the unwrapped model."""
        return prunable_parameters(self._unwrapped(), self.pruning.include, self.pruning.exclude)

    def project(self, t: int) -> None:
        """Lines 4 to 8 of Algorithm 1 for update `t`."""
        if self.pruner.step(t):
            self.tracker.update(self.pruner.masks)
            self.sparsity = self.pruner.sparsity
            self.report.add_masks(t, self.sparsity, self.tracker.regrown)
        if self.average is not None:
            self.average.update(restart=any(t == cycle.start for cycle in self.recipe.cycles))

    def end_cycle(self, cycle: int) -> None:
        """Add the row of a cycle to the report; the evaluation that follows completes it."""
        recovery = self.tracker.end_cycle(self.pruner.masks)
        self.report.cycles.append(
            CycleReport(
                cycle=cycle,
                update=self.state.global_step,
                epoch=self.state.epoch,
                sparsity=self.sparsity,
                regrown=self.tracker.regrown,
                recovered=recovery.recovered,
                mask_distance=recovery.mask_distance,
                learning_rate=self._learning_rate(self.state.global_step - 1),
                at_target=self.pruner.at_target,
                **row_report(self.model, self.pruner, self.pruning.resolved("row_floor") or 0),
            )
        )

    def note_evaluation(self, metrics: dict[str, float]) -> None:
        """Add an evaluation of the run to the report, and to the row of the cycle that it closes."""
        values = {name.removeprefix("eval_"): value for name, value in metrics.items() if name.startswith("eval_")}
        values = {
            name: value
            for name, value in values.items()
            if isinstance(value, (int, float)) and not name.endswith(_NOT_METRICS)
        }
        update, report = self.state.global_step, self.report
        report.evaluations.append({"update": update, **values})
        if update <= report.dense_updates:
            report.dense = values
        elif report.cycles and report.cycles[-1].update == update:
            report.cycles[-1].metrics.update(values)

    # Trainer's own methods -------------------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As in Trainer. At the end the model is masked, and the report has its layers."""
        if self.pruning.prunes and resume_from_checkpoint is True:
            resume_from_checkpoint = newest_checkpoint(self.args.output_dir)
            if resume_from_checkpoint is None:
                raise PruningError(f"output_dir {self.args.output_dir!r} holds no checkpoint: start without resuming")
        if self.pruning.prunes and isinstance(resume_from_checkpoint, (str, Path)):
            resume_from_checkpoint = str(resume_from_checkpoint)
            shapes = {name: list(p.shape) for name, p in self.prunable_parameters().items()}
            check_state(resume_from_checkpoint, self.settings(), shapes, split=self.is_fsdp_enabled)
        output = super().train(resume_from_checkpoint, *args, **kwargs)
        if self.pruning.prunes:
            self.pruner.project_()  # gradual_recovery may have been stopped while its weights were dense
            if self.average is not None:
                self.average.apply_(self.pruner.masks)
                self.average = None
            broadcast_buffers(self._unwrapped())
            self.report.layers = layer_reports(self.pruner, self.tracker, self.pruning.resolved("row_floor") or 0)
            if not self.pruner.at_target:
                logger.warning(
                    "training ended at sparsity %.4f, short of the target %g", self.sparsity, self.recipe.s_t
                )
        return output

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluates the masked model, and adds its sparsity to the metrics."""
        if self.pruner is None:
            return super().evaluation_loop(*args, **kwargs)
        with self._as_result():
            broadcast_buffers(self._unwrapped())
            output = super().evaluation_loop(*args, **kwargs)
        prefix = kwargs.get("metric_key_prefix", "eval")
        output.metrics[f"{prefix}_sparsity"] = self.sparsity
        output.metrics[f"{prefix}_at_target"] = float(self.pruner.at_target)
        return output

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds cycle, sparsity and recovery to what is logged in training."""
        if self.pruner is not None and "loss" in logs:
            logs |= {"cycle": self.cycle, "sparsity": self.sparsity, "regrown": self.tracker.regrown}
            if self.report.cycles:
                logs["mask_distance"] = self.report.cycles[-1].mask_distance
        super().log(logs, start_time)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Saves the masked model; its average, if there is one, but for checkpoints, from which training goes on."""
        if self.pruner is None:
            return super().save_model(output_dir, _internal_call)
        if _internal_call:  # all processes are here; a user may save on one of them alone
            broadcast_buffers(self._unwrapped())
        with self._as_result(averaged=not _internal_call or self.args.save_only_model):
            return super().save_model(output_dir, _internal_call)

    def _run_epoch(self, **kwargs: Any) -> None:
        """As in Trainer, which would make one more update if it went on from the last one inside an epoch."""
        if self.pruner is not None and self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        super()._run_epoch(**kwargs)

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        if self.pruner is not None and not self.pruner.at_target:
            return False
        return super()._determine_best_metric(metrics, trial)

    def _load_best_model(self) -> None:
        super()._load_best_model()
        if self.pruner is not None:
            if has_state(self.state.best_model_checkpoint):
                load_state(self.state.best_model_checkpoint, self.pruner, self.tracker, self.average)
            else:  # save_only_model: the zeros are the masks, and the weights the average
                self.average = None
                for name, p in self.pruner.params.items():
                    self.pruner.masks[name].copy_(local(p) != 0)
            self.sparsity = self.pruner.sparsity
            self.report.chosen_update = self.state.best_global_step

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.pruner is not None:
            write = self.args.should_save
            save_state(output_dir, self.settings(), self.pruner, self.tracker, self.report, self.average, write=write)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if self.pruner is None or checkpoint is None:
            return
        updates = self.report.updates
        self.report = load_state(checkpoint, self.pruner, self.tracker, self.average)
        if self.report.updates != updates:
            raise PruningError(
                f"the checkpoint is of another run: it has {self.report.updates} updates there, {updates} here: resume "
                "with the data, batch size and epochs it was made with"
            )
        self.sparsity = self.pruner.sparsity

    # -----------------------------------------------------------------------------------------------------------------

    def _unwrapped(self) -> torch.nn.Module:
        return self.accelerator.unwrap_model(self.model, keep_torch_compile=False)

    @contextmanager
    def _as_result(self, averaged: bool = True) -> Iterator[None]:
        """The model as it is evaluated and saved: masked, and averaged if that was asked for."""
        average = self.average if averaged else None
        with average.applied(self.pruner.masks) if average else self.pruner.masked():
            yield

    def _recipe(self, updates: int) -> Recipe:
        epochs = None if self.args.max_steps > 0 else self.args.num_train_epochs
        return self.pruning.recipe(updates, epochs)

    def _checked_parameters(self) -> dict[str, torch.nn.Parameter]:
        params = self.prunable_parameters()
        refuse_non_finite(params)
        if not METHODS[self.pruning.method].keeps_zeros:
            row_floor, own = self.pruning.resolved("row_floor"), layer_targets(params, self.pruning.layer_targets)
            pattern = self.pruning.arrangement
            if self.pruning.pattern:
                refuse_transposed(self._unwrapped(), params)
                refuse_unfit(pattern, params)
            for name, target in own.items():
                pattern.refuse({name: params[name]}, target, row_floor, of=f" of {name}")
            others = {name: p for name, p in params.items() if name not in own}
            pattern.refuse(others, self.pruning.resolved("target_sparsity"), row_floor)
        elif not zeros(params):
            raise PruningError(
                f"method {self.pruning.method!r} keeps the zeros of a model, and this one has none: load a sparse model"
            )
        return params

    def _learning_rate(self, t: int) -> float:
        return self.lr_scheduler.base_lrs[0] * self.recipe.eta(t)
