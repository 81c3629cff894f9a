"""Files of packed weights: safetensors with the same names, in which sparse tensors are rows of bytes.

The header's metadata has one entry more than that of the dense file, JSON with the version of the layout, dtype and
shape of every packed tensor, and a checksum of all tensors and of the other metadata. Names are the same, so a reader
that knows nothing of this stops at the first shape that differs.
"""

import hashlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from hf_cyclical.core import PruningError

from .codec import MAX_BYTES, decode, encode, packable, read_header, refuse_large

METADATA_KEY = "hf_cyclical_packed"
VERSION = 1
_ENTRY = 64  # bytes that a tensor's entry in the metadata takes, about

AnyPath = str | os.PathLike[str]


@dataclass(frozen=True)
class PackedSummary:
    """What packing did to a file: bytes of both, and what became of the tensors that were packed."""

    dense_bytes: int
    packed_bytes: int
    tensors: int
    weights: int
    nonzero: int
    payload_bytes: int

    @property
    def ratio(self) -> float:
        """How many times smaller the packed file is."""
        return self.dense_bytes / self.packed_bytes


def pack_file(source: AnyPath, target: AnyPath) -> PackedSummary:
    """Write the weights of a safetensors file packed.

    Packed are the tensors that are at least half zeros and smaller so; the others stay as they are. Zeros lose their
    sign, everything else comes back bit by bit.

    Raises:
        PruningError: If the source is damaged or packed already.
    """
    source, target = Path(source), Path(target)
    with _opened(source) as file:
        metadata = dict(file.metadata() or {})
        if METADATA_KEY in metadata:
            raise PruningError(f"{str(source)!r} is packed already: use it as it is, or unpack it first")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
    payloads = {name: payload for name, tensor in tensors.items() if (payload := _smaller(tensor)) is not None}
    lines = [_line(name, _plus_zeros(t) if name in payloads else t) for name, t in tensors.items()]
    kinds = {name: [_dtype_name(tensors[name]), list(tensors[name].shape)] for name in sorted(payloads)}
    about = {"version": VERSION, "checksum": _checksum(lines, metadata), "tensors": kinds}
    metadata[METADATA_KEY] = json.dumps(about, separators=(",", ":"))
    _write(target, tensors | payloads, metadata)
    return PackedSummary(
        dense_bytes=source.stat().st_size,
        packed_bytes=target.stat().st_size,
        tensors=len(payloads),
        weights=sum(tensors[name].numel() for name in payloads),
        nonzero=sum(int(tensors[name].count_nonzero()) for name in payloads),
        payload_bytes=sum(payload.numel() for payload in payloads.values()),
    )


def unpack_file(source: AnyPath, target: AnyPath, *, max_bytes: int = MAX_BYTES) -> None:
    """Write the weights of a packed file as they were before, with the metadata that they had.

    Raises:
        PruningError: As of `read_packed`.
    """
    tensors = read_packed(source, max_bytes=max_bytes)
    with _opened(Path(source)) as file:
        metadata = {key: value for key, value in file.metadata().items() if key != METADATA_KEY}
    _write(Path(target), tensors, metadata)


def read_packed(path: AnyPath, *, max_bytes: int = MAX_BYTES) -> dict[str, Tensor]:
    """The tensors of a packed file, which may be hostile.

    Args:
        path: The file.
        max_bytes: The most that the packed ones may take together; the others take what they take in the file.

    Raises:
        PruningError: If the file is not packed, if anything in it is damaged, or if that is more than `max_bytes`.
    """
    return dict(iterate_packed(path, max_bytes=max_bytes))


