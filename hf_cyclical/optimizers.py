"""What CyclicalPruningTrainer asks of optimizer and scheduler before training starts."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from accelerate.optimizer import AcceleratedOptimizer
from torch.optim import Optimizer
from transformers import Trainer

from .config import PruningConfig
from .core import PruningError, Recipe
from .core.momentum import (
    KEEP,
    MASK,
    has_momentum,
    momentum_name,
    refuse_without_momentum,
    refuse_without_restart,
)


def refuse_other_schedules(trainer: Trainer) -> None:
    """Raise a PruningError if the learning rate, or the weights that are evaluated, would not be the recipe's."""
    args = trainer.args
    if args.optim.startswith("schedule_free"):
        raise PruningError(
            f"optim {args.optim.value!r} evaluates and saves other weights than it trains, which the masks do "
            "not reach: use sgd, adamw_torch or another optimizer, with ema_decay for averaged weights"
        )
    if trainer.lr_scheduler is not None:
        raise PruningError(
            "optimizers[1] is a scheduler, and the recipe sets the learning rate: pass (optimizer, None)"
        )
    if args.lr_scheduler_type != "linear" or args.get_warmup_steps(1000):
        schedule, warmup = args.lr_scheduler_type.value, args.warmup_steps
        raise PruningError(
            f"lr_scheduler_type {schedule!r} with warmup_steps {warmup!r} has no effect, as the recipe sets the "
            "learning rate: leave them out, and use lr_shape"
        )


def refuse_planned_optimizer(trainer: Trainer, recipe: Recipe, params: Mapping[str, torch.Tensor]) -> None:
    """Raise a PruningError if the optimizer that the trainer has, or is going to make, lacks what the recipe needs."""
    optimizer = unwrapped(trainer.optimizer) if trainer.optimizer is not None else None
    kind, options = type(optimizer), {}
    if optimizer is None:
        kind, options = trainer.get_optimizer_cls_and_kwargs(trainer.args, trainer.model)
    if recipe.restarts:
        refuse_without_restart(kind)
    if trainer.pruning.mask_momentum:
        momentum_name(kind)
        if optimizer is None:
            params = {"": torch.nn.Parameter(torch.zeros(1))}
            optimizer = kind(params.values(), **options)
        refuse_without_momentum(optimizer, params)


def fitting(recipe: Recipe, pruning: PruningConfig, optimizer: Optimizer, params: Mapping[str, torch.Tensor]) -> Recipe:
    """The recipe for an optimizer: momentum is masked only where there is one, unless that was asked for."""
    if recipe.moments is MASK and pruning.mask_momentum is None and not has_momentum(unwrapped(optimizer), params):
        return replace(recipe, moments=KEEP)
    return recipe


def unwrapped(optimizer: Optimizer) -> Optimizer:
    """The optimizer that holds the state, without Accelerate's wrapper."""
    return optimizer.optimizer if isinstance(optimizer, AcceleratedOptimizer) else optimizer
