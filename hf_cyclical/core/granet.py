"""GraNet (Liu et al., 2021): gradual pruning, with drop-and-grow after each choice of masks."""

import math
from dataclasses import replace

from .choices import Largest
from .errors import PruningError
from .learning_rates import LrFactor
from .moments import forget_state
from .recipes import Recipe, gradual
from .regrowth import Regrowth, Within
from .schedules import cosine
from .scores import gradient
from .shares import ranked

_LEAST = 0.005  # the fraction at the end


def granet(
    s_t: float,
    T: int,
    *,
    delta_t: int = 100,
    fraction: float = 0.5,
    ramp: float = 0.6875,
    lr: LrFactor | None = None,
) -> Recipe:
    """Gradual pruning with neuroregeneration: after each pruning some weights go, and those with large gradients come.

    A pruned weight comes back in no other way, and then starts at zero, as does all that the optimizer knows of it.
    Weights are exchanged until the end of the run.

    Args:
        s_t: Target sparsity, a fraction in [0, 1).
        T: Number of updates.
        delta_t: Updates between two choices of the masks.
        fraction: Part of the weights that stay which is exchanged at first; it falls to 0.005 along half a cosine.
        ramp: Part of the run in which the sparsity rises: the authors' 110 of 160 epochs.
        lr: Learning-rate factor over the whole run; a drop if not given.
    """
    if not _LEAST <= fraction <= 1:
        raise PruningError(f"fraction={fraction} cannot work: give {_LEAST} <= fraction <= 1")
    recipe = gradual(s_t, T, delta_t=delta_t, ramp=ramp, lr=lr)
    return replace(
        recipe,
        update_at=lambda t: recipe.update_at(t) or t % delta_t == 0,
        choose=Regrowth(
            cosine(fraction, _LEAST, T), gradient, Within(math.ceil), Largest(share=ranked), forget=forget_state
        ),
        forget=forget_state,
    )