def iterate_packed(path: AnyPath, *, max_bytes: int = MAX_BYTES) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors of a packed file, one at a time; only the end of it says that names and metadata are whole."""
    path = Path(path)
    with _opened(path) as file:
        metadata = dict(file.metadata() or {})
        about = _about(path, metadata.pop(METADATA_KEY, None))
        names, kinds = list(file.keys()), about["tensors"]
        if strangers := sorted(set(kinds) - set(names)):
            raise _damaged(path, f"it lacks {strangers[0]!r}")
        refuse_large(str(path), sum(_refuse_bad_kind(file, name, kinds[name]) for name in kinds), max_bytes)
        lines = []
        for name in names:
            tensor = file.get_tensor(name)
            if name in kinds:
                tensor = decode(tensor, name, max_bytes=max_bytes)
            lines.append(_line(name, tensor))
            yield name, tensor
        if _checksum(lines, metadata) != about["checksum"]:
            raise _damaged(path, "the checksum of its tensors and metadata differs")


def is_packed(path: AnyPath) -> bool:
    """Whether a safetensors file is packed.

    Raises:
        PruningError: If it cannot be read.
    """
    with _opened(Path(path)) as file:
        return METADATA_KEY in (file.metadata() or {})


def packed_names(path: AnyPath) -> list[str]:
    """The names of the packed tensors of a packed file."""
    path = Path(path)
    with _opened(path) as file:
        return list(_about(path, (file.metadata() or {}).get(METADATA_KEY))["tensors"])


def _smaller(tensor: Tensor) -> Tensor | None:
    """The payload of a tensor that is sparse and smaller with it."""
    if not packable(tensor) or 2 * int(tensor.count_nonzero()) > tensor.numel():
        return None
    payload = encode(tensor)
    return payload if payload.numel() + _ENTRY < tensor.nbytes else None


def _about(path: Path, text: str | None) -> dict[str, Any]:
    """What the metadata says of the packed tensors, with every field checked."""
    if text is None:
        raise PruningError(f"{str(path)!r} is not packed: read it as any safetensors file, or pack it first")
    try:
        about = json.loads(text)
        version, checksum, kinds = (about[key] for key in ("version", "checksum", "tensors"))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _damaged(path, f"its metadata {METADATA_KEY} cannot be read") from error
    if version != VERSION:
        raise PruningError(f"{str(path)!r} is packed in layout {version!r:.20}, known is {VERSION}: update hf_cyclical")
    if not isinstance(checksum, str) or not isinstance(kinds, dict):
        raise _damaged(path, f"its metadata {METADATA_KEY} cannot be read")
    return about


def _refuse_bad_kind(file: Any, name: str, kind: Any) -> int:
    """The bytes that a packed tensor takes when decoded, if its payload says of itself what the metadata says."""
    header = read_header(file.get_tensor(name), name)
    if kind != [str(header.dtype).removeprefix("torch."), list(header.shape)]:
        raise PruningError(
            f"packed tensor {name!r} is of {header.dtype} and shape {header.shape}, but the file's metadata says "
            f"{kind!r:.80}: download or pack it again"
        )
    return header.nbytes


def _line(name: str, tensor: Tensor) -> list[Any]:
    """What the checksum of a file covers of a tensor."""
    data = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()
    return [name, _dtype_name(tensor), list(tensor.shape), zlib.crc32(data)]


def _checksum(lines: list[list[Any]], metadata: Mapping[str, str]) -> str:
    text = json.dumps([sorted(lines), sorted(metadata.items())], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _plus_zeros(tensor: Tensor) -> Tensor:
    """The tensor with +0.0 for every zero, as decoding gives it back."""
    return torch.where(tensor == 0, torch.zeros((), dtype=tensor.dtype), tensor)


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A safetensors file, whose errors are turned into ours."""
    if not path.is_file():
        raise PruningError(f"there is no file {str(path)!r}: give a safetensors file")
    try:
        with safe_open(path, "pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise PruningError(f"{str(path)!r} is no safetensors file, or damaged: {first}") from error


def _write(target: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a file under another name, then give it its own, so that it is never half written."""
    new = target.with_name(f".{target.name}.new")
    save_file(tensors, new, metadata or None)
    _sort_metadata(new)
    new.replace(target)


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


def _damaged(path: Path, why: str) -> PruningError:
    return PruningError(f"{str(path)!r} is damaged, {why}: download or pack it again")
