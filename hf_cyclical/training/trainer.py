"""CyclicalPruningTrainer: transformers' Trainer, whose optimizer step is one update of TV-PGD."""

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import EarlyStoppingCallback, ProgressCallback, TrainerCallback

from hf_cyclical import hub
from hf_cyclical.config import PruningConfig, as_config
from hf_cyclical.core import TVPGD, PruningError, Recipe, broadcast_buffers, prunable_parameters
from hf_cyclical.reports import PruningReport

from .callbacks import CycleCallback, ProjectionCallback, PruningProgressCallback, TargetEarlyStoppingCallback
from .checkpoints import newest_checkpoint
from .data_guards import WholeDataTrainer
from .distillation import Distillation
from .distributed import copies, prepare_for_fsdp
from .guards import fitting, refuse_other_schedules, refuse_planned_optimizer, refuse_untested, unwrapped
from .layer_guards import refuse_layers
from .pruning_state import check_state
from .pushing import Publisher
from .rates import rates_of
from .recalibration import Recalibration
from .run import PruningRun
from .run_settings import run_settings
from .tested_versions import warn_of_newer
from .together import on_main

logger = logging.getLogger(__name__)
warn_of_newer()

Result = TypeVar("Result")
_GATED = "hf_cyclical.training.TargetEarlyStoppingCallback"


