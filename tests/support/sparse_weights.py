"""Sparse tensors, and what packing keeps of them."""

import torch

from hf_cyclical.core import apply_masks_, magprune

INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor):
    """The bits of a tensor, with +0.0 for -0.0: what packing keeps."""
    if not tensor.is_floating_point():
        return tensor
    return torch.where(tensor == 0, 0, tensor.view(INTEGERS[tensor.element_size()]))


def sparse(*shape, s=0.9, dtype=torch.float32, seed=0):
    weights = {"w": torch.randn(shape, generator=torch.Generator().manual_seed(seed))}
    apply_masks_(weights, magprune(weights, s))
    return weights["w"].to(dtype)


def same_tensors(a, b):
    def same(x, y):
        return (x.shape, x.dtype) == (y.shape, y.dtype) and torch.equal(bits(x), bits(y))

    return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
