"""What bf16 and images with their channels innermost save."""

import argparse
import itertools
import tempfile
import time
from statistics import median
from typing import Any

import torch
import transformers

from hf_cyclical.cli import Run, parse_arguments
from hf_cyclical.data import ImageData, Split

from .common import Row, row

BATCH = 256
UPDATES = 10
WARM_UP = 3  # updates that do not count
ROUNDS = 5  # the first does not count
NEITHER = ["--channels_last", "False"]
VARIANTS = {
    "bf16 and channels innermost / neither": ["--bf16"],
    "bf16 / neither": ["--bf16", *NEITHER],
    "channels innermost / neither": [],
}
GOALS = {"bf16 and channels innermost / neither": (">=", 1.8)}


class Clock(transformers.TrainerCallback):
    """Notes when updates end."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.ends.append(time.perf_counter())


def precision(options: argparse.Namespace) -> list[Row]:
    """CyclicalPruningTrainer in bf16, with channels innermost, against itself: ResNet-20, 32x32, batches of 256.

    As scripts/prune.py trains it, shifts and mirrors included, on made-up images. What bf16 saves depends on the
    processor: without instructions for it, it costs time.
    """
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    data = made_up_images()
    rounds = [
        {what: updates_per_second(words, data) for what, words in {**VARIANTS, "": NEITHER}.items()}
        for _ in range(ROUNDS)
    ]
    return [
        row(what, "updates/s", [(speeds[what], speeds[""]) for speeds in rounds[1:]], GOALS.get(what))
        for what in VARIANTS
    ]


def made_up_images() -> ImageData:
    split = Split(torch.randint(256, (4 * BATCH, 3, 32, 32), dtype=torch.uint8), torch.randint(10, (4 * BATCH,)))
    return ImageData("made up", [str(i) for i in range(10)], 32, True, "cifar", split, split, "the training images")


def updates_per_second(words: list[str], data: ImageData) -> float:
    with tempfile.TemporaryDirectory() as folder:
        words = ["--preset", "cifar10-resnet20", "--max_steps", str(UPDATES), "--method", "gradual", *words]
        words += ["--output_dir", folder, "--save_strategy", "no", "--logging_strategy", "no", "--report_to", "none"]
        args = parse_arguments([*words, "--disable_tqdm", "True"], description="")
        clock = Clock()
        run = Run.build(args, data, [clock])
        args.training.eval_on_start = False
        run.trainer.remove_callback(transformers.PrinterCallback)
        run.trainer.train()
    ends = clock.ends[WARM_UP:]
    return 1 / median(after - before for before, after in itertools.pairwise(ends))
