"""What pruning adds to the time of training."""

import argparse
import ctypes
import os
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median, stdev
from typing import Any

import torch
import transformers
from tqdm import tqdm

from hf_cyclical import CyclicalPruningTrainer, PruningConfig
from hf_cyclical.data import TensorImages, ready_batch
from hf_cyclical.training import PruningRun

from .common import SPARSITY, Row, ratio, row, seconds

DELTA_T = 100  # updates between two choices of masks, as in the paper
SHORT_DELTA_T = 5  # the same while we measure: a hundred is too many to wait for
BATCH = 64
M_ARENA_MAX = -8  # of glibc's mallopt


class Stopwatch:
    """The time that the work which both trainers have in common has taken: batches, the model and the optimizer."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def start(self, *_: Any) -> None:
        self.seconds -= time.perf_counter()

    def stop(self, *_: Any) -> None:
        self.seconds += time.perf_counter()

    def around(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.start()
            try:
                return work(*args, **kwargs)
            finally:
                self.stop()

        return timed


class InTurn(transformers.TrainerCallback):
    """Lets two trainers, each in its thread, make one update after the other, and times every update.

    Attributes:
        updates: The seconds of each update.
        own: What of them was not common work.
    """

    def __init__(self, common: Stopwatch) -> None:
        self.common = common
        self.updates: list[float] = []
        self.own: list[float] = []
        self.turn = threading.Semaphore(0)
        self.other = self

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.wait()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        update = time.perf_counter() - self.start
        self.updates.append(update)
        self.own.append(update - (self.common.seconds - self.common_before))
        self.other.turn.release()
        self.wait()

    def wait(self) -> None:
        self.turn.acquire()
        self.common_before = self.common.seconds
        self.start = time.perf_counter()


def overhead(options: argparse.Namespace) -> list[Row]:
    """CyclicalPruningTrainer against Trainer: ResNet-18, images of 64x64, batches of 64, masks chosen 1 in 100 updates.

    Both train one model, an update each in turn, and allocate on one heap: two models, or two heaps, differ by some
    percent in speed, by where things lie in memory. Even so, updates of equal work differ by 5 % and more on a shared
    machine, far more than what pruning adds. So the first ratio leaves out the noise of the work that both have in
    common (batch, forward, backward, optimizer): it is the plain update against the same one plus what our trainer's
    own work takes longer. The second ratio compares whole updates, each with its neighbour, and has its standard error:
    it would show it if we slowed the common work.

    Masks are chosen 1 in 5 times here, and those updates left out; a hundredth of what `project` takes longer in them
    is added to ours.
    """
    use_one_heap()
    torch.manual_seed(0)
    config = transformers.TimmWrapperConfig(architecture="resnet18", num_labels=10)
    model = transformers.AutoModelForImageClassification.from_config(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    common = Stopwatch()
    optimizer.register_step_pre_hook(common.start)
    optimizer.register_step_post_hook(common.stop)
    pruning = PruningConfig(
        "gradual", target_sparsity=SPARSITY, delta_t=SHORT_DELTA_T, ramp_fraction=1.0, lr_shape="constant"
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            BATCH,
            max_steps=options.steps,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,  # as in scripts/prune.py
            use_cpu=True,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            remove_unused_columns=False,
        )
        plain, theirs = make_trainer(transformers.Trainer, model, arguments, optimizer, common)
        arguments.lr_scheduler_type = transformers.SchedulerType.LINEAR  # the Trainer's default: ours has its own
        pruned, ours = make_trainer(CyclicalPruningTrainer, model, arguments, optimizer, common, pruning=pruning)
        projections: list[float] = []
        project = PruningRun.project
        PruningRun.project = lambda run, t: projections.append(seconds(lambda: project(run, t)))
        train_in_turn((pruned, ours), (plain, theirs), options)
    counted = [i for i in range(options.steps) if i % SHORT_DELTA_T]
    ordinary = median(projections[i] for i in counted)
    with_masks = median(projections[::SHORT_DELTA_T])
    extra = (with_masks - ordinary) / DELTA_T
    update = median(theirs.updates)
    ours_update = update + median(ours.own[i] for i in counted) - median(theirs.own) + extra
    whole = [(1 / (ours.updates[i] + extra), 1 / theirs.updates[i]) for i in counted]
    error = 1.25 * stdev(a / b for a, b in whole) / len(whole) ** 0.5  # of the median of as many
    return [
        ratio("pruning / plain, new masks 1 in 100", "updates/s", 1 / ours_update, 1 / update, (">=", 0.98)),
        row(f"the same of whole updates (+- {error:.3f})", "updates/s", whole),
        ratio("project() / pruning, new masks 1 in 100", "s per update", ordinary + extra, ours_update),
        ratio("project() with / without new masks", "s", with_masks, ordinary),
    ]


def use_one_heap() -> None:
    """Let all threads allocate in one place, where the C library can: each would get a heap of its own."""
    library = ctypes.CDLL(None) if os.name == "posix" else None
    if hasattr(library, "mallopt"):
        library.mallopt(M_ARENA_MAX, 1)


def make_trainer(
    kind: type[transformers.Trainer],
    model: torch.nn.Module,
    arguments: transformers.TrainingArguments,
    optimizer: torch.optim.Optimizer,
    common: Stopwatch,
    **more: Any,
) -> tuple[transformers.Trainer, InTurn]:
    images = torch.randint(256, (BATCH * 5, 3, 64, 64), dtype=torch.uint8)
    turns = InTurn(common)
    trainer = kind(
        model,
        arguments,
        train_dataset=TensorImages(images, torch.randint(10, (len(images),))),
        data_collator=ready_batch,
        optimizers=(optimizer, None),
        callbacks=[turns],
        **more,
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.training_step = common.around(trainer.training_step)
    trainer.get_batch_samples = common.around(trainer.get_batch_samples)
    return trainer, turns


def train_in_turn(
    first: tuple[transformers.Trainer, InTurn], second: tuple[transformers.Trainer, InTurn], options: argparse.Namespace
) -> None:
    def train(trainer: transformers.Trainer, turns: InTurn) -> None:
        torch.set_num_threads(options.threads)  # a setting of each thread
        try:
            trainer.train()
        finally:  # also after an error: the other must not wait for ever
            turns.other.turn.release(options.steps + 1)

    first[1].other, second[1].other = second[1], first[1]
    first[1].turn.release()
    with ThreadPoolExecutor() as pool, tqdm(total=options.steps, desc="updates of each", leave=False) as bar:
        runs = [pool.submit(train, *first), pool.submit(train, *second)]
        while not all(run.done() for run in runs):
            time.sleep(1)
            bar.update(len(second[1].updates) - bar.n)
        for run in runs:
            run.result()