class CyclicalPruningTrainer(WholeDataTrainer):
    """A Trainer that prunes: `CyclicalPruningTrainer(model, args, pruning=PruningConfig(...), ...)`.

    Everything else is as in `Trainer`, except the learning rate, whose schedule comes from the recipe, so that it
    and the sparsity read one clock. With `target_sparsity=0` it is `Trainer`, except that it does not push.
    With `channels_last=True` images go into the model with their channels innermost: convolutions are faster so.

    Attributes:
        pruning: The configuration.
        run: The run in progress or just finished; `None` before `train()`.
        about: What the report and the card are to say about the run beyond what is known here: dataset, model, command.
    """

    def __init__(self, *args: Any, pruning: PruningConfig | Mapping[str, Any], **kwargs: Any) -> None:
        self.pruning = as_config(pruning)
        self.whole_checkpoints = self.pruning.prunes
        self.run: PruningRun | None = None
        self.about: dict[str, Any] = {}
        self._publisher = Publisher(self)
        self._planned: tuple[tuple[int, float | None, PruningConfig], Recipe] | None = None
        super().__init__(*args, **kwargs)
        hub.refuse_settings(self.args)
        if not self.pruning.prunes:
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

    @property
    def pruner(self) -> TVPGD | None:
        """TV-PGD with its masks; `None` before `train()`."""
        return self.run and self.run.pruner

    @property
    def report(self) -> PruningReport | None:
        """What happened so far; `None` before `train()`."""
        return self.run and self.run.report

    def add_callback(self, callback: type[TrainerCallback] | TrainerCallback) -> None:
        """As in Trainer; an EarlyStoppingCallback only counts evaluations at the target sparsity."""
        callback = callback() if isinstance(callback, type) else callback
        if self.pruning.prunes and isinstance(callback, EarlyStoppingCallback):
            self.args.restore_callback_states_from_checkpoint = True  # else its patience would restart at a resume
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
        recipe = self._recipe(self._updates())
        refuse_planned_optimizer(self, recipe, params)
        return recipe

    def fitted(self) -> PruningConfig:
        """The configuration with numbers in place of auto, for the number of updates that the data gives."""
        return self.pruning.fitted(self._updates(), self._epochs) if self.pruning.automatic else self.pruning

    def settings(self) -> dict[str, Any]:
        """What decides how a run goes, its data included, and must be the same where it is resumed."""
        return run_settings(self, self.run.pruning if self.run and self.is_in_train else self.fitted())

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> torch.optim.lr_scheduler.LRScheduler:
        """The one place where the number of updates is final: recipe, pruner and learning rate are made together."""
        if not self.pruning.prunes:
            return super().create_scheduler(num_training_steps, optimizer)
        params = self._checked_parameters()
        optimizer = optimizer or self.optimizer
        recipe = fitting(self._recipe(num_training_steps), self.pruning, optimizer, params)
        self.lr_scheduler = scheduler = LambdaLR(optimizer, eta := rates_of(self, recipe))
        self._created_lr_scheduler = True
        self.run = PruningRun(
            self.unwrapped(),
            self.pruning.fitted(num_training_steps, self._epochs),
            params,
            recipe,
            optimizer=unwrapped(optimizer),
            learning_rate=lambda t: scheduler.base_lrs[0] * eta(t),
            replicas=copies(self),
            recalibration=Recalibration.of(self),
        )
        self.distillation = Distillation.of(self.pruning, recipe)
        return self.lr_scheduler

    def prunable_parameters(self) -> dict[str, torch.nn.Parameter]:
        """The weights that are pruned, by their names in the unwrapped model."""
        return prunable_parameters(self.unwrapped(), self.pruning.include, self.pruning.exclude)

    def unwrapped(self) -> torch.nn.Module:
        """The model without what Accelerate and torch.compile put around it."""
        return self.accelerator.unwrap_model(self.model, keep_torch_compile=False)

    # What leaves the run ---------------------------------------------------------------------------------------------

    def save_pruned(self, folder: str | Path | None = None) -> None:
        """Save the model of a finished run with its report, figure, sparsity record and card; nothing is pushed.

        To be called on all processes. `hf_cyclical.verify(folder)` and `hf_cyclical.load(folder)` need nothing else.

        Args:
            folder: Where to; `output_dir` of the arguments if not given.
        """
        self._publisher.save(folder or self.args.output_dir)

    def push_to_hub(self, *args: Any, **kwargs: Any) -> Any:
        """Push the pruned model, its report, card and sparsity record, as `hub.push` does; see there.

        To be called on all processes: the main one pushes, the others wait for it. Each argument can be left out.

        Args:
            args: `repo_id`, "user/name"; `hub_model_id` of the arguments if not given.
            kwargs: `repo_id`, `private`, `packed`, `license` and `commit_message`, as of `hub.push`. Of Trainer's
                other arguments those that fill its card have no effect, as this card is filled from the report.

        Returns:
            The address of the repository, on the main process.

        Raises:
            PruningError: If there is no finished run or the push fails, on every process. The model is then kept in a
                temporary folder, and the error of the main process has the command that pushes it from there.
        """
        return self._publisher.push(*args, **kwargs)

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Makes the repository, private unless `private` or `hub_private_repo` is False; the former decides."""
        self.push_in_progress = None
        self.hub_model_id = self._publisher.create_repository(private)

    def on_main(self, action: Callable[[], Result]) -> Result | None:
        """What an action gives on the main process, while the others wait; if it fails there, all of them fail."""
        return on_main(self, action)

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
        if self.run is not None:
            self.run.finish()
            broadcast_buffers(self.unwrapped())
        return output

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluates the masked model, and adds its sparsity to the metrics."""
        if self.run is None:
            return super().evaluation_loop(*args, **kwargs)
        self.run.refuse_non_finite()
        with self.run.as_result():
            broadcast_buffers(self.unwrapped())
            output = super().evaluation_loop(*args, **kwargs)
        prefix = kwargs.get("metric_key_prefix", "eval")
        output.metrics[f"{prefix}_sparsity"] = self.run.sparsity
        output.metrics[f"{prefix}_at_target"] = float(self.pruner.at_target)
        return output

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds cycle, sparsity and recovery to what is logged in training."""
        if self.run is not None and "loss" in logs:
            logs |= self.run.logs(self.state.global_step)
        super().log(logs, start_time)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Saves the masked model; its average, if there is one, except in checkpoints, from which training resumes.

        As in Trainer it is also pushed, if `push_to_hub`: here once the run has ended.
        """
        if not self.pruning.prunes:
            return super().save_model(output_dir, _internal_call)
        self._save_masked(output_dir, _internal_call)
        if self.args.push_to_hub and not _internal_call:
            if self._publisher.finished:
                self.push_to_hub()
            else:
                logger.warning("the model was saved and not pushed, as the run has not ended")

    def _save_masked(self, output_dir: str | None, internal: bool) -> None:
        if self.run is None:
            return super().save_model(output_dir, _internal_call=True)
        if internal:  # all processes are here; a user may save on one of them alone
            self.run.refuse_non_finite()  # or a broken checkpoint takes the place of the last good one
            broadcast_buffers(self.unwrapped())
        with self.run.as_result(averaged=not internal or self.args.save_only_model):
            super().save_model(output_dir, _internal_call=True)

    def _run_epoch(self, **kwargs: Any) -> None:
        """As in Trainer, which would make one more update if it resumed from the last one inside an epoch."""
        if self.run is not None and self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        super()._run_epoch(**kwargs)

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        if self.run is not None and not self.pruner.at_target:
            return False
        return super()._determine_best_metric(metrics, trial)

    def _load_best_model(self) -> None:
        super()._load_best_model()
        if self.run is not None:
            self.run.take_best(self.state.best_model_checkpoint, self.state.best_global_step)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        with self._no_update():
            super()._save_optimizer_and_scheduler(output_dir)
        if self.run is not None:
            self.run.save(output_dir, self.settings(), write=self.args.should_save)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with self._no_update():
            super()._load_optimizer_and_scheduler(checkpoint)
        if self.run is not None and checkpoint is not None:
            self.run.resume(checkpoint)

    def _no_update(self) -> AbstractContextManager[None]:
        return self.run.pruner.paused() if self.run is not None else nullcontext()

    def _recipe(self, updates: int) -> Recipe:
        """The recipe of a run of so many updates, made once."""
        of = updates, self._epochs, self.pruning
        if self._planned is None or self._planned[0] != of:
            self._planned = of, self.pruning.recipe(updates, self._epochs, self.args.seed)
        return self._planned[1]

    def _updates(self) -> int:
        return self.set_initial_training_values(self.args, self.get_train_dataloader())[-1]

    @property
    def _epochs(self) -> float | None:
        return None if self.args.max_steps > 0 else self.args.num_train_epochs

    def _checked_parameters(self) -> dict[str, torch.nn.Parameter]:
        params = self.prunable_parameters()
        refuse_layers(self.unwrapped(), params, self.pruning)
        return params
