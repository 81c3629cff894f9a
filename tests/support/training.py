"""A small model trained by TVPGD in a plain loop, watched at every update."""

from dataclasses import replace

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from hf_cyclical.core import MASK, TVPGD, Largest, Recipe, prunable_parameters, ranked, uniform

T = 40
NAMES = ["0.weight", "3.weight"]
SHARES = [uniform, ranked]


def make_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))


def make_batches(seed=1):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(T, 8, 1, 6, 6, generator=generator)
    labels = torch.randint(5, (T, 8), generator=generator)
    return list(zip(inputs, labels, strict=True))


def sgd(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=1e-2)


def plain_sgd(params):
    return torch.optim.SGD(params, lr=0.1)


def adamw(params):
    return torch.optim.AdamW(params, lr=0.02, weight_decay=0.1)


def cross_entropy(model, inputs, labels):
    return nn.functional.cross_entropy(model(inputs), labels)


class Training:
    """A plain PyTorch loop with TVPGD, one update at a time."""

    def __init__(self, recipe: Recipe, make_optimizer=sgd, share=None, model=None, mask_momentum=False):
        self.model = make_model() if model is None else model
        self.optimizer = make_optimizer(self.model.parameters())
        self.scheduler = LambdaLR(self.optimizer, recipe.eta)
        if mask_momentum:
            recipe = replace(recipe, moments=MASK)
        if share is not None:
            recipe = replace(recipe, choose=Largest(share=share))
        self.pruner = TVPGD(prunable_parameters(self.model), recipe, optimizer=self.optimizer)

    def learn(self, batch):
        """Line 3 of Algorithm 1."""
        self.optimizer.zero_grad()
        cross_entropy(self.model, *batch).backward()
        self.optimizer.step()

    def update(self, batch) -> bool:
        self.learn(batch)
        renewed = self.pruner.step(self.pruner.t)
        self.scheduler.step()
        return renewed

    def run(self, batches=None):
        """The masks after every update."""
        history = []
        for batch in make_batches() if batches is None else batches:
            self.update(batch)
            history.append(self.masks())
        return history

    def masks(self):
        return {name: mask.clone() for name, mask in self.pruner.masks.items()}

    def weights(self):
        return {name: value.clone() for name, value in self.model.state_dict().items()}


def assert_equal(a, b):
    assert a.keys() == b.keys()
    for name, tensor in a.items():
        assert torch.equal(tensor, b[name]), name


def returned(before, after):
    """Number of weights that are pruned in `before` and kept in `after`."""
    return sum(int((after[name] & ~mask).sum()) for name, mask in before.items())


def pruned_values(training):
    return torch.cat([p.detach()[~training.pruner.masks[name]] for name, p in training.pruner.params.items()])


# Algorithm 1 ---------------------------------------------------------------------------------------------------------
