"""HFC1: a float tensor with many zeros as bytes, and back, bit by bit except for the sign of zeros.

What is kept of a tensor is where its nonzero values are, as gaps, and what they are. The survivors of magnitude pruning
lie in a narrow range above a threshold, and the bits of |w| order floats as integers do. So a value is its sign and the
distance of its bits from those of the smallest: the high bits of the distance are skewed and get a Huffman code, the
others are noise and stay as they are. A payload is

    "HFC1", CRC-32 of dtype, shape and values (4 bytes, little-endian), then LEB128 numbers: dtype, number of
    dimensions, dimensions, nonzero values, least bits of |w|, low bits, length of gaps, stored gaps, stored bins,
    gaps: one byte per nonzero value, the zeros before it; 255 stands for 255 zeros and no value,
    bins: one byte per nonzero value, its distance without the low bits,
    rest: sign and low bits of every nonzero value, most significant first, without padding between values.

Gaps and bins are raw deflate streams without matches, or plain bytes where these are no longer.
Decoding trusts nothing: sizes are checked before memory is taken, which is that of the result, of both streams (less
than the result) and a few megabytes.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from hf_cyclical.core import PruningError

MAX_BYTES = 1 << 32  # of what is decoded, unless more is asked for

_MAGIC = b"HFC1"
_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)  # their places here are part of the format
_INTEGERS = {2: (torch.int16, np.uint16), 4: (torch.int32, np.uint32), 8: (torch.int64, np.uint64)}
_MAX_DIMENSIONS = 16
_SKIP = 255  # a gap byte that stands for zeros only
_BIN_BITS = range(3, 9)  # few bins have a short table, many follow the values closely: all are tried
_CHUNK = 1 << 16  # values looked at in one go: bounds the temporary memory; a multiple of 8, so that bytes end with it


@dataclass(frozen=True)
class Header:
    """What a payload says of itself before its streams."""

    checksum: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    nonzero: int
    least: int
    low: int
    gaps: int
    stored_gaps: int
    stored_bins: int
    size: int

    @property
    def nbytes(self) -> int:
        """Bytes of the decoded tensor; of an empty one, those that it would take if no dimension were 0."""
        return prod(max(n, 1) for n in self.shape) * self.dtype.itemsize


def packable(tensor: Tensor) -> bool:
    """Whether a tensor is of a kind that can be encoded, whether or not that makes it smaller."""
    return tensor.dtype in _DTYPES and tensor.ndim <= _MAX_DIMENSIONS


def encode(tensor: Tensor) -> Tensor:
    """The payload of a tensor, as a 1-D uint8 tensor on the CPU.

    Raises:
        PruningError: If the dtype has no code.
    """
    if not packable(tensor):
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
        raise PruningError(f"a tensor of {tensor.dtype} and {tensor.ndim} dimensions cannot be packed: use {known}")
    bits = _bits(tensor.detach().cpu().contiguous())
    positions = np.flatnonzero(bits << 1)
    values = bits[positions]
    content = np.zeros_like(bits)
    content[positions] = values
    gaps = _gap_bytes(positions)
    least, low, bins, rest = _split(values)
    kind = _varints(_DTYPES.index(tensor.dtype), tensor.ndim, *tensor.shape)
    stored = _deflate(gaps)
    numbers = _varints(len(positions), least, low, len(gaps), len(stored), len(bins))
    checksum = struct.pack("<I", zlib.crc32(content, zlib.crc32(kind)))
    payload = b"".join((_MAGIC, checksum, kind, numbers, stored, bins, rest))
    return torch.frombuffer(bytearray(payload), dtype=torch.uint8)


def decode(payload: Tensor, name: str, *, max_bytes: int = MAX_BYTES) -> Tensor:
    """The tensor of a payload, which may be hostile.

    Args:
        payload: What `encode` returned, or anything else.
        name: How errors call the tensor.
        max_bytes: The most that the decoded tensor may take.

    Raises:
        PruningError: If it is no payload, if it is damaged in any way, or if it is larger than `max_bytes`.
    """
    header = read_header(payload, name)
    refuse_large(name, header.nbytes, max_bytes)
    data = payload.numpy().data[header.size :]
    stored = header.stored_gaps + header.stored_bins
    gaps = _inflate(data[: header.stored_gaps], header.gaps, name)
    bins = _inflate(data[header.stored_gaps : stored], header.nonzero, name)
    tensor = torch.zeros(header.shape, dtype=header.dtype, device="cpu")  # transformers loads where meta is the default
    bits = _bits(tensor)
    rest = np.frombuffer(data[stored:], dtype=np.uint8)
    done = 0
    for positions in _positions(gaps, len(bits), name):
        if done + len(positions) > header.nonzero:
            raise _damaged(name, f"it has more than {header.nonzero} gaps")
        bits[positions] = _join(bins, rest, header, done, done + len(positions), name)
        done += len(positions)
    if done < header.nonzero:
        raise _damaged(name, f"it has {done} gaps for {header.nonzero} values")
    kind = _varints(_DTYPES.index(header.dtype), len(header.shape), *header.shape)
    if zlib.crc32(bits, zlib.crc32(kind)) != header.checksum:
        raise _damaged(name, "its checksum differs")
    return tensor


def read_header(payload: Tensor, name: str) -> Header:
    """What a payload says of itself, checked as far as possible without decoding it."""
    if payload.dtype != torch.uint8 or payload.ndim != 1:
        raise _damaged(name, f"it is {payload.dtype} of shape {tuple(payload.shape)} and not a row of bytes")
    data = payload.numpy().data
    if len(data) < 8 or bytes(data[:4]) != _MAGIC:
        raise _damaged(name, f"it does not start with {_MAGIC.decode()}")
    numbers = _Numbers(data, 8, name)
    code, dimensions = numbers.next(), numbers.next()
    if code >= len(_DTYPES) or dimensions > _MAX_DIMENSIONS:
        raise _damaged(name, f"it has dtype {code} and {dimensions} dimensions")
    shape = tuple(numbers.next() for _ in range(dimensions))
    header = Header(
        struct.unpack("<I", data[4:8])[0], _DTYPES[code], shape, *(numbers.next() for _ in range(6)), numbers.place
    )
    _check(header, len(data), name)
    return header


def refuse_large(name: str, nbytes: int, max_bytes: int) -> None:
    """Raise a PruningError if something would take more memory than it may."""
    if nbytes > max_bytes:
        todo = "raise it if you trust it"
        raise PruningError(f"{name!r:.200} takes {nbytes:,} bytes unpacked, more than max_bytes={max_bytes:,}: {todo}")


def _check(header: Header, size: int, name: str) -> None:
    numel, width = prod(header.shape), 8 * header.dtype.itemsize - 1
    if header.nonzero > numel:
        raise _damaged(name, f"it has {header.nonzero} nonzero values of {numel}")
    if header.low >= width or header.least >> width:
        raise _damaged(name, f"it has {header.low} low bits above {header.least} in {width}")
    if not header.nonzero <= header.gaps <= header.nonzero + numel // _SKIP:
        raise _damaged(name, f"it has {header.gaps} gaps for {header.nonzero} values of {numel}")
    if header.stored_gaps > header.gaps or header.stored_bins > header.nonzero:
        raise _damaged(name, "a stream is longer than what it holds")
    expected = header.size + header.stored_gaps + header.stored_bins + -(-header.nonzero * (header.low + 1) // 8)
    if size != expected:
        raise _damaged(name, f"it has {size} bytes instead of {expected}")


def _bits(tensor: Tensor) -> np.ndarray:
    """A contiguous tensor's bits as unsigned integers, in one row of the same memory."""
    signed, unsigned = _INTEGERS[tensor.dtype.itemsize]
    return tensor.view(-1).view(signed).numpy().view(unsigned)


