"""What CyclicalPruningTrainer refuses before training starts: optimizers, schedules, launchers."""

import os
from collections.abc import Mapping
from dataclasses import replace

import torch
from accelerate.optimizer import AcceleratedOptimizer
from torch.distributed.fsdp import CPUOffloadPolicy
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy
from torch.optim import Optimizer
from transformers import Trainer

from hf_cyclical.config import PruningConfig
from hf_cyclical.core import (
    KEEP,
    MASK,
    MASKING,
    RANKING,
    PruningError,
    Recipe,
    has_momentum,
    momentum_name,
    refuse_without_momentum,
    refuse_without_restart,
)

from .distributed import TESTED, describe_processes

_INSTEAD = "use DDP (torchrun --nproc_per_node N) or FSDP2 (accelerate launch --use_fsdp --fsdp_version 2)"


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
    needs = [MASKING] * bool(trainer.pruning.mask_momentum) + [RANKING] * recipe.needs_momentum
    for need in needs:
        momentum_name(kind, need)
        if optimizer is None:
            params = {"": torch.nn.Parameter(torch.zeros(1))}
            optimizer = kind(params.values(), **options)
        refuse_without_momentum(optimizer, params, need)


def fitting(recipe: Recipe, pruning: PruningConfig, optimizer: Optimizer, params: Mapping[str, torch.Tensor]) -> Recipe:
    """The recipe for an optimizer: momentum is masked only where there is one, unless that was asked for."""
    if recipe.moments is MASK and pruning.mask_momentum is None and not has_momentum(unwrapped(optimizer), params):
        return replace(recipe, moments=KEEP)
    return recipe


def unwrapped(optimizer: Optimizer) -> Optimizer:
    """The optimizer that holds the state, without Accelerate's wrapper."""
    return optimizer.optimizer if isinstance(optimizer, AcceleratedOptimizer) else optimizer


def refuse_untested(trainer: Trainer) -> None:
    """Refuse, before anything is trained, ways of running in which pruning would half-work or is not tested."""
    kind = trainer.accelerator.distributed_type
    started = os.environ.get("WORLD_SIZE", "1")
    if started != "1" and trainer.args.world_size == 1:
        raise PruningError(
            f"{started} processes were started and each would train alone into one output_dir, as there is no "
            "accelerator and use_cpu is off: pass use_cpu=True to TrainingArguments"
        )
    if trainer.is_deepspeed_enabled:
        raise PruningError(f"DeepSpeed trains a copy of the weights, which would undo the pruning: {_INSTEAD}")
    if trainer.is_fsdp_enabled:
        plugin = trainer.accelerator.state.fsdp_plugin
        if plugin.fsdp_version != 2:
            raise PruningError(f"FSDP version {plugin.fsdp_version} hides the layers' weights: {_INSTEAD}")
        if plugin.activation_checkpointing:
            raise PruningError("FSDP with activation_checkpointing is not tested: use gradient_checkpointing instead")
        if isinstance(plugin.cpu_offload, CPUOffloadPolicy):
            raise PruningError("FSDP with cpu_offload is not tested: turn it off")
        if trainer.pruning.distill:
            raise PruningError("distill is not made for weights that FSDP splits: use DDP, or leave it out")
        if trainer.pruning.allr is not None:
            raise PruningError("allr is not made for weights that FSDP splits: use DDP, or leave it out")
        if getattr(plugin.auto_wrap_policy, "func", plugin.auto_wrap_policy) is size_based_auto_wrap_policy:
            raise PruningError("SIZE_BASED_WRAP fails on lists of layers: use TRANSFORMER_BASED_WRAP or NO_WRAP")
    elif trainer.args.fsdp or os.environ.get("ACCELERATE_USE_FSDP") == "true":
        raise PruningError(
            f"FSDP was asked for, and Accelerate would run {describe_processes(trainer)} without it, as it splits no "
            "weights on CPUs or in a single process: leave it out, or start several processes on GPUs"
        )
    if kind not in TESTED:
        raise PruningError(f"{kind.value} is not tested: {_INSTEAD}")
    if trainer.args.n_gpu > 1:
        raise PruningError(f"{trainer.args.n_gpu} GPUs in one process (DataParallel) are not tested: {_INSTEAD}")
    if trainer.accelerator.parallelism_config is not None or trainer.is_distributed_loading_by_transformers:
        raise PruningError(f"tensor, context and sequence parallelism are not tested: {_INSTEAD}")
