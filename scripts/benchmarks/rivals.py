"""What each method adds to the time of an update."""

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
import transformers

from hf_cyclical import PruningConfig
from hf_cyclical.core import TVPGD, prunable_parameters

from .common import SPARSITY, Row, ratio

METHODS = {"gradual": 100, "rigl": 100, "snfs": 100, "dpf": 16, "granet": 100}  # updates between two choices of masks
SHORT_DELTA_T = 5  # the same while we measure
BATCH = 64


def rivals(options: argparse.Namespace) -> list[Row]:
    """Updates of each method against dense ones: ResNet-18, images of 32x32, batches of 64.

    Dense updates and those of a method take turns, five at a time, in one model. Masks are chosen in one of the five,
    and its extra time is divided by the updates that usually lie between two choices. Times are those of the CPU.
    """
    torch.manual_seed(0)
    config = transformers.TimmWrapperConfig(architecture="resnet18", num_labels=10)
    model = transformers.AutoModelForImageClassification.from_config(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    images, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))

    def learn() -> None:
        optimizer.zero_grad()
        model(images, labels=labels).loss.backward()
        optimizer.step()

    rows = []
    for method, delta_t in METHODS.items():
        settings = PruningConfig(method, target_sparsity=SPARSITY, delta_t=SHORT_DELTA_T, row_floor=1)
        params = prunable_parameters(model)
        dense, ordinary, with_masks = [], [], []
        rounds = max(options.steps // SHORT_DELTA_T, 2)
        pruner = TVPGD(params, settings.recipe(rounds * SHORT_DELTA_T * 2), optimizer=optimizer)
        for _ in range(rounds):
            with pruner.paused():
                dense += [cpu_seconds(learn) for _ in range(SHORT_DELTA_T)]
            for _ in range(SHORT_DELTA_T):
                times = with_masks if pruner.recipe.update_at(pruner.t) else ordinary
                times.append(cpu_seconds(learn, partial(pruner.step, pruner.t)))
        pruner.project_()
        extra = max(median(with_masks) - median(ordinary), 0.0) / delta_t
        rows.append(ratio(f"{method} / dense, new masks 1 in {delta_t}", "s", median(ordinary) + extra, median(dense)))
    return rows


def cpu_seconds(*works: Callable[[], Any]) -> float:
    start = time.process_time()
    for work in works:
        work()
    return time.process_time() - start
