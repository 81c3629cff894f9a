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
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from hf_cyclical.core import PruningError, first_line

from .codec import MAX_BYTES, Header, decode, encode, packable, read_header, refuse_large
from .model_folder import WEIGHTS
from .tensor_files import plus_zeros, write_tensors

METADATA_KEY = "hf_cyclical_packed"
VERSION = 1
_MOST_TENSORS = 20_000  # far more than any model has
_ENTRY = 64  # bytes that a tensor's entry in the metadata takes, about
# Those that torch can compute with: of the others in safetensors it has some in name only.
_DTYPES = {f"I{bits}": getattr(torch, f"int{bits}") for bits in (8, 16, 32, 64)}
_DTYPES |= {f"U{bits}": getattr(torch, f"uint{bits}") for bits in (8, 16, 32, 64)}
_DTYPES |= {"BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "C64": torch.complex64}
_DTYPES |= {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}

AnyPath = str | os.PathLike[str]


class Kind(NamedTuple):
    """What a tensor is, apart from its values."""

    dtype: torch.dtype
    shape: tuple[int, ...]


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
    metadata = header_metadata(source)
    if METADATA_KEY in metadata:
        raise PruningError(f"{str(source)!r} is packed already: use it as it is, or unpack it first")
    tensors = dict(iterate_tensors(source))
    payloads = {name: payload for name, tensor in tensors.items() if (payload := _smaller(tensor)) is not None}
    lines = [_line(name, plus_zeros(t) if name in payloads else t) for name, t in tensors.items()]
    kinds = {name: [_dtype_name(tensors[name]), list(tensors[name].shape)] for name in sorted(payloads)}
    about = {"version": VERSION, "checksum": _checksum(lines, metadata), "tensors": kinds}
    metadata[METADATA_KEY] = json.dumps(about, separators=(",", ":"))
    write_tensors(target, tensors | payloads, metadata)
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
    metadata = {key: value for key, value in header_metadata(source).items() if key != METADATA_KEY}
    write_tensors(Path(target), tensors, metadata)


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
    """Names and tensors of a packed file, one at a time; only the end of it says that all are there."""
    path = Path(path)
    with _opened(path) as file:
        metadata = dict(file.metadata() or {})
        about = _about(path, metadata.pop(METADATA_KEY, None))
        headers = _headers(path, file, about["tensors"], max_bytes)
        lines = []
        for name in file.keys():  # noqa: SIM118  not a dict
            tensor = _read(file, name)
            if name in headers:
                tensor = decode(tensor, name, max_bytes=max_bytes)
            lines.append(_line(name, tensor))
            yield name, tensor
            del tensor  # or it is still there while the next one is decoded
        if _checksum(lines, metadata) != about["checksum"]:
            raise _damaged(path, "the checksum of its tensors and metadata differs")


def iterate_tensors(path: AnyPath, *, max_bytes: int = MAX_BYTES) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors of a file that may be packed, one at a time; see `iterate_packed`."""
    if is_packed(path):
        yield from iterate_packed(path, max_bytes=max_bytes)
        return
    with _opened(Path(path)) as file:
        for name in file.keys():  # noqa: SIM118  not a dict
            yield name, _read(file, name)


def read_kinds(path: AnyPath, *, max_bytes: int = MAX_BYTES) -> dict[str, Kind]:
    """What the tensors of a file are, unpacked, as it says; nothing is unpacked for that.

    Raises:
        PruningError: If the file is damaged, has more tensors than any model or a dtype that cannot be read, or if its
            packed tensors would take more than `max_bytes`.
    """
    path = Path(path)
    packed = is_packed(path)
    with _opened(path) as file:
        names = list(file.keys())
        if len(names) > _MOST_TENSORS:
            raise PruningError(f"{str(path)!r} holds {len(names):,} tensors, more than any model: save it again")
        kinds = {name: Kind(_dtype(file, name), tuple(file.get_slice(name).get_shape())) for name in names}
        if packed:
            about = _about(path, file.metadata()[METADATA_KEY])
            headers = _headers(path, file, about["tensors"], max_bytes)
            kinds |= {name: Kind(header.dtype, header.shape) for name, header in headers.items()}
    return kinds


def header_metadata(path: AnyPath) -> dict[str, str]:
    """The metadata in the header of a safetensors file.

    Raises:
        PruningError: If it cannot be read.
    """
    with _opened(Path(path)) as file:
        return dict(file.metadata() or {})


def is_packed(path: AnyPath) -> bool:
    """Whether a safetensors file is packed; errors are those of `header_metadata`."""
    return METADATA_KEY in header_metadata(path)


def describe_weights(file: Path) -> dict[str, Any]:
    """What the record of a model says of the file of its weights."""
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    layout = "packed" if is_packed(file) else "dense"
    return {"file": WEIGHTS, "layout": layout, "sha256": digest, "bytes": file.stat().st_size}


def packed_names(path: AnyPath) -> list[str]:
    """The names of the packed tensors of a packed file."""
    return list(_about(Path(path), header_metadata(path).get(METADATA_KEY))["tensors"])


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


def _headers(path: Path, file: Any, kinds: dict[str, Any], max_bytes: int) -> dict[str, Header]:
    """What the packed tensors say of themselves, if it is what the metadata says, and not too much together."""
    if strangers := sorted(set(kinds) - set(file.keys())):
        raise _damaged(path, f"it lacks {strangers[0]!r:.80}")
    headers = {name: _header(file, name, kind) for name, kind in kinds.items()}
    refuse_large(str(path), sum(header.nbytes for header in headers.values()), max_bytes)
    return headers


def _header(file: Any, name: str, kind: Any) -> Header:
    header = read_header(_read(file, name), name)
    if kind != [str(header.dtype).removeprefix("torch."), list(header.shape)]:
        raise PruningError(
            f"packed tensor {name!r:.80} is of {header.dtype} and shape {header.shape}, but the file's metadata says "
            f"{kind!r:.80}: download or pack it again"
        )
    return header


def _read(file: Any, name: str) -> Tensor:
    _dtype(file, name)
    return file.get_tensor(name)


def _dtype(file: Any, name: str) -> torch.dtype:
    dtype = file.get_slice(name).get_dtype()
    if dtype not in _DTYPES:
        raise PruningError(f"tensor {name!r:.80} is of {dtype}, which cannot be read: save the model in float32")
    return _DTYPES[dtype]


def _line(name: str, tensor: Tensor) -> list[Any]:
    """What the checksum of a file covers of a tensor."""
    data = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()
    return [name, _dtype_name(tensor), list(tensor.shape), zlib.crc32(data)]


def _checksum(lines: list[list[Any]], metadata: Mapping[str, str]) -> str:
    text = json.dumps([sorted(lines), sorted(metadata.items())], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


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
        raise PruningError(f"{str(path)!r} is no safetensors file, or damaged: {first_line(error)}") from error


def _damaged(path: Path, why: str) -> PruningError:
    return PruningError(f"{str(path)!r} is damaged, {why}: download or pack it again")
