"""ALLR in the Trainer: the recipe's learning rates, lowered to the part that suits what pruning removes."""

from accelerate.utils import broadcast_object_list
from transformers import Trainer

from hf_cyclical.core import Recipe, allr
from hf_cyclical.core.schedules import Schedule


class LoweredRate:
    """eta(t) of a recipe times a part, which torch saves and loads with the scheduler's state."""

    __slots__ = ("__dict__", "_eta")

    def __init__(self, eta: Schedule, part: float) -> None:
        self._eta = eta
        self.part = part

    def __call__(self, t: int) -> float:
        """The learning-rate factor of update t."""
        return self.part * self._eta(t)


def rates_of(trainer: Trainer, recipe: Recipe) -> Schedule:
    """The learning-rate factor of every update of a run that starts from the weights that the trainer has."""
    return recipe.eta if trainer.pruning.allr is None else LoweredRate(recipe.eta, rate_part(trainer))


def rate_part(trainer: Trainer) -> float:
    """The part of the learning rate that a run has: 1 without ALLR, and everywhere that of the first process."""
    pruning = trainer.pruning
    if pruning.allr is None:
        return 1.0
    params = trainer.prunable_parameters()
    part = allr(params, pruning.choice, pruning.resolved("target_sparsity"), pruning.allr)
    return broadcast_object_list([part])[0]
