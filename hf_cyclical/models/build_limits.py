"""Models without memory for their weights: what a stranger's config asks for is seen before it is taken."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from threading import get_ident
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from hf_cyclical.core import PruningError

# A model may make a few more parameters than it keeps, such as a head that is replaced, and tables of its own.
_FACTOR, _MORE_TENSORS, _MORE_VALUES = 4, 1000, 1 << 24
_BY_SHAPE = {torch.empty, torch.full, torch.ones, torch.rand, torch.randn, torch.zeros}
_BY_LENGTH = {torch.arange, torch.linspace, torch.randperm}
_PER_LAYER = torch.linspace  # of rates of dropping a layer, each of which becomes an object of its own


def sketch(make: Callable[[], nn.Module], shapes: dict[str, tuple[int, ...]], refusal: str) -> nn.Module:
    """A model on the meta device; one that cannot be made there is made in memory, within the same limits.

    Args:
        make: Makes the model.
        shapes: Of the tensors that there are for it: far more than these it may not ask for.
        refusal: The text of the error if it does.

    Raises:
        PruningError: If it does.
    """
    tensors = _FACTOR * len(shapes) + _MORE_TENSORS
    values = _FACTOR * sum(map(prod, shapes.values())) + _MORE_VALUES
    try:
        with _limits(tensors, values, refusal), torch.device("meta"):
            return make()
    except PruningError:
        raise
    except (RuntimeError, TypeError) as error:
        if "meta" not in str(error):
            raise  # not about values, of which there are none
        with _limits(tensors, values, refusal):
            return make()


@contextmanager
def _limits(tensors: int, values: int, refusal: str) -> Iterator[None]:
    """Stop whoever makes more parameters than that, or a single tensor with more values, before it takes memory."""
    thread, made, total = get_ident(), 0, 0

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal made, total
        if parameter is None or get_ident() != thread:
            return
        made, total = made + 1, total + parameter.numel()
        if made > tensors or total > values:
            raise PruningError(refusal)

    hook = register_module_parameter_registration_hook(count)
    try:
        with _SmallTensors(tensors, values, refusal):
            yield
    finally:
        hook.remove()


class _SmallTensors(TorchFunctionMode):
    def __init__(self, tensors: int, values: int, refusal: str) -> None:
        super().__init__()
        self.tensors, self.values, self.refusal = tensors, values, refusal

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if _values(func, [*args, *kwargs.values()]) > (self.tensors if func is _PER_LAYER else self.values):
            raise PruningError(self.refusal)
        return func(*args, **kwargs)


def _values(func: Any, arguments: list[Any]) -> int:
    """How many values the tensor will have that a function is asked to make; 0 if it is no such function."""
    if func not in _BY_SHAPE | _BY_LENGTH:
        return 0
    shape = next((list(given) for given in arguments if isinstance(given, list | tuple)), arguments)
    numbers = [number for number in shape if type(number) is int]
    return prod(numbers) if func in _BY_SHAPE else max(numbers, default=0)
