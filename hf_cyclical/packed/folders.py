"""Folders of packed models: made from saved ones, turned back, and loaded by transformers or timm."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING, AutoConfig, AutoModelForImageClassification

from hf_cyclical.core import PruningError
from hf_cyclical.model_files import CONFIG, PROCESSORS, WEIGHTS, WEIGHTS_INDEX, first_line, read_json

from .codec import MAX_BYTES
from .files import PackedSummary, is_packed, pack_file, read_packed, unpack_file
from .quantizer import QUANTIZATION_CONFIG, QUANTIZATION_KEY

__all__ = ["load_packed_model", "pack_folder", "unpack_folder"]

# What else belongs to a saved model. Nothing else is copied: not pickles, not optimizer states, not dot files.
COPIED = ("README.md", "LICENSE", "pruning_report.json", "sparsity.json", *PROCESSORS, "*.png", "*.svg")
MAX_COPIED_BYTES = 1 << 24
MAX_CONFIG_BYTES = 4 << 20
# What a timm config may not ask of create_model: to read other weights.
NOT_MODEL_ARGUMENTS = {"cache_dir", "checkpoint_path", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay"}

UNBUILDABLE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    StrictDataclassError,
    TypeError,
    ValueError,
)


def pack_folder(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> PackedSummary:
    """Make a packed folder of a saved model.

    Args:
        source: A folder with config.json and model.safetensors, of transformers or timm.
        target: The folder to make. It may exist if it is empty.

    Raises:
        PruningError: If the source lacks these files, has weights in several files or packed ones, or if the target
            exists.
    """
    return _convert(Path(source), Path(target), pack_file, packed=True)


def unpack_folder(
    source: str | os.PathLike[str], target: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES
) -> None:
    """Make an ordinary folder of a packed one, which may be hostile; see `pack_folder` and `read_packed`."""
    _convert(Path(source), Path(target), lambda old, new: unpack_file(old, new, max_bytes=max_bytes), packed=False)


def load_packed_model(folder: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES) -> nn.Module:
    """The image classifier in a folder, packed or not: that of timm if the folder is timm's, else that of transformers.

    Uses public interfaces alone: the model is made from its config, then gets its weights. All of them must fit.

    Args:
        folder: The folder, which may be hostile.
        max_bytes: The most that the unpacked weights may take.

    Raises:
        PruningError: If the config cannot be used, if the weights are damaged, or if they do not fit the config.
    """
    folder = Path(folder)
    config = _read_config(folder)
    _refuse_shards(folder)
    file = folder / WEIGHTS
    tensors = read_packed(file, max_bytes=max_bytes) if is_packed(file) else load_file(file)
    load = _load_timm if "model_type" not in config else _load_transformers
    try:
        return load(folder, config, tensors).eval()
    except PruningError:
        raise
    except UNBUILDABLE as error:
        raise PruningError(f"the model in {str(folder)!r} cannot be made: {first_line(error)}") from error


def _load_timm(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> nn.Module:
    architecture, arguments = config.get("architecture"), config.get("model_args") or {}
    # A name such as "hf-hub:..." or "local-dir:..." would make timm read another model.
    if not isinstance(architecture, str) or not timm.is_model(architecture):
        raise PruningError(f"{CONFIG} in {str(folder)!r} names the architecture {architecture!r}, which timm lacks")
    if forbidden := sorted(NOT_MODEL_ARGUMENTS & set(arguments)):
        raise PruningError(f"{CONFIG} in {str(folder)!r} has model_args with {forbidden[0]!r}: take it out")
    classes = config.get("num_classes")
    arguments = arguments if classes is None else {"num_classes": classes} | arguments
    model = timm.create_model(architecture, pretrained=False, **arguments)
    _refuse_misfits(folder, model, tensors)
    dtypes = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    model.load_state_dict(tensors)
    return model.to(dtypes.pop()) if len(dtypes) == 1 else model


def _load_transformers(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> nn.Module:
    settings = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    if hasattr(settings, QUANTIZATION_KEY):
        delattr(settings, QUANTIZATION_KEY)
    if type(settings) not in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING:
        raise PruningError(f"the model in {str(folder)!r} is a {settings.model_type}, no image classifier: use one")
    with torch.device("meta"):  # the class alone matters: that of the config may be one of several
        kind = type(AutoModelForImageClassification.from_config(settings, trust_remote_code=False))
    model, loaded = kind.from_pretrained(
        None,
        config=settings,
        state_dict=tensors,
        dtype=settings.dtype or torch.float32,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # they are refused below, with their names
    )
    misfits = {*loaded["missing_keys"], *loaded["unexpected_keys"], *(key for key, *_ in loaded["mismatched_keys"])}
    _refuse(folder, misfits)
    return model


def _refuse_misfits(folder: Path, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
    given = {name: tensor.shape for name, tensor in tensors.items()}
    _refuse(folder, {name for name in expected | given if expected.get(name) != given.get(name)})


def _refuse(folder: Path, misfits: set[str]) -> None:
    if misfits:
        raise PruningError(
            f"the weights in {str(folder)!r} do not fit its config: {len(misfits)} tensors are missing, unknown or of "
            f"another shape, the first is {min(misfits)!r}: save the model again"
        )


def _convert(source: Path, target: Path, write: Callable[[Path, Path], Any], *, packed: bool) -> Any:
    config = _read_config(source)
    _refuse_shards(source)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise PruningError(f"the target {str(target)!r} exists: name a folder that does not")
    config.pop(QUANTIZATION_KEY, None)
    if packed:
        config[QUANTIZATION_KEY] = QUANTIZATION_CONFIG
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = target.with_name(f".{target.name}.new")
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir()
    try:
        summary = write(source / WEIGHTS, staged / WEIGHTS)
        (staged / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        for file in _copied(source):
            shutil.copyfile(file, staged / file.name)
        staged.replace(target)  # in place of an empty folder, too
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return summary


def _copied(source: Path) -> list[Path]:
    found = {file for pattern in COPIED for file in source.glob(pattern)}
    ours = (file for file in found if file.is_file() and not file.is_symlink() and not file.name.startswith("."))
    return sorted(file for file in ours if file.stat().st_size <= MAX_COPIED_BYTES)


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / CONFIG
    if file.is_file() and file.stat().st_size > MAX_CONFIG_BYTES:
        raise PruningError(
            f"{str(file)!r} has {file.stat().st_size:,} bytes, more than {MAX_CONFIG_BYTES:,}: save it again"
        )
    config = read_json(str(folder), file)
    method = config.get(QUANTIZATION_KEY) or QUANTIZATION_CONFIG
    if not isinstance(method, dict) or method.get("quant_method") != QUANTIZATION_CONFIG["quant_method"]:
        raise PruningError(f"the model in {str(folder)!r} is quantized in another way: use the one before that")
    return config


def _refuse_shards(folder: Path) -> None:
    if (folder / WEIGHTS_INDEX).exists():
        raise PruningError(
            f"the weights in {str(folder)!r} are in several files, packing needs one: raise max_shard_size at saving"
        )
    if not (folder / WEIGHTS).is_file():
        raise PruningError(f"there is no {WEIGHTS} in {str(folder)!r}: save the model as safetensors")
