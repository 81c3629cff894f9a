"""sparsity.json: what a pruned model is, counted from its weights, and the marks of it in the model's other files."""

import hashlib
import json
import re
import struct
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hf_cyclical.core import PruningError
from hf_cyclical.formats import (
    CONFIG,
    KEY,
    MAX_BYTES,
    METADATA_NAME,
    PREFIX,
    SCHEMA,
    WEIGHTS,
    describe_weights,
    header_metadata,
    hide_in_header,
    hide_paths,
    is_packed,
    iterate_tensors,
    packable,
    parse_json,
    plus_zeros,
    read_kinds,
    read_metadata,
    root_hash,
    totals,
    write_tensors,
    write_text,
)
from hf_cyclical.models import load_packed_model
from hf_cyclical.reports import PruningReport, final_metrics, finite, versions

__all__ = ["build_metadata", "mask_hash", "stamp"]

_STATISTICS = ("running_mean", "running_var")  # of batch normalisation: stored as floats, but no parameters


def build_metadata(folder: Path, report: PruningReport) -> dict[str, Any]:
    """The record of a pruned model: counts and hashes from its weights, the rest from the report of its run.

    `parameters` are all floats of the file but the statistics of batch normalisation, `overall_sparsity` the part of
    them that pruning made zero, and `zeros` those that are zero for whatever reason.

    Args:
        folder: A saved model, with its weights in one file that is not packed.
        report: Of the run that made it. Its names may have the prefix of the wrapper of transformers.

    Raises:
        PruningError: If the weights are missing, damaged or packed, or if they are not those of the report.
    """
    file = Path(folder) / WEIGHTS
    if is_packed(file):
        raise PruningError(f"{str(file)!r} is packed: stamp the model first, then pack it")
    names = _saved_names(file, report)
    tensors, achieved = count_weights(file, names.values())
    entries = {entry["name"]: entry for entry in tensors}
    for layer in report.layers:
        _refuse_contradiction(layer, entries.get(names.get(layer.name)))
    return {
        "schema": SCHEMA,
        "method": report.config["method"],
        "settings": report.config,
        "base_model": {"id": _base_id(report), "revision": report.about.get("model_revision")},
        "achieved": achieved,
        "recovery": [
            {key: getattr(c, key) for key in ("cycle", "update", "regrown", "recovered", "mask_distance")}
            for c in report.cycles
        ],
        "evaluation": {"dense": finite(report.dense), "pruned": final_metrics(report)},
        "tensors": tensors,
        "mask_sha256": root_hash(tensors),
        "versions": report.about.get("versions") or versions(),
        "weights": describe_weights(file),
    }


def stamp(folder: Path, report: PruningReport) -> dict[str, Any]:
    """Write the record of a pruned model into its folder: sparsity.json, and its marks in config.json and the weights.

    Zeros get a plus sign on the way, so that packing and unpacking gives back the very same file.

    Returns:
        What sparsity.json holds.

    Raises:
        PruningError: As of `build_metadata`, or if there is no config.
    """
    folder = Path(folder)
    config = parse_json(_read_bytes(folder / CONFIG), CONFIG)
    metadata = build_metadata(folder, report)
    _mark_weights(folder / WEIGHTS, metadata["mask_sha256"])
    metadata["weights"] = describe_weights(folder / WEIGHTS)
    text = json.dumps(metadata, indent=1) + "\n"
    read_metadata(text.encode())
    write_text(folder / CONFIG, json.dumps(config | {KEY: short_form(metadata)}, indent=2) + "\n")
    write_text(folder / METADATA_NAME, text)
    return metadata


def short_form(metadata: dict[str, Any]) -> dict[str, Any]:
    """What config.json says of the pruning."""
    settings = metadata["settings"]
    share = "scope" if "scope" in settings else "share"  # as it was called before
    pattern = {"pattern": settings["pattern"]} if settings.get("pattern") else {}
    return {
        "schema": metadata["schema"],
        "method": metadata["method"],
        share: settings.get(share),
        **pattern,
        "target": settings.get("target_sparsity"),
        "achieved": metadata["achieved"]["sparsity"],
        "cycles": settings.get("cycles"),
        "mask_sha256": metadata["mask_sha256"],
        "layout": metadata["weights"]["layout"],
    }


