import os

# Two cores that others use too: one thread a process is the fastest and the most repeatable.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from hf_cyclical import CyclicalPruningTrainer, PruningConfig


class TinyNet(nn.Module):
    """A convolution and two linear maps, with the interface that the Trainer expects."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.hidden = nn.Linear(4 * 16, 24)
        self.head = nn.Linear(24, 3)

    def forward(self, pixel_values, labels=None):
        x = self.conv(pixel_values).relu().flatten(1)
        logits = self.head(self.hidden(x).relu())
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


class TinyImages(Dataset):
    """Random 4x4 images whose class follows from their pixels."""

    def __init__(self, n: int = 96, seed: int = 1) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.pixels = torch.randn(n, 1, 4, 4, generator=generator)
        self.labels = self.pixels.flatten(1)[:, :3].argmax(dim=1)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {"pixel_values": self.pixels[i], "labels": self.labels[i]}


class InOrder:
    """Mixin: the training set in its own order, so that a plain loop can follow."""

    def _get_train_sampler(self, train_dataset=None):
        return torch.utils.data.SequentialSampler(self.train_dataset)


class OrderedPruningTrainer(InOrder, CyclicalPruningTrainer):
    pass


class OrderedTrainer(InOrder, Trainer):
    pass


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


@pytest.fixture
def make_trainer(tmp_path):
    """A trainer on tiny data: `make_trainer(pruning={...}, max_steps=..., ...)`; no pruning makes a plain Trainer."""

    def make(pruning=None, *, model=None, callbacks=None, optimizers=(None, None), shuffle=False, **arguments):
        defaults = {
            "output_dir": str(tmp_path / "run"),
            "per_device_train_batch_size": 8,
            "per_device_eval_batch_size": 32,
            "learning_rate": 0.1,
            "optim": "sgd",
            "optim_args": "momentum=0.9",
            "max_grad_norm": 0.0,
            "report_to": "none",
            "save_strategy": "no",
            "logging_strategy": "no",
            "disable_tqdm": True,
            "use_cpu": True,
            "dataloader_pin_memory": False,
        }
        kwargs = {
            "model": TinyNet() if model is None else model,
            "args": TrainingArguments(**(defaults | arguments)),
            "train_dataset": TinyImages(),
            "eval_dataset": TinyImages(n=48, seed=2),
            "compute_metrics": accuracy,
            "callbacks": callbacks,
            "optimizers": optimizers,
        }
        if pruning is None:
            return (Trainer if shuffle else OrderedTrainer)(**kwargs)
        config = pruning if isinstance(pruning, PruningConfig) else PruningConfig(**pruning)
        return (CyclicalPruningTrainer if shuffle else OrderedPruningTrainer)(**kwargs, pruning=config)

    return make
