"""Functions run on several real processes, which talk over gloo."""

import multiprocessing
import os
import socket
import sys
import tempfile
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from hf_cyclical.core import leave_group

# A server that has the imports behind it forks the processes: importing anew in each would take longer than the tests.
multiprocessing.set_forkserver_preload(["hf_cyclical.training.trainer", "torch.distributed.fsdp"])


def on_processes(n, function, *args):
    """What `function(rank, *args)` returns on each of `n` processes; its error, if one of them fails."""
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_run, (n, free_port(), folder, function, args), nprocs=n, start_method="forkserver")
        results = [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(n)]
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _run(rank, n, port, folder, function, args):
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(n), "LOCAL_WORLD_SIZE": str(n),
    }  # fmt: skip
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=n)
    try:
        result = function(rank, *args)
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        result = error
    torch.save(result, Path(folder) / f"{rank}.pt")
    leave_group()
