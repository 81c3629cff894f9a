"""Folders of packed models: made from saved ones, and turned back."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hf_cyclical.core import PruningError

from .atomic import leads_elsewhere
from .codec import MAX_BYTES
from .model_folder import CONFIG, PROCESSORS, WEIGHTS, WEIGHTS_INDEX, say_classes_once
from .packed_files import PackedSummary, describe_weights, pack_file, read_kinds, unpack_file
from .record_schema import KEY, MAX_METADATA_BYTES, METADATA_NAME, parse_json, parse_metadata

__all__ = ["pack_folder", "unpack_folder"]

# What else belongs to a saved model. Nothing else is copied: not pickles, not optimizer states, not dot files.
COPIED = ("README.md", "LICENSE", "pruning_report.json", *PROCESSORS, "*.png", "*.svg")
MAX_COPIED_BYTES = 1 << 24
MAX_CONFIG_BYTES = 4 << 20

AnyPath = str | os.PathLike[str]

QUANTIZATION_METHOD = "hf_cyclical"
QUANTIZATION_KEY = "quantization_config"
QUANTIZATION_CONFIG = {"quant_method": QUANTIZATION_METHOD, "dequantize": True}


def pack_folder(source: AnyPath, target: AnyPath) -> PackedSummary:
    """Make a packed folder of a saved model.

    Its config is that of the source, except for a number of classes that timm says twice: transformers takes it once.

    Args:
        source: A folder with config.json and model.safetensors, of transformers or timm.
        target: The folder to make. It may exist if it is empty.

    Raises:
        PruningError: If the source lacks these files, has weights in several files or packed ones, or if the target
            exists.
    """
    return _convert(source, target, pack_file, packed=True)


def unpack_folder(source: AnyPath, target: AnyPath, *, max_bytes: int = MAX_BYTES) -> None:
    """Make an ordinary folder of a packed one, which may be hostile; see `pack_folder` and `read_packed`."""
    _convert(source, target, lambda old, new: unpack_file(old, new, max_bytes=max_bytes), packed=False)


def read_config(folder: Path) -> dict[str, Any]:
    """The config of a folder that may be hostile, and that is to have its weights in one file."""
    if not folder.is_dir():
        raise PruningError(f"there is no folder {str(folder)!r}: give the folder of a saved model")
    config = parse_json(_read(folder / CONFIG, MAX_CONFIG_BYTES), CONFIG)
    method = config.get(QUANTIZATION_KEY) or QUANTIZATION_CONFIG
    if not isinstance(method, dict) or method.get("quant_method") != QUANTIZATION_CONFIG["quant_method"]:
        raise PruningError(f"the model in {str(folder)!r} is quantized in another way: use the one before that")
    if (folder / WEIGHTS_INDEX).exists():
        raise PruningError(
            f"the weights in {str(folder)!r} are in several files, packing needs one: raise max_shard_size at saving"
        )
    if not (folder / WEIGHTS).is_file():
        raise PruningError(f"there is no {WEIGHTS} in {str(folder)!r}: save the model as safetensors")
    _refuse_link(folder / WEIGHTS)
    return config


def _convert(source: AnyPath, target: AnyPath, write: Callable[[Path, Path], Any], *, packed: bool) -> Any:
    source, target = (Path(os.path.abspath(folder)) for folder in (source, target))
    config = read_config(source)
    record = None
    if (source / METADATA_NAME).is_file():
        record = parse_metadata(_read(source / METADATA_NAME, MAX_METADATA_BYTES))
    if os.path.lexists(target) and (not target.is_dir() or any(target.iterdir())):
        raise PruningError(f"the target {str(target)!r} exists: name a folder that does not, or an empty one")
    config.pop(QUANTIZATION_KEY, None)
    say_classes_once(config)
    if packed:
        config[QUANTIZATION_KEY] = QUANTIZATION_CONFIG | _dtype(source / WEIGHTS)
    there = next(folder for folder in target.parents if folder.exists())
    with TemporaryDirectory(prefix=f".{target.name}.", dir=there) as scratch:
        staged = Path(scratch) / "model"
        staged.mkdir()
        summary = write(source / WEIGHTS, staged / WEIGHTS)
        _describe(source / WEIGHTS, staged / WEIGHTS, config, record)
        (staged / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        if record is not None:
            (staged / METADATA_NAME).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        for file in _copied(source):
            shutil.copyfile(file, staged / file.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        _publish(staged, target)
    return summary


def _dtype(file: Path) -> dict[str, str]:
    """What transformers takes for the dtype of all weights, if a config does not tell: that of the first."""
    first = next((kind.dtype for kind in read_kinds(file).values() if kind.dtype.is_floating_point), None)
    return {"dtype": str(first).removeprefix("torch.")} if first is not None else {}


def _describe(old: Path, new: Path, config: dict[str, Any], record: dict[str, Any] | None) -> None:
    """Let the record of a model tell of the new file; one that was wrong of the old stays wrong, for all to see."""
    before, after = describe_weights(old), describe_weights(new)
    short = config.get(KEY)
    if isinstance(short, dict) and short.get("layout") == before["layout"]:
        short["layout"] = after["layout"]
    if record is not None and record["weights"] == before:
        record["weights"] = after


def _publish(staged: Path, target: Path) -> None:
    if not target.is_dir():
        staged.replace(target)
        return
    for file in staged.iterdir():  # someone may work in the empty folder, which has to stay the same one
        file.replace(target / file.name)


def _copied(source: Path) -> list[Path]:
    found = {file for pattern in COPIED for file in source.glob(pattern)}
    ours = (file for file in found if file.is_file() and not leads_elsewhere(file) and not file.name.startswith("."))
    return sorted(file for file in ours if file.stat().st_size <= MAX_COPIED_BYTES)


def _read(file: Path, most: int) -> bytes:
    if not file.is_file():
        raise PruningError(f"the folder {str(file.parent)!r} has no {file.name}: give that of a saved model")
    _refuse_link(file)
    if file.stat().st_size > most:
        raise PruningError(f"{str(file)!r} has {file.stat().st_size:,} bytes, more than {most:,}: save it again")
    return file.read_bytes()


def _refuse_link(file: Path) -> None:
    if leads_elsewhere(file):
        raise PruningError(f"{str(file)!r} is a link to elsewhere: put the file itself there")
