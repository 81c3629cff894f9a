"""What a saved model expects of images, for the commands that use one."""

from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from hf_cyclical.core import PruningError
from hf_cyclical.formats import CONFIG, MAX_BYTES, MAX_CONFIG_BYTES, PROCESSORS, WEIGHTS, read_json
from hf_cyclical.models import find_files

if TYPE_CHECKING:
    from transformers import BaseImageProcessor

__all__ = ["class_names", "image_processor", "image_side"]


def class_names(source: str | Path, revision: str | None, count: int) -> list[str]:
    """The names of a model's classes, from its config; the number of a class that has none."""
    config = read_json(str(source), _files(source, revision)[CONFIG])
    listed, numbered = config.get("label_names"), config.get("id2label")
    if isinstance(listed, list) and len(listed) == count:
        return list(map(str, listed))
    return [str(numbered.get(str(i), i)) if isinstance(numbered, dict) else str(i) for i in range(count)]


def image_processor(source: str | Path, revision: str | None, model: nn.Module) -> "BaseImageProcessor":
    """The image processor of a model that was loaded from a source."""
    from hf_cyclical.models import load_image_processor

    if timm_config := _timm_config(model):
        from transformers.models.timm_wrapper.image_processing_timm_wrapper import TimmWrapperImageProcessor

        return TimmWrapperImageProcessor(dict(timm_config))
    return load_image_processor(str(source), _files(source, revision)[CONFIG].parent, model.config, None)


def image_side(source: str | Path, revision: str | None, model: nn.Module) -> int:
    """The side of the images that a model is meant for, in pixels."""
    if timm_config := _timm_config(model):
        return int(timm_config["input_size"][-1])
    if isinstance(size := getattr(model.config, "image_size", None), int):
        return size
    if _files(source, revision).keys() & set(PROCESSORS):
        from hf_cyclical.models import processor_settings

        return processor_settings(str(source), image_processor(source, revision, model), model.config).size
    raise PruningError(f"{source} does not say what size its images have: give --size")


def _timm_config(model: nn.Module) -> dict | None:
    return getattr(getattr(model, "config", None), "pretrained_cfg", None) or getattr(model, "pretrained_cfg", None)


def _files(source: str | Path, revision: str | None) -> dict[str, Path]:
    limits = dict.fromkeys((CONFIG, *PROCESSORS), MAX_CONFIG_BYTES)
    return find_files(source, revision, limits | {WEIGHTS: MAX_BYTES})
