"""The two branches of a pushed model: whether what is packed is what is not."""

import hashlib
from pathlib import Path

import torch
from huggingface_hub import HfApi, errors

from hf_cyclical.formats import iterate_tensors, packable, plus_zeros
from hf_cyclical.models import downloading


def has_branch(repo_id: str, branch: str) -> bool:
    """Whether a repository of the Hub has a branch; not, as far as anybody knows, without a network."""
    with downloading(repo_id):
        try:
            return any(found.name == branch for found in HfApi().list_repo_refs(repo_id).branches)
        except errors.OfflineModeIsEnabled:
            return False


def content_hash(file: Path, max_bytes: int) -> str:
    """SHA-256 of all tensors of a file, packed or not; zeros have no sign."""
    digests = []
    for name, tensor in iterate_tensors(file, max_bytes=max_bytes):
        plain = plus_zeros(tensor) if packable(tensor) else tensor
        data = plain.contiguous().view(-1).view(torch.uint8).numpy()
        about = f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode()
        digests.append(hashlib.sha256(about + hashlib.sha256(data).digest()).digest())
    return hashlib.sha256(b"".join(sorted(digests))).hexdigest()
