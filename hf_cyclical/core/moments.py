"""The optimizer's momentum, where it is masked like the weights."""

from collections.abc import Mapping

from torch import Tensor
from torch.optim import SGD, Adam, Adamax, NAdam, Optimizer, RAdam, RMSprop

from .errors import PruningError

# Others may keep more than one momentum, or keep it compressed or in an optimizer of their own.
_BUFFERS: dict[type[Optimizer], str] = {
    SGD: "momentum_buffer",
    RMSprop: "momentum_buffer",
    Adam: "exp_avg",
    Adamax: "exp_avg",
    NAdam: "exp_avg",
    RAdam: "exp_avg",
}
_REMEDY = "use sgd with momentum or adamw_torch, or leave mask_momentum out"


def momentum_name(kind: type[Optimizer]) -> str:
    """Under which name optimizers of this kind keep the momentum of a weight.

    Raises:
        PruningError: If that is not known.
    """
    for known, name in _BUFFERS.items():
        if issubclass(kind, known):
            return name
    raise PruningError(f"mask_momentum True does not know where {kind.__name__} keeps its momentum: {_REMEDY}")


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
