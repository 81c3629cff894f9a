"""DPF, dynamic pruning with feedback (Lin et al., 2020): sparse in every pass, dense in every step."""

from dataclasses import replace

from .learning_rates import LrFactor
from .recipes import Recipe, gradual


def dpf(s_t: float, T: int, *, delta_t: int = 16, ramp: float = 0.75, lr: LrFactor | None = None) -> Recipe:
    """Straight-through: the gradient is taken at theta * M, and the optimizer applies it to the dense theta.

    The sparsity rises along the cubic schedule, and masks are those of the dense weights. Outside the optimizer's step
    the model is theta * M. After the rise the masks stay as they are, and the dense weights are trained further.

    Args:
        s_t: Target sparsity, a fraction in [0, 1).
        T: Number of updates.
        delta_t: Updates between two choices of the masks.
        ramp: Part of the run in which the sparsity rises: the authors' 225 of 300 epochs.
        lr: Learning-rate factor over the whole run; a drop if not given.
    """
    return replace(gradual(s_t, T, delta_t=delta_t, ramp=ramp, lr=lr), straight_through=True)
