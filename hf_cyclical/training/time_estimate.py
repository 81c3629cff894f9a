"""How long a run will take, measured on a copy of its model."""

import time
from copy import copy, deepcopy
from itertools import pairwise
from math import ceil
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from torch.utils.data import IterableDataset, Subset
from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from .distillation import Distillation, DistillingTrainer
from .trainer import CyclicalPruningTrainer

_UPDATES = 3  # that are measured, after a first one that is not
_BATCHES = 2  # of images to evaluate on
_LONGEST = 30.0  # seconds after which one will do


def estimate_time(trainer: CyclicalPruningTrainer) -> str:
    """The time that `train()` would take, in words.

    A copy of the model is trained for a few updates on the first images and evaluated on a few: the trainer and its
    model stay as they are, but its data are read, so that a run that is to be repeated exactly starts in a new process.
    All processes must call this.
    """
    with TemporaryDirectory() as folder:
        clock = _Clock()
        twin = _twin(trainer, clock, folder)
        twin.train()
        update = median(end - start for start, end in pairwise(clock.ends))
        evaluation = _seconds_of_evaluation(trainer, twin)
    _, epoch, *_, updates = trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader())
    words = f"{updates:,} updates of {_words(update)}"
    if evaluation is None:
        return f"Estimated time: {_words(updates * update)} ({words}, as measured now; evaluations not counted)"
    evaluations = _evaluations(trainer, updates, epoch)
    total = _words(updates * update + evaluations * evaluation)
    return f"Estimated time: {total} ({words}, {evaluations:,} evaluations of {_words(evaluation)}, as measured now)"


class _Clock(TrainerCallback):
    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.ends.append(time.perf_counter())
        if len(self.ends) > 1 and self.ends[-1] - self.ends[0] > _LONGEST:
            control.should_training_stop = True


def _twin(trainer: CyclicalPruningTrainer, clock: _Clock, folder: str) -> DistillingTrainer:
    args = copy(trainer.args)
    args.output_dir, args.max_steps, args.disable_tqdm = folder, _UPDATES + 1, True
    args.save_strategy, args.eval_strategy = SaveStrategy.NO, IntervalStrategy.NO
    args.logging_strategy, args.report_to = IntervalStrategy.NO, []
    args.eval_on_start = args.load_best_model_at_end = args.push_to_hub = False
    twin = DistillingTrainer(
        deepcopy(trainer.model),
        args,
        channels_last=trainer.channels_last,
        train_dataset=trainer.train_dataset,
        eval_dataset=_few(trainer),
        data_collator=trainer.data_collator,
        compute_metrics=trainer.compute_metrics,
        preprocess_logits_for_metrics=trainer.preprocess_logits_for_metrics,
        callbacks=[clock],
    )
    twin.remove_callback(PrinterCallback)
    if trainer.pruning.distill:
        twin.distillation = Distillation(trainer.pruning.distill, trainer.pruning.resolved("distill_temperature"))
    return twin


def _few(trainer: CyclicalPruningTrainer) -> Subset | None:
    """The first images to evaluate on; None if there are none, or if nobody knows how many there are."""
    images = trainer.eval_dataset
    if images is None or isinstance(images, IterableDataset | dict):
        return None
    return Subset(images, range(min(len(images), _BATCHES * trainer.args.eval_batch_size)))


def _seconds_of_evaluation(trainer: CyclicalPruningTrainer, twin: DistillingTrainer) -> float | None:
    if twin.eval_dataset is None:
        return None
    start = time.perf_counter()
    twin.evaluate()
    return (time.perf_counter() - start) / len(twin.eval_dataset) * len(trainer.eval_dataset)


def _evaluations(trainer: CyclicalPruningTrainer, updates: int, epoch: int) -> int:
    """Before any update, after a dense start, at the end of every cycle, and as often as the Trainer is told to.

    Several of these after one update are one evaluation.

    Args:
        trainer: The trainer.
        updates: How many the run has.
        epoch: How many an epoch has.
    """
    args = trainer.args
    cycles = trainer.plan().cycles if trainer.pruning.prunes else []
    after = {0, *(cycle.start for cycle in cycles[:1]), *(cycle.stop for cycle in cycles)}
    if args.eval_strategy == IntervalStrategy.EPOCH:
        after |= {t for t in (*range(epoch, updates, epoch), updates) if t >= args.eval_delay * epoch}
    elif args.eval_strategy == IntervalStrategy.STEPS:
        every = args.eval_steps or args.logging_steps
        every = int(every) if every >= 1 else ceil(every * updates)
        after |= {t for t in (*range(every, updates, every), updates) if t >= args.eval_delay}
    return len(after)


def _words(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"
