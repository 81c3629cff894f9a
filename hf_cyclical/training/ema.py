"""The exponential moving average of a model's weights, for those who ask for it."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from hf_cyclical.core import Recipe, local, part, restored, whole


class WeightAverage:
    """a <- d * a + (1 - d) * theta after every update of pruning, for weights and statistics, in float32.

    It restarts from the weights at each choice of masks and with each cycle, so that it is of weights with one set of
    masks. n updates after that, d is (1 + n) / (10 + n) until this reaches `decay`: else the weights at the restart
    would outweigh those that were trained since.

    Args:
        model: The model, without wrappers.
        decay: The largest d.
        recipe: When masks are chosen and cycles start.
    """

    def __init__(self, model: nn.Module, decay: float, recipe: Recipe) -> None:
        self.decay = decay
        starts = {cycle.start for cycle in recipe.cycles}
        self._restarts = [t for t in range(recipe.cycles[0].start, recipe.T) if t in starts or recipe.update_at(t)]
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self.tensors = {name: t for name, t in tensors.items() if t.is_floating_point()}
        self.values = {name: local(t).float().clone() for name, t in self.tensors.items()}

    @torch.no_grad()
    def update(self, t: int) -> None:
        """Take in the model's weights after update `t`, or restart from them; nothing in a dense start."""
        if t < self._restarts[0]:
            return
        n = t - self._restarts[bisect_right(self._restarts, t) - 1]
        decay = min(self.decay, (1 + n) / (10 + n)) if n else 0.0
        for name, tensor in self.tensors.items():
            self.values[name].lerp_(local(tensor).float(), 1 - decay)

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
