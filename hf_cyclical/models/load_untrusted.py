"""Models from folders and repositories that may be hostile: packed weights or ordinary ones, of either library."""

import os
from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import timm
import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
    AutoConfig,
    AutoModelForImageClassification,
    TimmWrapperConfig,
)

from hf_cyclical.core import PruningError, first_line
from hf_cyclical.formats import (
    CONFIG,
    KEY,
    MAX_BYTES,
    MAX_CONFIG_BYTES,
    PROCESSORS,
    QUANTIZATION_KEY,
    WEIGHTS,
    iterate_tensors,
    read_config,
    read_shapes,
    refuse_large,
    wrapper_arguments,
)

from .build_limits import sketch
from .download import find_files

# What a timm config may not ask of create_model: to read other weights.
NOT_MODEL_ARGUMENTS = {"cache_dir", "checkpoint_path", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay"}
# Of numbers in a config, of the sum of a list and of its length: more than any model has, and no more than can be made
# into a label each, or a layer, before a limit of weights is met.
MOST, MOST_IN_ALL, MOST_NUMBERS = 1 << 20, 1 << 17, 1000

_IMPLEMENTATIONS = (None, "eager", "sdpa")  # of layers, that are part of transformers
UNBUILDABLE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    StrictDataclassError,
    TypeError,
    ValueError,
)

Shapes = dict[str, tuple[int, ...]]
Read = Callable[[], dict[str, Tensor]]


def load_packed_model(folder: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES) -> nn.Module:
    """The image classifier in a folder, packed or not: that of timm if the folder is timm's, else that of transformers.

    Uses public interfaces alone: the model is made from its config, then gets its weights. All of them must fit. It is
    made without memory for its weights first, so that a config that asks for more than the file has takes none.

    Args:
        folder: The folder, which may be hostile.
        max_bytes: The most that the weights may take, unpacked and in the model.

    Raises:
        PruningError: If the config cannot be used, if the weights are damaged, or if they do not fit the config.
    """
    folder = Path(folder)
    config = read_config(folder)
    shapes = read_shapes(folder / WEIGHTS, max_bytes=max_bytes)

    def read() -> dict[str, Tensor]:
        return dict(iterate_tensors(folder / WEIGHTS, max_bytes=max_bytes))

    load = _load_timm if "model_type" not in config else _load_transformers
    try:
        return load(folder, config, shapes, read, max_bytes).eval()
    except PruningError:
        raise
    except UNBUILDABLE as error:
        raise PruningError(f"the model in {str(folder)!r} cannot be made: {first_line(error)}") from error


def _load_timm(folder: Path, config: dict[str, Any], shapes: Shapes, read: Read, max_bytes: int) -> nn.Module:
    _refuse_other_weights(folder, config)
    classes = {"num_classes": config["num_classes"]} if config.get("num_classes") is not None else {}
    given = config.get("model_args") or {}
    arguments = given | classes
    _refuse_large_numbers(folder, arguments)
    make = partial(timm.create_model, config["architecture"], pretrained=False, **arguments)
    made = _sketch(folder, make, shapes, max_bytes)
    expected = {name: tuple(tensor.shape) for name, tensor in made.state_dict().items()}
    _refuse_misfits(folder, {name for name in expected | shapes if expected.get(name) != shapes.get(name)})
    if arguments != classes | given:  # timm takes the second one, transformers' wrapper the first
        raise PruningError(
            f"{CONFIG} in {str(folder)!r} has num_classes {classes['num_classes']}, and in model_args "
            f"{str(given['num_classes'])[:80]!r}: save the model again"
        )
    tensors, model = read(), make()
    model.load_state_dict(tensors)
    dtypes = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    return model.to(dtypes.pop()) if len(dtypes) == 1 else model


def _load_transformers(folder: Path, config: dict[str, Any], shapes: Shapes, read: Read, max_bytes: int) -> nn.Module:
    if config["model_type"] == TimmWrapperConfig.model_type:
        _refuse_other_weights(folder, config)
    _refuse_large_numbers(folder, {key: value for key, value in config.items() if key != KEY})
    _refuse_kernels(folder, config)
    settings = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    if hasattr(settings, QUANTIZATION_KEY):
        delattr(settings, QUANTIZATION_KEY)
    if isinstance(settings, TimmWrapperConfig):
        settings.model_args = wrapper_arguments(settings.model_args)
    if type(settings) not in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING:
        raise PruningError(f"the model in {str(folder)!r} is a {settings.model_type}, no image classifier: use one")
    # Its class matters, too: that of the config may be one of several.
    make = partial(AutoModelForImageClassification.from_config, settings, trust_remote_code=False)
    model, loaded = type(_sketch(folder, make, shapes, max_bytes)).from_pretrained(
        None,
        config=settings,
        state_dict=read(),
        dtype=settings.dtype or torch.float32,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # they are refused below, with their names
    )
    misfits = {*loaded["missing_keys"], *loaded["unexpected_keys"], *(key for key, *_ in loaded["mismatched_keys"])}
    _refuse_misfits(folder, misfits)
    return model


