"""The optimizer's momentum, where it is masked like the weights."""

from collections.abc import Mapping

from torch import Tensor
from torch.optim import Optimizer

from .errors import PruningError

_NAMES = ("momentum_buffer", "exp_avg")  # of SGD and RMSprop; of Adam and its kin


def refuse_without_momentum(optimizer: Optimizer) -> None:
    """Raise a PruningError if there is nothing that could be masked."""
    if not all(group.get("momentum") or group.get("betas", (0,))[0] for group in optimizer.param_groups):
        raise PruningError(
            f"{type(optimizer).__name__} has no momentum to mask: give it some, or leave mask_momentum out"
        )


def momenta(optimizer: Optimizer, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The momentum of each weight that has been updated, by the weight's name.

    Raises:
        PruningError: If the optimizer keeps it in a way that this package does not know.
    """
    found = {}
    for name, p in params.items():
        state = optimizer.state.get(p)
        if not state:  # nothing to update it with yet
            continue
        known = [state[key] for key in _NAMES if key in state]
        if len(known) != 1 or known[0].shape != p.shape:
            raise PruningError(
                f"{type(optimizer).__name__} keeps {', '.join(map(str, state))} of {name}, among which its momentum is "
                "not known: use sgd or adamw_torch, or leave mask_momentum out"
            )
        found[name] = known[0]
    return found
