"""What pruning adds to the time of training."""

import argparse
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

import torch
import transformers
from tqdm import tqdm

from hf_cyclical import CyclicalPruningTrainer, PruningConfig
from hf_cyclical.data import TensorImages, ready_batch

from .common import SPARSITY, Row, ratio, row, seconds

DELTA_T = 100  # updates between two choices of masks, as in the paper
SHORT_DELTA_T = 5  # the same while we measure: a hundred is too many to wait for
BATCH = 64


class InTurn(transformers.TrainerCallback):
    """Lets two trainers, each in its thread, make one update after the other, and times every update."""

    def __init__(self) -> None:
        self.updates: list[float] = []
        self.turn = threading.Semaphore(0)
        self.other = self

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.wait()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.updates.append(time.perf_counter() - self.start)
        self.other.turn.release()
        self.wait()

    def wait(self) -> None:
        self.turn.acquire()
        self.start = time.perf_counter()


def overhead(options: argparse.Namespace) -> list[Row]:
    """CyclicalPruningTrainer against Trainer: ResNet-18, images of 64x64, batches of 64, masks chosen 1 in 100 updates.

    Both train one model, an update each in turn: two models differ by some percent in speed, by where their weights lie
    in memory, and the machine's own speed drifts by more than that. The ratio is the median over pairs of neighbouring
    updates without new masks. What a choice of masks adds all happens in `project`, whose time is measured, too; a
    hundredth of it is added to our updates.
    """
    torch.manual_seed(0)
    config = transformers.TimmWrapperConfig(architecture="resnet18", num_labels=10)
    model = transformers.AutoModelForImageClassification.from_config(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    pruning = PruningConfig(
        "gradual", target_sparsity=SPARSITY, delta_t=SHORT_DELTA_T, ramp_fraction=1.0, lr_shape="constant"
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            BATCH,
            max_steps=options.steps,
            lr_scheduler_type="constant",
            use_cpu=True,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            remove_unused_columns=False,
        )
        plain, theirs = make_trainer(transformers.Trainer, model, arguments, optimizer)
        arguments.lr_scheduler_type = transformers.SchedulerType.LINEAR  # the Trainer's default: ours has its own
        pruned, ours = make_trainer(CyclicalPruningTrainer, model, arguments, optimizer, pruning=pruning)
        projections: list[float] = []
        project, pruned.project = pruned.project, lambda t: projections.append(seconds(lambda: project(t)))
        train_in_turn((pruned, ours), (plain, theirs), options)
    with_masks = projections[::SHORT_DELTA_T]
    ordinary = [t for i, t in enumerate(projections) if i % SHORT_DELTA_T]
    extra = (median(with_masks) - median(ordinary)) / DELTA_T
    pairs = list(zip(ours.updates, theirs.updates, strict=True))
    pairs = [pair for i, pair in enumerate(pairs) if i % SHORT_DELTA_T]
    in_all = [(1 / (a + extra), 1 / b) for a, b in pairs]
    update = median(a for a, _ in pairs) + extra
    return [
        row("pruning / plain, new masks 1 in 100", "updates/s", in_all, (">=", 0.98)),
        row("pruning / plain, no new masks", "updates/s", [(1 / a, 1 / b) for a, b in pairs]),
        ratio("project() / pruning, new masks 1 in 100", "s per update", median(ordinary) + extra, update),
        ratio("project() with / without new masks", "s", median(with_masks), median(ordinary)),
    ]


def make_trainer(
    kind: type[transformers.Trainer],
    model: torch.nn.Module,
    arguments: transformers.TrainingArguments,
    optimizer: torch.optim.Optimizer,
    **more: Any,
) -> tuple[transformers.Trainer, InTurn]:
    images = torch.randint(256, (BATCH * 5, 3, 64, 64), dtype=torch.uint8)
    turns = InTurn()
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
