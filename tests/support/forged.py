"""Models of somebody who wants others to read more sparsity in them than there is, or to run out of memory."""

import json

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support.stamped import edit_json

from hf_cyclical.formats import describe_weights, encode, root_hash
from hf_cyclical.hub import count_weights, short_form

WEIGHTS, RECORD, CONFIG = "model.safetensors", "sparsity.json", "config.json"


def stamp_again(folder, names=()):
    """Let the record, the config and the header tell of the weights as they are, with `names` among the pruned ones."""
    record = json.loads((folder / RECORD).read_text())
    tensors, achieved = count_weights(folder / WEIGHTS, [entry["name"] for entry in record["tensors"]] + list(names))
    record |= {"tensors": tensors, "achieved": achieved, "mask_sha256": root_hash(tensors)}
    with safe_open(folder / WEIGHTS, "pt") as file:
        header = file.metadata()
    mark = json.dumps({"schema": record["schema"], "mask_sha256": record["mask_sha256"]})
    save_file(load_file(folder / WEIGHTS), folder / WEIGHTS, header | {"hf_cyclical": mark})
    record["weights"] = describe_weights(folder / WEIGHTS)
    (folder / RECORD).write_text(json.dumps(record))
    edit_json(folder / CONFIG, lambda config: config.update(hf_cyclical=short_form(record)))
    return achieved


def rewrite(folder, change):
    """Change the tensors of the file, and keep its header."""
    tensors = load_file(folder / WEIGHTS)
    with safe_open(folder / WEIGHTS, "pt") as file:
        header = file.metadata()
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS, header)


def dense_weights(folder):
    """The weights of the same model without a zero."""
    torch.manual_seed(3)
    return {
        name: torch.where(t == 0, torch.randn(t.shape), t) if t.is_floating_point() else t
        for name, t in load_file(folder / WEIGHTS).items()
    }


def bomb(file, name, shape):
    """Put a packed tensor of zeros into a file, some bytes for any size, which the metadata lists as it should."""
    payload = encode(torch.zeros(1)).tolist()
    head = [*payload[:8], 0, len(shape), *(byte for number in shape for byte in varint(number))]
    with safe_open(file, "pt") as opened:
        header = opened.metadata()
    about = json.loads(header["hf_cyclical_packed"])
    about["tensors"][name] = ["float32", list(shape)]
    tensors = load_file(file) | {name: torch.tensor(head + payload[11:], dtype=torch.uint8)}
    save_file(tensors, file, header | {"hf_cyclical_packed": json.dumps(about)})


def varint(number):
    coded = []
    while number >> 7:
        coded.append(number & 127 | 128)
        number >>= 7
    return [*coded, number]
