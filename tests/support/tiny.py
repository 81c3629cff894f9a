"""A tiny network, tiny data and what tests ask of them."""

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from hf_cyclical import CyclicalPruningTrainer, PruningConfig, prunable_parameters

CYCLICAL = {"target_sparsity": 0.9, "cycles": 2, "delta_t": 3}


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


def build_trainer(
    folder, pruning=None, *, model=None, callbacks=None, optimizers=(None, None), shuffle=False, kind=None, **arguments
):
    """A trainer on tiny data; no pruning makes a plain Trainer."""
    defaults = {
        "output_dir": str(folder),
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
    data = {name: arguments.pop(name) for name in ("train_dataset", "eval_dataset") if name in arguments}
    kwargs = {
        "model": TinyNet() if model is None else model,
        "args": TrainingArguments(**(defaults | arguments)),
        "train_dataset": TinyImages(),
        "eval_dataset": TinyImages(n=48, seed=2),
        "compute_metrics": accuracy,
        "callbacks": callbacks,
        "optimizers": optimizers,
        **data,
    }
    if pruning is None:
        return (Trainer if shuffle else OrderedTrainer)(**kwargs)
    config = pruning if isinstance(pruning, PruningConfig) else PruningConfig(**pruning)
    kind = kind or (CyclicalPruningTrainer if shuffle else OrderedPruningTrainer)
    return kind(**kwargs, pruning=config)


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def zeros(model: nn.Module) -> int:
    return sum(int((p == 0).sum()) for p in prunable_parameters(model).values())


def expected_zeros(model: nn.Module, s: float) -> int:
    return round(s * sum(p.numel() for p in prunable_parameters(model).values()))


def same_weights(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


class Watcher(TrainerCallback):
    """Notes what every event after an optimizer step sees."""

    def __init__(self):
        self.sparsities, self.rates, self.at_step = [], [], []

    def on_optimizer_step(self, args, state, control, model=None, optimizer=None, **kwargs):
        params = prunable_parameters(model).values()
        self.sparsities.append(sum(int((p == 0).sum()) for p in params) / sum(p.numel() for p in params))
        self.rates.append(optimizer.param_groups[0]["lr"])
        self.at_step.append(state.global_step)
