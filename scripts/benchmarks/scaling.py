"""How the cost of masks grows with the model: time, memory, and bytes sent where processes share the weights."""

import argparse
import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hf_cyclical.core import apply_masks_, magprune, ranked, uniform

from .common import SPARSITY, Row, ratio, row, seconds, take_turns
from .masks import peak_bytes

MILLION = 1_000_000
SMALLEST = 1
LARGER = (3, 10, 30, 100, 300)  # million weights
LAYER = 4 * MILLION  # the most weights of all layers but one
COLUMNS = 500
PROCESSES = 2
SHARED = (1, 10, 100)  # million weights that are split among processes
SHARES = {"uniform": uniform, "global": ranked}


def scaling(options: argparse.Namespace) -> list[Row]:
    """What masks cost in models of 1 to 300 million weights, per weight, so that a ratio of 1 is linear growth.

    Times are those of a weight in the larger model against one in the smallest, whose weights fit into caches that the
    larger ones outgrow. Peaks are the most memory on top of weights and masks, against the largest layer, a quarter of
    the weights. Under FSDP2, all that goes through collectives counts, as bytes in the buffers that one process hands
    over, against the bytes of all weights.
    """
    rows = []
    for size in LARGER:
        small, weights = make_weights(SMALLEST), make_weights(size)  # anew each time, as applying masks changes them
        small_masks = magprune(small, SPARSITY)
        masks = magprune(weights, SPARSITY)
        for name, share in SHARES.items():
            choose = partial(magprune, weights, SPARSITY, share, out=masks)
            baseline = partial(magprune, small, SPARSITY, share, out=small_masks)
            rows += compare(f"magprune, {name}, {size} M", choose, baseline, weights, size)
        rows += compare(
            f"apply_masks_, {size} M", partial(apply_masks_, weights, masks), partial(apply_masks_, small, small_masks),
            weights, size,
        )  # fmt: skip
    return [*rows, *communication()]


def compare(
    what: str, work: Callable[[], Any], baseline: Callable[[], Any], weights: dict[str, Tensor], size: int
) -> list[Row]:
    """Time of a weight here and in the smallest model, and the peak of memory."""
    times = max(1, min(size, 30) // SMALLEST)  # the baseline is too short for the clock to catch what neighbours do

    def repeated() -> float:
        return seconds(lambda: [baseline() for _ in range(times)]) / times / SMALLEST * 1000

    turns = take_turns(lambda: seconds(work) / size * 1000, repeated, 2 if size > 30 else 5)
    peak = peak_bytes(work)
    return [
        row(f"{what} / {SMALLEST} M", "ns per weight", turns),
        ratio(f"{what}, peak / largest layer", "bytes", peak, max(w.nbytes for w in weights.values())),
    ]


def make_weights(size: int, parts: int = 1) -> dict[str, Tensor]:
    """So many million Gaussian weights: a quarter of them in one layer, the rest in equal layers; or a part of each."""
    big = size * MILLION // 4
    rest = size * MILLION - big
    layers = max(3, -(-rest // LAYER))
    lengths = [big, *[rest // layers] * layers]
    return {f"layer{i}": torch.randn(n // COLUMNS // parts, COLUMNS) for i, n in enumerate(lengths)}


class Traffic(TorchDispatchMode):
    """Counts the bytes in all buffers that are handed to collectives, by whatever function of torch they go."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if "c10d" in func.namespace and "wait" not in func.__name__:
            self.calls += 1
            self.bytes += sum(leaf.nbytes for leaf in tree_leaves(args) if isinstance(leaf, Tensor))
        return func(*args, **(kwargs or {}))


def communication() -> list[Row]:
    """Bytes of a choice of masks for weights that are split among processes."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(count_traffic, (folder,), nprocs=PROCESSES)
        counts = json.loads((Path(folder) / "counts.json").read_text())
    return [
        ratio(
            f"FSDP2, {PROCESSES} processes, {name}, {size} M: {calls} collectives / weights",
            "bytes",
            sent,
            4 * size * MILLION,
        )
        for size, name, calls, sent in counts
    ]


def count_traffic(rank: int, folder: str) -> None:
    """One of the processes; the first writes what it counted."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=PROCESSES)
    mesh = init_device_mesh("cpu", (PROCESSES,))
    counts = []
    for size in SHARED:
        torch.manual_seed(rank)
        parts = make_weights(size, PROCESSES)
        weights = {name: DTensor.from_local(w, mesh, [Shard(0)], run_check=False) for name, w in parts.items()}
        for name, share in SHARES.items():
            with Traffic() as traffic:
                magprune(weights, SPARSITY, share)
            counts.append((size, name, traffic.calls, traffic.bytes))
    if not rank:
        (Path(folder) / "counts.json").write_text(json.dumps(counts))
    dist.destroy_process_group()
