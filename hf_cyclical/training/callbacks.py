"""What CyclicalPruningTrainer does at the Trainer's events."""

import signal
import threading
import time
from typing import TYPE_CHECKING, Any

from transformers import (
    EarlyStoppingCallback,
    ProgressCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from hf_cyclical.core import any_process

if TYPE_CHECKING:
    from .trainer import CyclicalPruningTrainer


_ECHO = 1.0  # seconds in which a launcher passes on a signal that its processes have already received


class ProjectionCallback(TrainerCallback):
    """Runs Algorithm 1 after every optimizer step, as the first of all callbacks: none sees weights before it."""

    def __init__(self, trainer: "CyclicalPruningTrainer") -> None:
        self.trainer = trainer

    def on_optimizer_step(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """The masks are renewed and applied also if the gradient scaler skipped the step: a due update is not lost."""
        self.trainer.run.project(t=state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """After a skipped step the Trainer does not move the learning rate; the clock went on, and so must it."""
        scheduler = self.trainer.lr_scheduler
        if scheduler.last_epoch < state.global_step:
            scheduler.step()


class CycleCallback(TrainerCallback):
    """At the end of each cycle: logs, evaluates, saves where the run saves at all, and adds a row to the report.

    Comes after the Trainer's own flow callback, to have the last word on what happens at a step.
    """

    def __init__(self, trainer: "CyclicalPruningTrainer") -> None:
        self.trainer = trainer
        self._resumed_at: int | None = None
        self._evaluated_at: int | None = None
        self._saved_at: int | None = None
        self._asked_for_start = False

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        self._evaluated_at = self._saved_at = None
        self._resumed_at = state.global_step or None
        self._asked_for_start = args.eval_on_start
        best = (args.metric_for_best_model or "").removeprefix("eval_")
        unseen = best and not any(best in row for row in self.trainer.run.report.evaluations)
        if self.trainer.eval_dataset is not None and (not state.global_step or unseen):
            # The model as it came is the first row of the table. Of a run that is resumed there is one, but the metric
            # of the best model may have been named since: one that nothing computes is refused now.
            args.eval_on_start = True

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        run = self.trainer.run
        stops = [cycle.stop for cycle in run.recipe.cycles]
        dense_end = run.recipe.cycles[0].start
        if state.global_step not in (*stops, dense_end):
            return
        control.should_log = True
        control.should_evaluate = self.trainer.eval_dataset is not None
        if state.global_step in stops:
            run.end_cycle(stops.index(state.global_step) + 1, state.global_step, state.epoch)
            if args.save_strategy not in (SaveStrategy.NO, SaveStrategy.BEST):
                control.should_save = True

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        if self.trainer.is_in_train and state.global_step != self._resumed_at:
            self._evaluated_at = state.global_step
            self.trainer.run.note_evaluation(state.global_step, kwargs["metrics"])

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        args.eval_on_start = self._asked_for_start

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        self._saved_at = state.global_step

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        """A cycle that ends with an epoch is evaluated and saved once."""
        if self._evaluated_at == state.global_step:
            control.should_evaluate = False
        if self._saved_at == state.global_step:
            control.should_save = False


class TargetEarlyStoppingCallback(EarlyStoppingCallback):
    """EarlyStoppingCallback that only counts evaluations at the target sparsity."""

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics, **kwargs: Any
    ):
        if all(value for name, value in metrics.items() if name.endswith("_at_target")):
            super().on_evaluate(args, state, control, metrics, **kwargs)


class PruningProgressCallback(ProgressCallback):
    """The Trainer's progress bar, with the cycle and the sparsity."""

    def __init__(self, trainer: "CyclicalPruningTrainer") -> None:
        super().__init__()
        self.trainer = trainer

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        if self.training_bar is not None:
            run = self.trainer.run
            cycle, cycles = run.cycle(state.global_step), len(run.recipe.cycles)
            where = f"cycle {cycle}/{cycles}" if cycle else "dense"
            self.training_bar.set_postfix_str(f"{where}, sparsity {run.sparsity:.3f}", refresh=False)
        super().on_step_end(args, state, control, **kwargs)


class SetEpochCallback(TrainerCallback):
    """Tells a data set the epoch, for its random augmentation: Accelerate does so only in a single process."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        self.dataset.set_epoch(int(state.epoch or 0))


class StopOnSignalCallback(TrainerCallback):
    """Ctrl-C or SIGTERM: finish the update, save a checkpoint, stop. A second Ctrl-C stops at once.

    For scripts: it takes over the process's signal handlers while training runs. Of several processes all stop after
    the same update, whichever of them was told to.

    Attributes:
        stopped: Whether a signal ended the training before its last update.
        asked: Whether there was a signal at all.
    """

    def __init__(self) -> None:
        self.stopped = False
        self._asked: float | None = None
        self._before: dict[int, Any] = {}

    @property
    def asked(self) -> bool:
        return self._asked is not None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        self.stopped, self._asked = False, None
        if threading.current_thread() is threading.main_thread() and not self._before:
            self._before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        if any_process(self.asked, args.device) and state.global_step < state.max_steps:
            self.stopped = control.should_save = control.should_training_stop = True
            if args.eval_strategy == IntervalStrategy.EPOCH and float(state.epoch).is_integer():
                control.should_evaluate = True  # due after this update, and the checkpoint is to know of it

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        if self.stopped:
            # Else the Trainer would end by loading the best model, and may delete the checkpoint just written.
            state.best_model_checkpoint = None

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any):
        self._restore()

    def _stop(self, number: int, frame: Any) -> None:
        if self._asked is None:
            self._asked = time.monotonic()
        elif time.monotonic() - self._asked > _ECHO:
            self._restore()
            signal.raise_signal(number)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
