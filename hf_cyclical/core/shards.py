"""Weights on several processes: split among them (FSDP2), or as a copy on each (DDP).

A weight that is split is a DTensor, cut along its first dimension: what process r holds comes, in the order of the
index, before what process r + 1 holds. Masks and history always have the layout of the part that is here; only counts
travel, and the magnitudes that LAMP sorts.
"""

import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor

from .errors import PruningError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_split(p: Tensor) -> "TypeGuard[DTensor]":
    """Whether a weight is split among processes.

    Whoever has such a weight has imported torch's module for it, which takes too long to import for all others.
    """
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(p, module.DTensor)


def local(p: Tensor) -> Tensor:
    """The part of a weight that this process holds, which is all of it unless it is split; shares its memory."""
    p = p.detach()
    return p.to_local() if is_split(p) else p


def whole(part: Tensor, like: Tensor) -> Tensor:
    """All of a tensor of which every process holds the part that it holds of the weight `like`."""
    if not is_split(like):
        return part
    from torch.distributed.tensor import DTensor

    split = DTensor.from_local(
        part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
    return split.full_tensor()


def distributed(tensor: Tensor, like: Tensor) -> Tensor:
    """A tensor in one piece, which every process has, where the weight `like` is, and split as it is."""
    if not is_split(like):
        return tensor.to(like.device)
    from torch.distributed.tensor import distribute_tensor

    on_device = tensor.to(like.to_local().device)
    return distribute_tensor(on_device, like.device_mesh, like.placements, src_data_rank=None)


def part(tensor: Tensor, like: Tensor) -> Tensor:
    """The part of a whole tensor that belongs where this process holds the weight `like`."""
    return local(distributed(tensor, like)) if is_split(like) else tensor


@contextmanager
def restored(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Whatever is done to the tensors inside, they have their values again afterwards."""
    tensors = [local(t) for t in tensors]
    values = [t.clone() for t in tensors]
    try:
        yield
    finally:
        for t, value in zip(tensors, values, strict=True):
            t.copy_(value)


class Shards:
    """Sums over the processes among which weights are split; of weights in one piece, the numbers themselves."""

    def __init__(self, group: dist.ProcessGroup | None = None, device: torch.device | None = None) -> None:
        self.group = group
        self._device = device

    @classmethod
    def of(cls, params: Iterable[Tensor]) -> "Shards":
        """The processes that hold parts of these weights.

        Raises:
            PruningError: If they are split in a way that this package does not know.
        """
        params = list(params)
        split = [p for p in params if is_split(p)]
        if not split:
            return cls()
        from torch.distributed.tensor import Shard

        layouts = {(p.device_mesh, tuple(p.placements)) for p in split}
        mesh, placements = next(iter(layouts))
        if len(split) < len(params) or len(layouts) > 1 or mesh.ndim > 1 or placements != (Shard(0),):
            raise PruningError(
                f"the weights are split as {', '.join(sorted({str(placements) for _, placements in layouts}))} over "
                f"{mesh.ndim} dimensions of processes, {len(split)} of {len(params)} of them: use FSDP2, which splits "
                "each along its first dimension over all processes, or DDP"
            )
        return cls(mesh.get_group(), split[0].to_local().device)

    @property
    def several(self) -> bool:
        """Whether there is more than one part."""
        return self.group is not None

    def sum(self, counts: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.group is not None:
            dist.all_reduce(counts, group=self.group)
        return counts

    def sums(self, values: Iterable[float], device: torch.device) -> list[float]:
        """Some values, each summed over all processes in double precision."""
        return self.sum(torch.tensor(list(values), dtype=torch.float64, device=device)).tolist()

    def max(self, value: float) -> float:
        """The largest value of all processes."""
        if self.group is None:
            return value
        found = torch.tensor(value, dtype=torch.float64, device=self._device)
        dist.all_reduce(found, op=dist.ReduceOp.MAX, group=self.group)
        return float(found)

    def before(self, counts: Tensor) -> Tensor:
        """The sum over the processes that come before this one."""
        if self.group is None:
            return torch.zeros_like(counts)
        rank, n = dist.get_rank(self.group), dist.get_world_size(self.group)
        gathered = [torch.empty_like(counts) for _ in range(n)]
        dist.all_gather(gathered, counts, group=self.group)
        return torch.stack(gathered)[:rank].sum(dim=0)

    def gather(self, values: Tensor) -> Tensor:
        """Some values of every process, one after the other; each may have another number of them."""
        if self.group is None:
            return values
        rank, n = dist.get_rank(self.group), dist.get_world_size(self.group)
        lengths = self.totals((values.numel() * (rank == r) for r in range(n)), values.device)
        padded = values.new_zeros(max(lengths))
        padded[: values.numel()] = values
        gathered = [torch.empty_like(padded) for _ in lengths]
        dist.all_gather(gathered, padded, group=self.group)
        return torch.cat([part[:length] for part, length in zip(gathered, lengths, strict=True)])

    def totals(self, counts: Iterable[int], device: torch.device) -> list[int]:
        """Some numbers, each summed over all processes."""
        return [int(n) for n in self.sum(torch.tensor(list(counts), dtype=torch.int64, device=device))]


def refuse_different(masks: Mapping[str, Tensor], group: dist.ProcessGroup) -> None:
    """Raise a PruningError, on every process alike, if the processes of `group` do not all have the same masks."""
    device = next(iter(masks.values())).device
    mine = torch.tensor(
        [zlib.crc32(mask.contiguous().view(torch.uint8).cpu().numpy().data) for mask in masks.values()], device=device
    )
    gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, mine, group=group)
    differs = torch.stack(gathered) != gathered[0]
    if not differs.any():
        return
    layer = int(differs.any(dim=0).nonzero()[0])
    ranks = differs[:, layer].nonzero().flatten().tolist()
    raise PruningError(
        f"the masks of {list(masks)[layer]} on process {', '.join(map(str, ranks))} are not those of process 0: the "
        "processes have drifted apart; start them from the same weights, and let DDP average their gradients"
    )
