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

from .common import SPARSITY, Row, row, seconds

DELTA_T = 100  # updates between two choices of masks, as in the paper
BLOCK = 5  # updates that one trainer makes before it is the other's turn


class Stopwatch(transformers.TrainerCallback):
    """Times the updates of a run from the end of one to the end of the next, so all but the first."""

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.ends.append(time.perf_counter())

    @property
    def update(self) -> float:
        return median(after - before for before, after in zip(self.ends, self.ends[1:], strict=False))


def overhead(options: argparse.Namespace) -> list[Row]:
    """CyclicalPruningTrainer against Trainer: ResNet-18, images of 64x64, batches of 64, masks chosen 1 in 100 updates.

    That is too rare to wait for, so it is measured apart: ordinary updates by the clock, and in the first update of
    each block, which chooses masks, by how much `project` takes longer than in the others, as all that a choice of
    masks adds happens in there. A hundredth of that is added to the time of an ordinary update.
    """
    with tempfile.TemporaryDirectory() as folder:
        # A ramp that ends where it starts: masks of the full sparsity at the first update of a block, and no others.
        pruning = PruningConfig(target_sparsity=SPARSITY, delta_t=DELTA_T, cycles=1, ramp_fraction=0.01)
        pruned, pruned_watch = make_trainer(CyclicalPruningTrainer, folder, pruning=pruning)
        plain, plain_watch = make_trainer(transformers.Trainer, folder)
        projections: list[float] = []
        project, pruned.project = pruned.project, lambda t: projections.append(seconds(lambda: project(t)))
        updates = []
        for _ in range(-(-options.steps // BLOCK)):
            pruned.train()
            plain.train()
            updates.append((pruned_watch.update, plain_watch.update))
            print(f"  {len(updates) * BLOCK} updates of each", file=sys.stderr, flush=True)
    ordinary = [median(projections[i + 1 : i + BLOCK]) for i in range(0, len(projections), BLOCK)]
    extra = (median(projections[::BLOCK]) - median(ordinary)) / DELTA_T
    in_project = [(own + extra, update + extra) for own, (update, _) in zip(ordinary, updates, strict=True)]
    speeds = [(1 / (ours + extra), 1 / theirs) for ours, theirs in updates]
    return [
        row("pruning / plain, new masks 1 in 100", "updates/s", speeds, (">=", 0.98)),
        row("pruning / plain, no new masks", "updates/s", [(1 / ours, 1 / theirs) for ours, theirs in updates]),
        row("project() / pruning, new masks 1 in 100", "s per update", in_project),
        row("project() with / without new masks", "s", zip(projections[::BLOCK], ordinary, strict=True)),
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
