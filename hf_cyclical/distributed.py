"""Several processes: which ways of running them are supported, and what has to be the same on all of them."""

import gc
import os

import torch
import torch.distributed as dist
from accelerate import DistributedType
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy
from transformers import Trainer

from .core import PruningError
from .methods import SHARES

_INSTEAD = "use DDP (torchrun --nproc_per_node N) or FSDP2 (accelerate launch --use_fsdp --fsdp_version 2)"
_TESTED = {
    DistributedType.NO: "one process",
    DistributedType.MULTI_CPU: "DDP",
    DistributedType.MULTI_GPU: "DDP",
    DistributedType.FSDP: "FSDP2",
}


def refuse_untested(trainer: Trainer) -> None:
    """Refuse, before anything is trained, ways of running in which pruning would half-work or is not tested."""
    kind = trainer.accelerator.distributed_type
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
        share = trainer.pruning.resolved("share")
        if not SHARES[share].splits:
            others = " or ".join(name for name, row in SHARES.items() if row.splits)
            raise PruningError(f"share {share!r} is not made for weights that FSDP splits: use DDP, or share {others}")
        if getattr(plugin.auto_wrap_policy, "func", plugin.auto_wrap_policy) is size_based_auto_wrap_policy:
            raise PruningError("SIZE_BASED_WRAP fails on lists of layers: use TRANSFORMER_BASED_WRAP or NO_WRAP")
    elif trainer.args.fsdp or os.environ.get("ACCELERATE_USE_FSDP") == "true":
        raise PruningError(
            f"FSDP was asked for, and Accelerate would run {describe_processes(trainer)} without it, as it splits no "
            "weights on CPUs or in a single process: leave it out, or start several processes on GPUs"
        )
    if kind not in _TESTED:
        raise PruningError(f"{kind.value} is not tested: {_INSTEAD}")
    if trainer.args.n_gpu > 1:
        raise PruningError(f"{trainer.args.n_gpu} GPUs in one process (DataParallel) are not tested: {_INSTEAD}")
    if trainer.accelerator.parallelism_config is not None or trainer.is_distributed_loading_by_transformers:
        raise PruningError(f"tensor, context and sequence parallelism are not tested: {_INSTEAD}")


def prepare_for_fsdp(trainer: Trainer) -> None:
    """What FSDP2 needs for image models, which Accelerate takes for language models."""
    if not trainer.is_fsdp_enabled:
        return
    plugin, model = trainer.accelerator.state.fsdp_plugin, trainer.model
    # Saving gathers the weights; else `save_model` would write none.
    plugin.state_dict_config = plugin.optim_state_dict_config = None  # or those of the type before would stay
    plugin.set_state_dict_type("FULL_STATE_DICT")
    # Some models list blocks that only their larger variants have.
    if plugin.transformer_cls_names_to_wrap is None:
        here = {type(module).__name__ for module in model.modules()}
        plugin.transformer_cls_names_to_wrap = sorted(here & set(getattr(model, "_no_split_modules", None) or ()))
    # Patch embeddings are no table of tokens: they are inside such blocks already, or the model has none to tell of.
    model.get_input_embeddings = model.get_output_embeddings = _no_embeddings


def describe_processes(trainer: Trainer) -> str:
    """How many processes there really are, and how they work together."""
    n, kind = trainer.args.world_size, trainer.accelerator.distributed_type
    return "1 process" if n == 1 else f"{n} processes ({_TESTED.get(kind, kind.value)})"


def broadcast_buffers(model: nn.Module) -> None:
    """Give every process the first one's buffers: each has its own statistics of BatchNorm."""
    if _several():
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)


def any_process(flag: bool, device: torch.device) -> bool:
    """Whether the flag is set on any process; all of them must ask."""
    if not _several():
        return flag
    flags = torch.tensor(int(flag), device=device)
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    return bool(flags)


def copies(trainer: Trainer) -> dist.ProcessGroup | None:
    """The processes that each hold a copy of the weights, if there are several."""
    return dist.group.WORLD if _several() and not trainer.is_fsdp_enabled else None


def _several() -> bool:
    return dist.is_initialized() and dist.get_world_size() > 1


def _no_embeddings() -> None:
    return None


def leave_group() -> None:
    """End the threads with which a script's processes spoke on the CPU, once all is said.

    A thread that is late to let go of the last tensor finds Python ending, and aborts the process. NCCL has no such
    threads, and would have the processes that are done wait for the one that pushes.
    """
    if _several() and "nccl" not in dist.get_backend_config():
        gc.collect()  # what holds the group, such as a model of DDP, holds its threads
        dist.destroy_process_group()
