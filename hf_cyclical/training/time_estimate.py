"""How long a run will take, measured on a copy of its model, and the run that fits a time."""

import time
from collections.abc import Sequence
from copy import copy, deepcopy
from dataclasses import replace
from itertools import pairwise
from math import ceil
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from torch.utils.data import IterableDataset, Subset
from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from hf_cyclical.config import PruningConfig
from hf_cyclical.core import TVPGD, Recipe, any_process, prunable_parameters
from hf_cyclical.core.schedules import never
from hf_cyclical.methods import METHODS

from .budget import SHORTEST, Cost, Work, fit_epochs
from .distillation import Distillation, DistillingTrainer
from .guards import fitting, unwrapped
from .recalibration import batch_norms, same_random_numbers
from .trainer import CyclicalPruningTrainer

_UPDATES = 3  # that are measured, after a first one that is not
_BATCHES = 2  # of images to evaluate on
_COUNTED = 10_000  # updates of a cycle of which choices of masks are counted
_LONGEST = 30.0  # seconds after which one will do


def estimate_time(trainer: CyclicalPruningTrainer) -> str:
    """The time that `train()` would take, in words, as `measured`; all processes must call this."""
    cost = measured(trainer)
    per_epoch, updates = _lengths(trainer)
    recipe = trainer.plan() if trainer.pruning.prunes else None
    work = _work(trainer, recipe, updates, per_epoch)
    words = f"{work.updates:,} updates of {_words(cost.update)}"
    if not cost.evaluation:
        return f"Estimated time: {_words(work.seconds(cost))} ({words}, as measured now; evaluations not counted)"
    evaluations = f"{work.evaluations:,} evaluations of {_words(cost.evaluation)}"
    return f"Estimated time: {_words(work.seconds(cost))} ({words}, {evaluations}, as measured now)"


def fit_to_budget(trainer: CyclicalPruningTrainer, budget: str, most_dense: float | None = None) -> str:
    """Give a trainer the number of epochs that there is time for, and tell it in words.

    All processes must call this; the main one decides.

    Args:
        trainer: A trainer that counts in epochs.
        budget: The time, such as 30m, 2h, 90s or 1h30m.
        most_dense: The part of the run that its dense epochs may be, which are shortened to it; None to leave them.

    Raises:
        PruningError: If that is no time, or too short for one cycle.
    """
    cost = measured(trainer)
    per_epoch, config = _lengths(trainer)[0], trainer.pruning
    cycles = config.resolved("cycles") if isinstance(config.cycles, int) else METHODS[config.method].fewest_cycles

    def work(epochs: float) -> Work:
        updates = ceil(epochs * per_epoch)
        return _work(trainer, with_dense_part(config, epochs, most_dense).recipe(updates, epochs), updates, per_epoch)

    dense, pruned = config.dense_epochs or config.dense_updates / per_epoch, cycles * SHORTEST / per_epoch
    least = dense + pruned if most_dense is None else min(dense + pruned, pruned / (1 - most_dense))
    epochs = trainer.on_main(lambda: fit_epochs(budget, cost, work, least))
    trainer.args.num_train_epochs = broadcast_object_list([epochs])[0]
    trainer.pruning = with_dense_part(config, trainer.args.num_train_epochs, most_dense)
    shorter = trainer.pruning.dense_epochs < config.dense_epochs
    part = f", {trainer.pruning.dense_epochs:g} of them dense," if shorter else ""
    took = f"an update takes {_words(cost.update)} here"
    took += f" and an evaluation {_words(cost.evaluation)}" if cost.evaluation else ""
    fits = f"Budget: {trainer.args.num_train_epochs:g} epochs{part} fit into {budget}"
    return f"{fits}, as {took}; a tenth of it is left over."


def with_dense_part(config: PruningConfig, epochs: float, most: float | None) -> PruningConfig:
    """A configuration whose dense epochs are at most this part of a run of so many; None for the same."""
    return config if most is None else replace(config, dense_epochs=min(config.dense_epochs, most * epochs))


