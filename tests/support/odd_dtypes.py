"""Safetensors files with dtypes that torch lacks, or has in name only."""

import json

from safetensors.torch import load_file

BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E8M0": 8}


def with_dtype(file, name, dtype):
    """Give a tensor of a file another dtype, and zeros of it as values."""
    tensors = load_file(file)
    header, data = {}, b""
    for key, tensor in tensors.items():
        stored = tensor.numpy().tobytes() if key != name else bytes(tensor.numel() * BITS[dtype] // 8)
        kind = dtype if key == name else {"float32": "F32", "int64": "I64"}[str(tensor.dtype).removeprefix("torch.")]
        header[key] = {
            "dtype": kind,
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(stored)],
        }
        data += stored
    text = json.dumps(header).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)
