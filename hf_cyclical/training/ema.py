"""The exponential moving average of a model's weights, for those who ask for it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from hf_cyclical.core import local, part, restored, whole


class WeightAverage:
    """a <- decay * a + (1 - decay) * theta after every update, for weights and statistics, in float32.

    It mixes weights of several masks, and so is denser than they are: it is masked where it is used, and restarts
    with each cycle.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self.tensors = {name: t for name, t in tensors.items() if t.is_floating_point()}
        self.values = {name: local(t).float().clone() for name, t in self.tensors.items()}

    @torch.no_grad()
    def update(self, *, restart: bool) -> None:
        """Take in the model's weights, or restart from them."""
        for name, t in self.tensors.items():
            self.values[name].lerp_(local(t).float(), 1.0 if restart else 1 - self.decay)

    @torch.no_grad()
    def apply_(self, masks: Mapping[str, Tensor]) -> None:
        """Give the model the averaged weights, masked."""
        for name, t in self.tensors.items():
            local(t).copy_(self.values[name] * masks[name] if name in masks else self.values[name])

    @contextmanager
    def applied(self, masks: Mapping[str, Tensor]) -> Iterator[None]:
        """The model with the averaged weights, masked, and with its own afterwards."""
        with restored(self.tensors.values()):
            self.apply_(masks)
            yield

    def whole_value(self, name: str) -> Tensor:
        """The average of a tensor in one piece."""
        return whole(self.values[name], self.tensors[name])

    def load(self, name: str, value: Tensor) -> None:
        """Take over the average of a tensor in one piece."""
        self.values[name].copy_(part(value, self.tensors[name]))
