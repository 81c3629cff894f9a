"""Moments: what happens to the optimizer's state of weights that are pruned or return."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

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


class Need(NamedTuple):
    """Why a momentum has to be there, and what to do where it is not: for errors."""

    why: str
    remedy: str = f"{_USE}, or another method"


MASKING = Need("mask_momentum True", f"{_USE}, or leave mask_momentum out")
RANKING = Need("a method that ranks weights by their momentum")
RESTARTING = Need("a method that restarts the momentum")


def momentum_name(kind: type[Optimizer], need: Need = MASKING) -> str:
    """Under which name optimizers of this kind keep the momentum of a weight.

    Raises:
        PruningError: If that is not known.
    """
    for known, name in _BUFFERS.items():
        if issubclass(kind, known):
            return name
    raise PruningError(f"{need.why} does not know where {kind.__name__} keeps its momentum: {need.remedy}")


def refuse_without_momentum(optimizer: Optimizer, params: Mapping[str, Tensor], need: Need = MASKING) -> None:
    """Raise a PruningError if there is no momentum of these weights."""
    momentum_name(type(optimizer), need)
    pruned = {id(p) for p in params.values()}
    for group in optimizer.param_groups:
        has_momentum = group.get("momentum") or group.get("betas", (0,))[0]
        if not has_momentum and any(id(p) in pruned for p in group["params"]):
            kind = type(optimizer).__name__
            raise PruningError(f"{need.why} has no effect on {kind} without momentum: {need.remedy}")


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
    momentum_name(kind, RESTARTING)


def restart_momentum_(optimizer: Optimizer) -> None:
    """All momentum to zero, also that of weights that are not pruned; other state is left alone."""
    key = momentum_name(type(optimizer))
    for state in optimizer.state.values():
        if state.get(key) is not None:
            state[key].zero_()


Forget = Callable[[Optimizer | None, Mapping[str, Tensor], Masks], None]
"""What pruned weights lose before masks are chosen again; given the optimizer, the weights and the masks until then."""


def forget_nothing(optimizer: Optimizer | None, params: Mapping[str, Tensor], masks: Masks) -> None:
    """A pruned weight keeps its update, and returns with it: Algorithm 1."""


def forget_weights(optimizer: Optimizer | None, params: Mapping[str, Tensor], masks: Masks) -> None:
    """A pruned weight loses its update, and so returns at zero."""
    apply_masks_(params, masks)


def forget_state(optimizer: Optimizer | None, params: Mapping[str, Tensor], masks: Masks) -> None:
    """A pruned weight loses its update and all that the optimizer knows of it, and so returns afresh."""
    apply_masks_(params, masks)
    for name, p in params.items():
        state = {} if optimizer is None else optimizer.state.get(p, {})
        for slot in state.values():
            if isinstance(slot, Tensor) and slot.shape == p.shape and slot.is_floating_point():
                apply_masks_({name: slot}, masks)


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
