"""RigL (Evci et al., 2020): constant sparsity, weights grow by the magnitude of their gradient."""

from .errors import PruningError
from .learning_rates import LrFactor, lr_drop
from .moments import forget_state
from .recipes import Recipe
from .regrowth import Regrowth
from .schedules import constant, cosine, split, zero_first
from .scores import gradient


def rigl(
    s_t: float,
    T: int,
    *,
    delta_t: int = 100,
    fraction: float = 0.3,
    stop: float = 0.75,
    replace_step: bool = True,
    lr: LrFactor | None = None,
) -> Recipe:
    """The rigged lottery: every `delta_t` updates the smallest weights go, and those with the largest gradients come.

    The first update only prunes. Weights that come start at zero, and so does all that the optimizer knows of them; one
    that goes and comes in the same update keeps both. Which weights stay at first is up to the recipe's choice:
    the authors' masks are random, and shared out by `erk`.

    Args:
        s_t: Sparsity from the first update on, a fraction in [0, 1).
        T: Number of updates.
        delta_t: Updates between two exchanges of weights.
        fraction: Part of the weights that stay which is exchanged at first; it falls to 0 along half a cosine.
        stop: Part of the run after which masks stay fixed.
        replace_step: Whether an exchange takes the place of the optimizer's step, as the authors have it.
        lr: Learning-rate factor over the whole run; a drop if not given.
    """
    end = round(stop * T)
    if delta_t < 1 or not 0 <= fraction <= 1:
        raise PruningError(f"delta_t={delta_t}, fraction={fraction} cannot work: give delta_t >= 1, 0 <= fraction <= 1")

    def exchanges(t: int) -> bool:
        return t % delta_t == 0 and t < max(end, 1)

    return Recipe(
        s=constant(s_t),
        eta=(lr or lr_drop())(T),
        update_at=exchanges,
        cycles=split(T, 1),
        choose=Regrowth(zero_first(cosine(fraction, 0.0, end)), gradient),
        forget=forget_state,
        hold_at=lambda t: t == 0 or (replace_step and exchanges(t)),
    )
