"""Line 3 of Algorithm 1, the optimizer's step, where a recipe changes it: left out, or applied to dense weights."""

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from .masks import apply_masks_
from .shards import local
from .topk import Masks


def before_steps(optimizer: Optimizer, call: Callable[[], None]) -> RemovableHandle:
    """Have a method called before each step of the optimizer that really takes place, while its object is there."""
    method = weakref.WeakMethod(call)  # the optimizer may outlive the run

    def hook(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if (found := method()) is not None:
            found()

    return optimizer.register_step_pre_hook(hook)


class Line3:
    """What stands around a step of the optimizer.

    A step that is left out sees no gradients: weights, momentum and weight decay stay as they are, and counters too.
    Dense weights are those of the model plus what is put aside where the masks are False; they are whole in the step.

    Args:
        optimizer: The optimizer.
        params: The weights that are pruned, by name.
        dense: Whether steps are applied to dense weights.

    Attributes:
        aside: By name, the values of weights that the masks hide, and 0 where they do not; empty unless `dense`.
    """

    def __init__(self, optimizer: Optimizer, params: Mapping[str, Tensor], *, dense: bool) -> None:
        self._optimizer, self._params = optimizer, params
        self.aside = {name: torch.zeros_like(local(p)) for name, p in params.items()} if dense else {}
        self._in_step = False
        self._gradients: list[tuple[Tensor, Tensor]] = []

    @torch.no_grad()
    def begin(self, *, held: bool) -> None:
        """Before a step, which is left out if `held`."""
        self._make_dense()
        if held:
            weights = [p for group in self._optimizer.param_groups for p in group["params"]]
            self._gradients = [(p, p.grad) for p in weights if p.grad is not None]
            for p in weights:
                p.grad = None

    def end(self) -> None:
        """After a step, or one that a gradient scaler left out: gradients are back, and the weights are dense."""
        for p, gradient in self._gradients:
            p.grad = gradient
        self._gradients = []
        self._make_dense()
        self._in_step = False

    def put_aside(self, masks: Masks) -> None:
        """Keep the values that the masks are about to hide."""
        for name, values in self.aside.items():
            values.copy_(local(self._params[name]))
        apply_masks_(self.aside, {name: ~masks[name] for name in self.aside})

    def _make_dense(self) -> None:
        if not self._in_step:
            for name, values in self.aside.items():
                local(self._params[name]).add_(values)
        self._in_step = True
