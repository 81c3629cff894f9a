"""The bytes and the time that sparse weights take on the disk, packed and otherwise."""

import argparse
import gzip
import math
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils.data import DataLoader

from hf_cyclical.core import apply_masks_, magprune
from hf_cyclical.data import DataArguments, load_image_data
from hf_cyclical.formats import decode, encode, pack_file
from hf_cyclical.models import load_image_model

from .common import Row, ratio, row, seconds, take_turns

SPARSITIES = (0.9, 0.95, 0.98)
EPOCHS = 3


def storage(options: argparse.Namespace) -> list[Row]:
    """Bytes of pruned tensors against the bound n*H(s) + 32*nnz bits, of files, and times against gzip.

    The model is the one given, or a ResNet-20 trained on digits, pruned by magnitude to each sparsity. The bound is
    that of positions that are drawn at random and of float32 values that are stored as they are.
    """
    weights = load_file(options.model / "model.safetensors") if options.model else digits_weights()
    rows = []
    for s in SPARSITIES:
        tensors = {name: w.clone() for name, w in weights.items()}
        pruned = {name: w for name, w in tensors.items() if w.is_floating_point() and w.ndim >= 2}
        apply_masks_(pruned, magprune(pruned, s))
        rows += sizes(s, pruned) + files(s, tensors) + times(s, pruned)
    return rows


def digits_weights() -> dict[str, Tensor]:
    """The weights of a ResNet-20 after a few epochs on digits."""
    data = load_image_data(DataArguments("digits"))
    loaded = load_image_model("cifar_resnet20", data.labels, image_size=data.image_size)
    train, _ = data.for_model(loaded, seed=0)
    model = loaded.model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(EPOCHS):
        for batch in DataLoader(train, 64, shuffle=True, collate_fn=data.collate):
            model(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return {name.removeprefix("timm_model."): w for name, w in model.state_dict().items()}


def sizes(s: float, pruned: dict[str, Tensor]) -> list[Row]:
    bound = sum(bound_bytes(w) for w in pruned.values())
    ours = sum(encode(w).numel() for w in pruned.values())
    zipped = sum(len(gzip.compress(w.numpy().tobytes(), 6)) for w in pruned.values())
    masked = sum(-(-w.numel() // 8) + 4 * int(w.count_nonzero()) for w in pruned.values())
    return [
        ratio(f"dense / bound, s = {s}", "bytes", sum(w.nbytes for w in pruned.values()), bound),
        ratio(f"gzip / bound, s = {s}", "bytes", zipped, bound),
        ratio(f"bitmask / bound, s = {s}", "bytes", masked, bound),
        ratio(f"packed / bound, s = {s}", "bytes", ours, bound, ("<=", 1)),
    ]


def bound_bytes(w: Tensor) -> float:
    n, kept = w.numel(), int(w.count_nonzero())
    entropy = -sum(p * math.log2(p) for p in (kept / n, 1 - kept / n) if p)
    return (n * entropy + 32 * kept) / 8


def files(s: float, tensors: dict[str, Tensor]) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        dense, packed = Path(folder) / "dense.safetensors", Path(folder) / "packed.safetensors"
        save_file(tensors, dense)
        summary = pack_file(dense, packed)
    what = f"packed file / dense file, s = {s}"
    return [ratio(what, "bytes", summary.packed_bytes, summary.dense_bytes, ("<=", 0.11) if s == 0.9 else None)]


def times(s: float, pruned: dict[str, Tensor]) -> list[Row]:
    dense = [w.numpy().tobytes() for w in pruned.values()]
    zipped = [gzip.compress(data, 6) for data in dense]
    packed = {name: encode(w) for name, w in pruned.items()}
    encodings = take_turns(
        partial(seconds, lambda: [encode(w) for w in pruned.values()]),
        partial(seconds, lambda: [gzip.compress(data, 6) for data in dense]),
        5,
    )
    decodings = take_turns(
        partial(seconds, lambda: [decode(payload, name) for name, payload in packed.items()]),
        partial(seconds, lambda: [np.frombuffer(gzip.decompress(data), np.float32) for data in zipped]),
        5,
    )
    return [
        row(f"encode / gzip, s = {s}", "s", encodings),
        row(f"decode / gunzip, s = {s}", "s", decodings),
    ]
