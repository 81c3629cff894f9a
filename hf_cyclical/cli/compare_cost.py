"""What an update costs: that of a run, and that of dense training right before and after it."""

import time
from typing import Any

import torch
import transformers
from transformers import TrainerCallback

_FIRST = 5  # updates that are not counted: caches are cold, and memory is taken
DENSE_UPDATES = 30


class UpdateClock(TrainerCallback):
    """The time of forward and backward passes, the optimizer's step and the choices of masks; not of images.

    On a CPU it is the processor's time, which depends least on what else the machine does.
    """

    def __init__(self) -> None:
        self.updates, self.seconds, self._start = 0, 0.0, 0.0
        self._seen = 0

    def on_step_begin(self, args: transformers.TrainingArguments, *rest: Any, **kwargs: Any) -> None:
        self._start = _now(args.device)

    def on_step_end(self, args: transformers.TrainingArguments, *rest: Any, **kwargs: Any) -> None:
        self._seen += 1
        if self._seen > _FIRST:
            self.updates += 1
            self.seconds += _now(args.device) - self._start

    @property
    def mean(self) -> float | None:
        """Seconds of an update; None if there were too few."""
        return self.seconds / self.updates if self.updates else None


def _now(device: torch.device) -> float:
    if device.type == "cpu":
        return time.process_time()
    torch.accelerator.synchronize()
    return time.perf_counter()
