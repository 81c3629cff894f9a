"""Packed weights: sparse tensors in a tenth of their bytes, lossless, in files that hostile hands may have made."""

from .codec import decode, encode
from .files import PackedSummary, is_packed, pack_file, read_packed, unpack_file
from .folders import pack_folder, unpack_folder
from .models import load_packed_model

__all__ = [
    "PackedSummary",
    "decode",
    "encode",
    "is_packed",
    "load_packed_model",
    "pack_file",
    "pack_folder",
    "read_packed",
    "unpack_file",
    "unpack_folder",
]
