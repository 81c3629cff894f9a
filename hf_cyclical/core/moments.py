"""Moments: what happens to the optimizer's state of weights that are pruned or return."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor
from torch.optim import SGD, Adam, Adamax, NAdam, Optimizer, RAdam, RMSprop

from .errors import PruningError
from .masks import apply_masks_
from .topk import Masks

# Others may keep more than one momentum, or keep it compressed or in an optimizer of their own.
_BUFFERS: dict[type[Optimizer], str] = {
    SGD: "momentum_buffer",
    RMSprop: "momentum_buffer",
    Adam: "exp_avg",
    Adamax: "exp_avg",
    NAdam: "exp_avg",
    RAdam: "exp_avg",
}
_USE = "use sgd with momentum or adamw_torch"
_REMEDY = f"{_USE}, or leave mask_momentum out"


def momentum_name(kind: type[Optimizer], why: str = "mask_momentum True", remedy: str = _REMEDY) -> str:
    """Under which name optimizers of this kind keep the momentum of a weight.

    Raises:
        PruningError: If that is not known; `why` it has to be and the `remedy` are what the error says.
    """
    for known, name in _BUFFERS.items():
        if issubclass(kind, known):
            return name
    raise PruningError(f"{why} does not know where {kind.__name__} keeps its momentum: {remedy}")


def refuse_without_momentum(optimizer: Optimizer, params: Mapping[str, Tensor]) -> None:
    """Raise a PruningError if there is no momentum of these weights that could be masked."""
    momentum_name(type(optimizer))
    pruned = {id(p) for p in params.values()}
    for group in optimizer.param_groups:
        has_momentum = group.get("momentum") or group.get("betas", (0,))[0]
        if not has_momentum and any(id(p) in pruned for p in group["params"]):
            kind = type(optimizer).__name__
            raise PruningError(f"mask_momentum True has no effect on {kind} without momentum: {_REMEDY}")


def has_momentum(optimizer: Optimizer, params: Mapping[str, Tensor]) -> bool:
    """Whether there is a momentum of these weights that can be masked."""
    try:
        refuse_without_momentum(optimizer, params)
    except PruningError:
        return False
    return True


def momenta(optimizer: Optimizer, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The momentum of each weight that has any yet, by the weight's name."""
    key = momentum_name(type(optimizer))
    found = {name: optimizer.state.get(p, {}).get(key) for name, p in params.items()}
    return {name: momentum for name, momentum in found.items() if momentum is not None}


def refuse_without_restart(kind: type[Optimizer]) -> None:
    """Raise a PruningError if it is not known where optimizers of this kind keep the momentum that is to restart."""
    momentum_name(kind, "a method that restarts the momentum", f"{_USE}, or another method")


def restart_momentum_(optimizer: Optimizer) -> None:
    """All momentum to zero, also that of weights that are not pruned; other state is left alone."""
    key = momentum_name(type(optimizer))
    for state in optimizer.state.values():
        if state.get(key) is not None:
            state[key].zero_()


@dataclass(frozen=True)
class Moments:
    """What happens to the optimizer's state of pruned weights whenever the masks are applied.

    Attributes:
        refuse: Raises a PruningError if there is nothing of these weights that it could change.
        act: Given the optimizer, the weights and their masks.
    """

    refuse: Callable[[Optimizer, Mapping[str, Tensor]], None]
    act: Callable[[Optimizer, Mapping[str, Tensor], Masks], None]


def _mask(optimizer: Optimizer, params: Mapping[str, Tensor], masks: Masks) -> None:
    apply_masks_(momenta(optimizer, params), masks)


KEEP = Moments(lambda optimizer, params: None, lambda optimizer, params, masks: None)
"""The state is left alone, as in Algorithm 1: a weight returns with the sum of all steps since it was pruned."""

MASK = Moments(refuse_without_momentum, _mask)
"""The momentum is masked like the weights: a weight returns with the steps since it was last masked."""
