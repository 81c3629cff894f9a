import os

# Two cores that others use too: one thread a process is the fastest and the most repeatable.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from tiny import OrderedPruningTrainer, OrderedTrainer, TinyImages, TinyNet, accuracy
from transformers import Trainer, TrainingArguments

from hf_cyclical import CyclicalPruningTrainer, PruningConfig


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
