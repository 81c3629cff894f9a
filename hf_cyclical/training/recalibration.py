"""BatchNorm's statistics of the sparse model, re-estimated from training images; no weight changes."""

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader, IterableDataset

from hf_cyclical.core import PruningError
from hf_cyclical.data import Epochs

if TYPE_CHECKING:
    from .trainer import CyclicalPruningTrainer

logger = logging.getLogger(__name__)


class Recalibration:
    """Mean and variance of every BatchNorm as the plain average over some batches of training images.

    The images are the same each time and on every process, drawn by the run's seed, so that a model that is evaluated
    twice has the same statistics twice. Those of training come back after an evaluation on the way: how often a run is
    evaluated is to change nothing in it.

    Args:
        trainer: The trainer.
        batches: How many, of the size that a process trains on.
    """

    def __init__(self, trainer: "CyclicalPruningTrainer", batches: int) -> None:
        self.trainer, self.batches = trainer, batches
        self.model = trainer.unwrapped()
        self.norms = batch_norms(self.model)

    @classmethod
    def of(cls, trainer: "CyclicalPruningTrainer") -> "Recalibration | None":
        """What a trainer's `recalibrate` asks for; None if nothing, or nothing that its model has."""
        asked = trainer.pruning.recalibrate
        if not asked:
            return None
        batches = recalibration_batches(trainer)
        if not batch_norms(trainer.unwrapped()):
            logger.warning("recalibrate %d has no effect, as the model has no statistics of BatchNorm", asked)
            return None
        return cls(trainer, batches)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model with these statistics, and with those of training afterwards."""
        buffers = [buffer for norm in self.norms for buffer in norm.buffers(recurse=False)]
        before = [buffer.clone() for buffer in buffers]
        try:
            self.apply_()
            yield
        finally:
            for buffer, value in zip(buffers, before, strict=True):
                buffer.copy_(value)

    @torch.no_grad()
    def apply_(self) -> None:
        """Give the model these statistics."""
        modes = {module: module.training for module in self.model.modules()}
        momenta = [norm.momentum for norm in self.norms]
        self.model.eval()
        for norm in self.norms:
            norm.reset_running_stats()
            norm.training, norm.momentum = True, None  # which is torch's word for a cumulative average
        try:
            with same_random_numbers(self.trainer.args.seed):
                for inputs in self._inputs():
                    self.model(**inputs)
        finally:
            for norm, momentum in zip(self.norms, momenta, strict=True):
                norm.momentum = momentum
            for module, training in modes.items():
                module.training = training

    def _inputs(self) -> Iterator[dict[str, Any]]:
        trainer, data = self.trainer, self.trainer.train_dataset
        data = data.at_epoch(0) if isinstance(data, Epochs) else data  # whose augmentation follows from the epoch
        size = _batch_size(trainer)
        drawn = torch.randperm(len(data), generator=torch.Generator().manual_seed(trainer.args.seed))
        drawn = drawn[: self.batches * size].tolist()
        collate = trainer._get_collator_with_removed_columns(trainer.data_collator, description="recalibration")
        for batch in DataLoader(data, size, sampler=drawn, collate_fn=collate):
            inputs = trainer._prepare_inputs(batch)
            yield {name: value for name, value in inputs.items() if name not in trainer.label_names}


def recalibration_batches(trainer: "CyclicalPruningTrainer") -> int:
    """The batches that `recalibrate` asks for, or those that the data fills if these are fewer.

    Raises:
        PruningError: If the data is a stream.
    """
    asked, data = trainer.pruning.recalibrate, trainer.train_dataset
    if isinstance(data, IterableDataset):
        raise PruningError(
            f"recalibrate {asked} draws from all training images, and a stream has no length: leave it out"
        )
    return min(asked, len(data) // _batch_size(trainer))


def _batch_size(trainer: "CyclicalPruningTrainer") -> int:
    return min(trainer._train_batch_size, len(trainer.train_dataset))


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """The layers of a model that have statistics of BatchNorm."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    return [norm for norm in norms if norm.running_mean is not None]


@contextmanager
def same_random_numbers(seed: int) -> Iterator[None]:
    """What is done inside draws the same numbers each time, and training goes on with its own."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