def _gap_bytes(positions: np.ndarray) -> bytes:
    skips, rests = np.divmod(np.diff(positions, prepend=-1) - 1, _SKIP)
    gaps = np.full(len(positions) + int(skips.sum()), _SKIP, dtype=np.uint8)
    gaps[np.cumsum(skips + 1) - 1] = rests
    return gaps.tobytes()


def _positions(gaps: bytes, numel: int, name: str) -> Iterator[np.ndarray]:
    """Where the values are, some at a time."""
    place = 0
    for start in range(0, len(gaps), _CHUNK):
        steps = np.frombuffer(gaps, np.uint8, min(_CHUNK, len(gaps) - start), start)
        has_value = steps != _SKIP
        places = place + np.cumsum(steps.astype(np.int64) + has_value)
        place = int(places[-1])
        if place > numel:
            raise _damaged(name, f"a gap leads past its {numel} values")
        yield places[has_value] - 1


def _split(values: np.ndarray) -> tuple[int, int, bytes, bytes]:
    """The least magnitude, the number of low bits, the stored bins and the rest, for the fewest bytes."""
    width = 8 * values.itemsize - 1
    sign, magnitudes = values >> width, values & ((1 << width) - 1)
    least = int(magnitudes.min(initial=(1 << width) - 1)) if len(values) else 0
    distances = magnitudes - values.dtype.type(least)
    length = int(distances.max(initial=0)).bit_length()
    best = None
    for low in sorted({max(length - bits, 0) for bits in _BIN_BITS}):
        bins = _deflate((distances >> low).astype(np.uint8).tobytes())
        size = len(bins) + -(-len(values) * (low + 1) // 8)
        if best is None or size < best[0]:
            best = size, low, bins
    _, low, bins = best
    rest = (sign << low) | (distances & ((1 << low) - 1))
    return least, low, bins, _pack_bits(rest, low + 1)


def _join(bins: bytes, rest: np.ndarray, header: Header, start: int, stop: int, name: str) -> np.ndarray:
    """The values from `start` to `stop`."""
    unsigned = _INTEGERS[header.dtype.itemsize][1]
    width, low = 8 * header.dtype.itemsize - 1, header.low
    high = np.frombuffer(bins, np.uint8, stop - start, start)
    if int(high.max(initial=0)) << low > (1 << width) - 1:
        raise _damaged(name, "a value has more bits than its dtype")
    lower = _unpack_bits(rest, low + 1, start, stop, unsigned)
    distances = (high.astype(unsigned) << low) | (lower & ((1 << low) - 1))
    if int(distances.max(initial=0)) + header.least > (1 << width) - 1:
        raise _damaged(name, "a value has more bits than its dtype")
    return (distances + unsigned(header.least)) | (lower >> low << width)


def _pack_bits(values: np.ndarray, width: int) -> bytes:
    """The low `width` bits of every value, most significant first."""
    size = 8 * values.itemsize
    rows = values.astype(values.dtype.newbyteorder(">")).view(np.uint8).reshape(-1, values.itemsize)
    chunks = (rows[start : start + _CHUNK] for start in range(0, len(rows), _CHUNK))
    return b"".join(np.packbits(np.unpackbits(chunk, axis=1)[:, size - width :]).tobytes() for chunk in chunks)


def _unpack_bits(packed: np.ndarray, width: int, start: int, stop: int, unsigned: type) -> np.ndarray:
    first, offset = divmod(start * width, 8)
    count = (stop - start) * width
    some = np.unpackbits(packed[first : first + -(-(offset + count) // 8)])[offset : offset + count]
    rows = np.zeros((stop - start, 8 * np.dtype(unsigned).itemsize), dtype=np.uint8)
    rows[:, rows.shape[1] - width :] = some.reshape(-1, width)
    return np.packbits(rows).view(np.dtype(unsigned).newbyteorder(">")).astype(unsigned)


def _deflate(data: bytes) -> bytes:
    """Huffman codes alone: matches in noise cost more than they save."""
    coder = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
    coded = coder.compress(data) + coder.flush()
    return coded if len(coded) < len(data) else data


def _inflate(stored: memoryview, size: int, name: str) -> bytes:
    if len(stored) == size:
        return bytes(stored)
    decoder = zlib.decompressobj(-15)
    try:
        data = decoder.decompress(stored, size + 1)  # one more than it may have shows that it has more
    except zlib.error as error:
        raise _damaged(name, f"a stream is broken ({error})") from error
    if len(data) != size or not decoder.eof or decoder.unused_data:
        raise _damaged(name, f"a stream does not hold {size} bytes")
    return data


def _varints(*numbers: int) -> bytes:
    """Unsigned LEB128: seven bits a byte, least significant first, the eighth set but in the last."""
    coded = bytearray()
    for number in numbers:
        while number >> 7:
            coded.append(number & 127 | 128)
            number >>= 7
        coded.append(number)
    return bytes(coded)


class _Numbers:
    """Reads LEB128 numbers below 2**63, one after the other."""

    def __init__(self, data: memoryview, place: int, name: str) -> None:
        self.data, self.place, self.name = data, place, name

    def next(self) -> int:
        number = 0
        for i, byte in enumerate(self.data[self.place : self.place + 9]):
            number |= (byte & 127) << 7 * i
            if byte < 128:
                self.place += i + 1
                return number
        raise _damaged(self.name, "its header is cut off")


def _damaged(name: str, why: str) -> PruningError:
    return PruningError(f"packed tensor {name!r:.80} is damaged, {why}: download or pack it again")
