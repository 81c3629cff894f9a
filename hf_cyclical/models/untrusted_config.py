"""What a stranger's config.json may not ask for: code of its own, weights from elsewhere, sizes that nothing has."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import timm
from transformers import TimmWrapperConfig

from hf_cyclical.core import PruningError
from hf_cyclical.formats import CONFIG, KEY

# What a timm config may not ask of create_model: to read other weights, or to take any.
NOT_MODEL_ARGUMENTS = {
    "cache_dir", "checkpoint_path", "kwargs_filter", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay",
    "pretrained_custom_load", "pretrained_filter_fn", "pretrained_model_args", "pretrained_strict",
}  # fmt: skip
# Of numbers in a config, of the sum of a list and of its length: more than any model has, and no more than can be made
# into a label each, or a layer, before a limit of weights is met.
MOST, MOST_IN_ALL, MOST_NUMBERS = 1 << 20, 1 << 17, 1000

_OF_LAYERS = re.compile(r"depth|layers|blocks|stages")  # settings by which a model has so many modules
MOST_LAYERS = 2000  # far more than any model has
_LARGEST = {"levit": 512}  # pixels of models whose constructors count pairs of patches one by one: 224 is usual
IMPLEMENTATIONS = (None, "eager", "sdpa")  # of layers, that are part of transformers


def is_of_timm(config: dict[str, Any]) -> bool:
    """Whether timm makes the model of a config, with or without the wrapper of transformers."""
    return config.get("model_type", TimmWrapperConfig.model_type) == TimmWrapperConfig.model_type


def refuse_hostile(folder: Path, config: dict[str, Any]) -> None:
    """Refuse a config that asks for code or weights of the Hub, or for numbers that no model has.

    Raises:
        PruningError: If it does.
    """
    if "configuration_files" in config:
        raise PruningError(f"{CONFIG} in {str(folder)!r} names others by 'configuration_files': take it out")
    if is_of_timm(config):
        _refuse_other_weights(folder, config)
    _refuse_kernels(folder, config)  # also of timm's: transformers reads them, too
    refuse_other_backbones(folder, config)
    if "model_type" in config:
        refuse_large_numbers(folder, {key: value for key, value in config.items() if key != KEY})
    else:
        arguments = config.get("model_args") or {}
        classes = {"num_classes": config.get("num_classes")}
        refuse_large_numbers(folder, arguments if isinstance(arguments, dict) else {})
        refuse_large_numbers(folder, classes)


def refuse_large_numbers(folder: Path | str, settings: dict[str, Any], *, most_layers: int | None = None) -> None:
    """Refuse numbers that would be made into more labels or layers than any model has.

    Args:
        folder: What errors call the model.
        settings: The config, or a part of it.
        most_layers: A bound on layers, for a model that is made without other limits.
    """
    for key, value in settings.items():
        if isinstance(value, dict):
            refuse_large_numbers(folder, value, most_layers=most_layers)
        most = MOST_IN_ALL if isinstance(value, list) else MOST
        if most_layers is not None and _OF_LAYERS.search(str(key)):
            most = most_layers
        if key == "image_size":
            most = _LARGEST.get(str(settings.get("model_type")), most)
        numbers = [abs(number) for number in _flat(value) if isinstance(number, int)]
        if sum(numbers) > most or len(numbers) > MOST_NUMBERS:
            raise PruningError(
                f"{CONFIG} in {str(folder)!r} has {key!r:.80} above {most:,}, more than any model: save it again"
            )


def refuse_other_backbones(folder: Path | str, config: dict[str, Any]) -> None:
    """Refuse a part of the model that another repository describes: timm's names alone are no such thing."""
    for key, value in _settings(config):
        if key == "backbone" and isinstance(value, str) and not timm.is_model(value):
            raise PruningError(f"the config of {str(folder)!r} asks for {key!r} {value[:80]!r}: remove it")


def _refuse_kernels(folder: Path, config: dict[str, Any]) -> None:
    """A config can name an implementation of its layers, which transformers would fetch from the Hub and run."""
    for key, value in _settings(config):
        if "_implementation" in key and value not in IMPLEMENTATIONS:
            raise PruningError(f"the config of {str(folder)!r} asks for {key!r:.80} {str(value)[:80]!r}: remove it")


def _settings(config: Any) -> Iterator[tuple[str, Any]]:
    """Keys and values of a config, and of all that are in it."""
    if isinstance(config, dict):
        yield from config.items()
    for inner in config.values() if isinstance(config, dict) else config if isinstance(config, list) else ():
        yield from _settings(inner)


def _refuse_other_weights(folder: Path, config: dict[str, Any]) -> None:
    """Refuse a config of timm that names another model: as "hf-hub:..." or "local-dir:...", or by an argument."""
    architecture, arguments = config.get("architecture"), config.get("model_args") or {}
    if not isinstance(architecture, str) or not timm.is_model(architecture):
        raise PruningError(
            f"{CONFIG} in {str(folder)!r} names the architecture {architecture!r:.80}, which timm lacks: use another"
        )
    if forbidden := sorted(NOT_MODEL_ARGUMENTS & set(arguments)):
        raise PruningError(f"{CONFIG} in {str(folder)!r} has model_args with {forbidden[0]!r}: take it out")


def _flat(value: Any) -> list[Any]:
    return [item for part in value for item in _flat(part)] if isinstance(value, list) else [value]