def _refuse_kernels(folder: Path, config: Any) -> None:
    """A config can name an implementation of its layers, which transformers would fetch from the Hub and run."""
    if isinstance(config, list):
        for inner in config:
            _refuse_kernels(folder, inner)
    if not isinstance(config, dict):
        return
    for key, value in config.items():
        if key.endswith("_implementation") and value not in _IMPLEMENTATIONS:
            raise PruningError(f"the config of {str(folder)!r} asks for {key} {str(value)[:80]!r}: remove it")
        _refuse_kernels(folder, value)


def _sketch(folder: Path, make: Callable[[], nn.Module], shapes: Shapes, max_bytes: int) -> nn.Module:
    """The model without its weights, if these can fit: names may be others in the file, but not how many there are."""
    stored = sum(map(prod, shapes.values()))
    refusal = (
        f"the weights in {str(folder)!r} do not fit its config, which asks for more than the {stored:,} values in "
        f"{len(shapes):,} tensors that there are: save the model again"
    )
    made = sketch(make, shapes, refusal)
    if sum(parameter.numel() for parameter in made.parameters()) > stored:
        raise PruningError(refusal)
    refuse_large(str(folder), sum(tensor.nbytes for tensor in (*made.parameters(), *made.buffers())), max_bytes)
    return made


def _refuse_other_weights(folder: Path, config: dict[str, Any]) -> None:
    """Refuse a config of timm that names another model: as "hf-hub:..." or "local-dir:...", or by an argument."""
    architecture, arguments = config.get("architecture"), config.get("model_args") or {}
    if not isinstance(architecture, str) or not timm.is_model(architecture):
        raise PruningError(
            f"{CONFIG} in {str(folder)!r} names the architecture {architecture!r:.80}, which timm lacks: use another"
        )
    if forbidden := sorted(NOT_MODEL_ARGUMENTS & set(arguments)):
        raise PruningError(f"{CONFIG} in {str(folder)!r} has model_args with {forbidden[0]!r}: take it out")


def _refuse_large_numbers(folder: Path, settings: dict[str, Any]) -> None:
    for key, value in settings.items():
        if isinstance(value, dict):
            _refuse_large_numbers(folder, value)
        most = MOST_IN_ALL if isinstance(value, list) else MOST
        numbers = [abs(number) for number in _flat(value) if isinstance(number, int)]
        if sum(numbers) > most or len(numbers) > MOST_NUMBERS:
            raise PruningError(
                f"{CONFIG} in {str(folder)!r} has {key!r:.80} above {most:,}, more than any model: save it again"
            )


def _flat(value: Any) -> list[Any]:
    return [item for part in value for item in _flat(part)] if isinstance(value, list) else [value]


def _refuse_misfits(folder: Path, misfits: set[str]) -> None:
    if misfits:
        raise PruningError(
            f"the weights in {str(folder)!r} do not fit its config: {len(misfits)} tensors are missing, unknown or of "
            f"another shape, the first is {min(misfits)!r:.80}: save the model again"
        )


def load(source: str | Path, revision: str | None = None, *, max_bytes: int = MAX_BYTES) -> nn.Module:
    """The image classifier of a folder or of the Hub, with packed weights or ordinary ones.

    Nothing but its config, its processor and its safetensors is downloaded, and no code of the repository runs.

    Args:
        source: A folder, or a Hub id.
        revision: Branch, tag or commit of the Hub's: `packed`, for one.
        max_bytes: The most that the weights may take, in the file, unpacked and in the model.

    Returns:
        A model of timm if the repository is timm's, else one of transformers, ready for inference.

    Raises:
        PruningError: If there is no such model, or if it cannot be loaded.
    """
    limits = dict.fromkeys((CONFIG, *PROCESSORS), MAX_CONFIG_BYTES)
    files = find_files(source, revision, limits | {WEIGHTS: max_bytes})
    return load_packed_model(files[CONFIG].parent, max_bytes=max_bytes)
