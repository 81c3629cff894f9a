"""Safetensors files as this package writes them: atomic, and equal where their content is."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from .atomic import replacing


def plus_zeros(tensor: Tensor) -> Tensor:
    """The tensor with +0.0 for every zero, as decoding gives it back."""
    return torch.where(tensor == 0, torch.zeros((), dtype=tensor.dtype), tensor)


def write_tensors(target: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file, as a whole or not at all; equal content makes equal files."""
    with replacing(target) as new:
        save_file(tensors, new, metadata or None)
        _sort_metadata(new)


def _sort_metadata(path: Path) -> None:
    """Put the metadata of a file in order: safetensors writes it in a new one each time, and equal files should be."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        if "__metadata__" in header:
            header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) <= size:  # else something in it is written in another way: leave it
            file.seek(8)
            file.write(text.ljust(size))