def count_weights(
    file: Path, names: Collection[str], *, skip: Collection[str] = (), max_bytes: int = MAX_BYTES
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """An entry for each of the named tensors that a file has, packed or not, and what they amount to.

    Args:
        file: The weights.
        names: Those of the tensors that were pruned.
        skip: Those of tensors that do not count, as they are none of the model's.
        max_bytes: The most that packed tensors may take.

    Raises:
        PruningError: If the file is damaged, or if its packed tensors take more than `max_bytes`.
    """
    names, tensors, parameters, zeros = set(names), [], 0, 0
    for name, tensor in iterate_tensors(file, max_bytes=max_bytes):
        if name in skip:
            continue
        if name not in names and not is_weight(name, tensor.dtype):
            continue
        nonzero = _nonzero(tensor)
        count = nonzero.size - int(np.count_nonzero(nonzero))
        parameters, zeros = parameters + nonzero.size, zeros + count
        if name in names:
            entry = {"name": name, "shape": list(tensor.shape), "weights": nonzero.size, "zeros": count}
            tensors.append(entry | {"mask_sha256": _hash(name, tensor.shape, nonzero)})
    tensors.sort(key=lambda entry: entry["name"])
    return tensors, totals(tensors, parameters, zeros)


def is_weight(name: str, dtype: torch.dtype) -> bool:
    """Whether a stored tensor counts among the parameters, by its name and dtype."""
    return dtype.is_floating_point and name.rpartition(".")[2] not in _STATISTICS


def mask_hash(name: str, tensor: Tensor) -> str:
    """SHA-256 of a tensor's name, shape and zeros: name, a zero byte, dimensions as u64 LE, nonzero bits LSB first."""
    return _hash(name, tensor.shape, _nonzero(tensor))


def _nonzero(tensor: Tensor) -> np.ndarray:
    try:
        wide = tensor.float() if tensor.is_floating_point() and tensor.element_size() == 1 else tensor
        return (wide != 0).flatten().numpy()
    except (RuntimeError, TypeError) as error:  # of dtypes that torch has in name only
        raise PruningError(f"weights of {tensor.dtype} cannot be counted: use float32 or float16 ones") from error


def _hash(name: str, shape: Collection[int], nonzero: np.ndarray) -> str:
    digest = hashlib.sha256(name.encode() + b"\0" + struct.pack(f"<{len(shape)}Q", *shape))
    digest.update(np.packbits(nonzero, bitorder="little"))
    return digest.hexdigest()


def _saved_names(file: Path, report: PruningReport) -> dict[str, str]:
    """The name in the file of the weights for each layer of the report, as far as it has one."""
    if not report.layers:
        raise PruningError(f"the report of {str(file.parent)!r} has no pruned layers: prune the model first")
    saved = set(read_kinds(file))
    plain = {
        layer.name: layer.name if layer.name in saved else layer.name.removeprefix(PREFIX) for layer in report.layers
    }
    known = {name: plain[name] for name in plain if plain[name] in saved}
    if len(known) == len(plain):
        return plain
    return known | _renamed(file, set(plain) - set(known), saved - set(known.values()))


def _renamed(file: Path, names: set[str], saved: set[str]) -> dict[str, str]:
    """The saved names of layers that transformers saves under others (those of older versions): by what they hold."""
    holders: dict[str, list[str]] = {}
    for name, tensor in iterate_tensors(file):
        if name in saved:
            holders.setdefault(_content(tensor), []).append(name)
    params = dict(load_packed_model(file.parent).named_parameters())
    found = {}
    for name in sorted(names & set(params)):
        if same := holders.get(_content(params[name].detach())):
            found[name] = same.pop(0)  # of equal ones any will do: what is counted is equal, too
    return found


def _content(tensor: Tensor) -> str:
    data = tensor.contiguous().view(-1).view(torch.uint8).numpy()
    return f"{tensor.dtype} {tuple(tensor.shape)} {hashlib.sha256(data).hexdigest()}"


def _refuse_contradiction(layer: Any, entry: dict[str, Any] | None) -> None:
    """Weights that were kept may have become zero by training, so more zeros than reported contradict nothing."""
    todo = "give the report of the run that saved these weights"
    if entry is None:
        raise PruningError(f"layer {layer.name!r} of the report is not in {WEIGHTS}: {todo}")
    if entry["shape"] != (said := list(layer.shape)):
        raise PruningError(f"layer {layer.name!r} has shape {entry['shape']}, the report says {said}: {todo}")
    nonzero = entry["weights"] - entry["zeros"]
    if nonzero > layer.kept:
        raise PruningError(f"layer {layer.name!r} has {nonzero:,} nonzero weights, the report {layer.kept:,}: {todo}")


def _base_id(report: PruningReport) -> str | None:
    about = report.about
    return public_id(about["base_model"] if "base_model" in about else about.get("model"))


def public_id(name: Any) -> str | None:
    """The name of a model if it is one on the Hub or of timm: the path of a folder concerns nobody."""
    public = isinstance(name, str) and re.fullmatch(r"[\w.-]{1,96}(/[\w.-]{1,96})?", name) and not Path(name).is_dir()
    return name if public else None


def _mark_weights(file: Path, mask_sha256: str) -> None:
    """Put the mask hash into the header, for a file of weights that is alone."""
    for name, tensor in iterate_tensors(file):
        if tensor.is_floating_point() and tensor.element_size() > 1 and not torch.isfinite(tensor).all():
            raise PruningError(f"{name} in {str(file)!r} has NaN or infinite weights: such a model is not published")
    tensors = {name: plus_zeros(tensor) if packable(tensor) else tensor for name, tensor in iterate_tensors(file)}
    header = {"format": "pt"} | {hide_paths(k): hide_in_header(value) for k, value in header_metadata(file).items()}
    write_tensors(file, tensors, header | {KEY: json.dumps({"schema": SCHEMA, "mask_sha256": mask_sha256})})


def _read_bytes(file: Path) -> bytes:
    if not file.is_file():
        raise PruningError(f"there is no {file.name} in {str(file.parent)!r}: give the folder of a saved model")
    return file.read_bytes()
