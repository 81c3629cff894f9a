"""What pruning adds to the time of training."""

import argparse
import sys
import tempfile
import time
from statistics import median
from typing import Any

import torch
import transformers

from hf_cyclical import CyclicalPruningTrainer, PruningConfig
from hf_cyclical.data import TensorImages, ready_batch

from .common import SPARSITY, Row, ratio, seconds

DELTA_T = 100  # updates between two choices of masks, as in the paper
BLOCK = 5  # updates that one trainer makes before it is the other's turn


class Stopwatch(transformers.TrainerCallback):
    """Times the updates of all runs from the end of one to the end of the next, so all but the first of a run."""

    def __init__(self) -> None:
        self.updates: list[float] = []

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.end: float | None = None

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        now = time.perf_counter()
        if self.end is not None:
            self.updates.append(now - self.end)
        self.end = now


def overhead(options: argparse.Namespace) -> list[Row]:
    """CyclicalPruningTrainer against Trainer: ResNet-18, images of 64x64, batches of 64, masks chosen 1 in 100 updates.

    That is too rare to wait for, so it is measured apart: ordinary updates by the clock, and in the first update of
    each block, which chooses masks, by how much `project` takes longer than in the others, as all that a choice of
    masks adds happens in there. A hundredth of that is added to the time of an ordinary update. The ratio is that of
    the medians over all updates: an update takes a second, and neighbours come and go within one.
    """
    with tempfile.TemporaryDirectory() as folder:
        # A ramp that ends where it starts: masks of the full sparsity at the first update of a block, and no others.
        pruning = PruningConfig(target_sparsity=SPARSITY, delta_t=DELTA_T, cycles=1, ramp_fraction=0.01)
        pruned, pruned_watch = make_trainer(CyclicalPruningTrainer, folder, pruning=pruning)
        plain, plain_watch = make_trainer(transformers.Trainer, folder)
        projections: list[float] = []
        project, pruned.project = pruned.project, lambda t: projections.append(seconds(lambda: project(t)))
        for block in range(-(-options.steps // BLOCK)):
            pruned.train()
            plain.train()
            print(f"  {(block + 1) * BLOCK} updates of each", file=sys.stderr, flush=True)
    with_new_masks = projections[::BLOCK]
    ordinary = [t for i, t in enumerate(projections) if i % BLOCK]
    extra = (median(with_new_masks) - median(ordinary)) / DELTA_T
    ours, theirs = median(pruned_watch.updates), median(plain_watch.updates)
    return [
        ratio("pruning / plain, new masks 1 in 100", "updates/s", 1 / (ours + extra), 1 / theirs, (">=", 0.98)),
        ratio("pruning / plain, no new masks", "updates/s", 1 / ours, 1 / theirs),
        ratio("project() / pruning, new masks 1 in 100", "s per update", median(ordinary) + extra, ours + extra),
        ratio("project() with / without new masks", "s", median(with_new_masks), median(ordinary)),
    ]


def make_trainer(kind: type[transformers.Trainer], folder: str, **more: Any) -> tuple[transformers.Trainer, Stopwatch]:
    torch.manual_seed(0)
    config = transformers.TimmWrapperConfig(architecture="resnet18", num_labels=10)
    model = transformers.AutoModelForImageClassification.from_config(config)
    batch = 64
    images = torch.randint(256, (batch * BLOCK, 3, 64, 64), dtype=torch.uint8)
    quiet = {"save_strategy": "no", "report_to": "none", "disable_tqdm": True, "remove_unused_columns": False}
    watch = Stopwatch()
    trainer = kind(
        model,
        transformers.TrainingArguments(folder, batch, max_steps=BLOCK, use_cpu=True, **quiet),
        train_dataset=TensorImages(images, torch.randint(10, (len(images),))),
        data_collator=ready_batch,
        optimizers=(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), None),
        callbacks=[watch],
        **more,
    )
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer, watch
