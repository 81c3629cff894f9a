"""What several processes agree on: flags and buffers, and how they part."""

import gc

import torch
import torch.distributed as dist
from torch import nn


def broadcast_buffers(model: nn.Module) -> None:
    """Give every process the first one's buffers: each has its own statistics of BatchNorm."""
    if several_processes():
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)


def any_process(flag: bool, device: torch.device) -> bool:
    """Whether the flag is set on any process; all of them must ask."""
    if not several_processes():
        return flag
    flags = torch.tensor(int(flag), device=device)
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    return bool(flags)


def several_processes() -> bool:
    """Whether there is more than one."""
    return dist.is_initialized() and dist.get_world_size() > 1


def leave_group() -> None:
    """End the threads with which a script's processes spoke on the CPU, once all is said.

    A thread that is late to let go of the last tensor finds Python ending, and aborts the process. NCCL has no such
    threads, and would have the processes that are done wait for the one that pushes.
    """
    if several_processes() and "nccl" not in dist.get_backend_config():
        gc.collect()  # what holds the group, such as a model of DDP, holds its threads
        dist.destroy_process_group()