def measured(trainer: CyclicalPruningTrainer) -> Cost:
    """What the parts of a run take.

    A copy of the model is trained for a few updates on the first images, pruned, and evaluated on a few: the trainer,
    its model and the random numbers that it is going to draw stay as they are. All processes must call this.
    """
    with TemporaryDirectory() as folder, same_random_numbers(trainer.args.seed):
        clock = _Clock()
        twin = _twin(trainer, clock, folder)
        twin.train()
        update = median(end - start for start, end in pairwise(clock.ends))
        evaluation = _seconds_of_evaluation(trainer, twin)
        projection, choice = _seconds_of_pruning(trainer, twin) if trainer.pruning.prunes else (0.0, 0.0)
    batches = trainer.pruning.recalibrate or 0
    if batches and evaluation and batch_norms(trainer.model):
        evaluation += min(batches, _lengths(trainer)[0]) * update / 3  # a pass forward, of one forward and backward
    return Cost(update + projection, choice, evaluation)


class _Clock(TrainerCallback):
    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.ends.append(time.perf_counter())
        if any_process(self.ends[-1] - self.ends[0] > _LONGEST, args.device):  # all stop after the same update
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


def _seconds_of_evaluation(trainer: CyclicalPruningTrainer, twin: DistillingTrainer) -> float:
    """0 if there are no images for it, or if nobody knows how many there are."""
    if twin.eval_dataset is None:
        return 0.0
    start = time.perf_counter()
    twin.evaluate()
    return (time.perf_counter() - start) / len(twin.eval_dataset) * len(trainer.eval_dataset)


def _seconds_of_pruning(trainer: CyclicalPruningTrainer, twin: DistillingTrainer) -> tuple[float, float]:
    """Of a projection, and of a choice of masks beyond it."""
    model = twin.accelerator.unwrap_model(twin.model, keep_torch_compile=False)
    params = prunable_parameters(model, trainer.pruning.include, trainer.pruning.exclude)
    recipe = fitting(trainer.plan(), trainer.pruning, twin.optimizer, params)
    # Without what changes the optimizer's own steps: none is made here.
    recipe = replace(recipe, hold_at=never, restart_at=never, straight_through=False, project_at=lambda t: True)
    last = next(t for t in reversed(range(recipe.T)) if t == 0 or recipe.update_at(t))
    chosen = replace(recipe, update_at=lambda t: t == last)
    pruner = TVPGD(params, chosen, optimizer=unwrapped(twin.optimizer))
    for p in params.values():  # by which some methods rank
        p.grad = torch.rand_like(p)
    times = [time.perf_counter()]
    for t in (last, last + 1):
        pruner.step(t)
        times.append(time.perf_counter())
    projection = times[2] - times[1]
    return projection, max(times[1] - times[0] - projection, 0.0)


def _lengths(trainer: CyclicalPruningTrainer) -> tuple[int, int]:
    """The updates of an epoch, and those of the run."""
    values = trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader())
    return values[1], values[-1]


def _work(trainer: CyclicalPruningTrainer, recipe: Recipe | None, updates: int, epoch: int) -> Work:
    return Work(
        updates,
        _choices(recipe) if recipe else 0,
        _evaluations(trainer, recipe.cycles if recipe else (), updates, epoch),
    )


def _choices(recipe: Recipe) -> int:
    """About as many choices of masks as there are: those of the first cycle, or of its start, stand for all others."""
    first = recipe.cycles[0][:_COUNTED]
    rest = recipe.T - first.start
    return round(sum(map(recipe.update_at, first)) * rest / len(first))


def _evaluations(trainer: CyclicalPruningTrainer, cycles: Sequence[range], updates: int, epoch: int) -> int:
    """Before any update, after a dense start, at the end of every cycle, and as often as the Trainer is told to.

    Several of these after one update are one evaluation.

    Args:
        trainer: The trainer.
        cycles: Those of the run.
        updates: How many the run has.
        epoch: How many an epoch has.
    """
    args = trainer.args
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
