"""What a saved model expects of images, for whoever uses one."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from transformers import TimmWrapperImageProcessor

from hf_cyclical.core import PruningError
from hf_cyclical.formats import CONFIG, MAX_BYTES, MAX_CONFIG_BYTES, PROCESSORS, WEIGHTS, read_json

from .download import find_files
from .finding import nested
from .image_settings import load_image_processor, processor_settings

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import BaseImageProcessor

__all__ = ["class_names", "image_processor", "image_side", "pixels_of"]

MAX_SIDE = 4096  # of what a processor makes: no classifier takes more, and memory grows with its square


def class_names(source: str | Path, revision: str | None, count: int) -> list[str]:
    """The names of a model's classes, from its config; the number of a class that has none."""
    config = read_json(str(source), _files(source, revision)[CONFIG])
    listed, numbered = config.get("label_names"), config.get("id2label")
    if isinstance(listed, list) and len(listed) == count:
        return list(map(str, listed))
    return [str(numbered.get(str(i), i)) if isinstance(numbered, dict) else str(i) for i in range(count)]


def image_processor(source: str | Path, revision: str | None, model: nn.Module) -> "BaseImageProcessor":
    """The image processor of a model that was loaded from a source."""
    if timm_config := _timm_config(source, revision, model):
        with _usable(source):
            return TimmWrapperImageProcessor(timm_config)
    processor = load_image_processor(str(source), _files(source, revision)[CONFIG].parent, model.config, None)
    fields = processor.to_dict()
    _checked(source, *(side for name in ("size", "crop_size") for side in (fields.get(name) or {}).values()))
    return processor


def pixels_of(source: str | Path, processor: "BaseImageProcessor", image: "Image") -> Tensor:
    """What a processor makes of an image."""
    with _usable(source):
        return processor(image, return_tensors="pt")["pixel_values"]


def image_side(source: str | Path, revision: str | None, model: nn.Module) -> int:
    """The side of the images that a model is meant for, in pixels."""
    if timm_config := _timm_config(source, revision, model):
        return timm_config["input_size"][-1]
    if isinstance(size := getattr(model.config, "image_size", None), int):
        return size
    if _files(source, revision).keys() & set(PROCESSORS):
        processor = image_processor(source, revision, model)
        with _usable(source):
            return processor_settings(str(source), processor, model.config).size
    raise PruningError(f"{source} does not say what size its images have: give --size")


def _checked(source: str | Path, *sides: int) -> int:
    for side in sides:
        if not isinstance(side, int) or not 1 <= side <= MAX_SIDE:
            raise PruningError(f"{source} asks for images of {side!r} pixels, not of 1 to {MAX_SIDE}: save it again")
    return sides[-1] if sides else 0


@contextlib.contextmanager
def _usable(source: str | Path) -> Iterator[None]:
    try:
        yield
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, PruningError):
            raise
        raise PruningError(f"the image processor of {source} cannot be used, save it again: {error}") from error


def _timm_config(source: str | Path, revision: str | None, model: nn.Module) -> dict[str, Any] | None:
    """What a timm model is told of its images: what its own config says, then what its architecture has."""
    usual = getattr(getattr(model, "config", None), "pretrained_cfg", None) or getattr(model, "pretrained_cfg", None)
    if not usual:
        return None
    said = nested(read_json(str(source), _files(source, revision)[CONFIG])).get("pretrained_cfg")
    config = dict(usual) | (said if isinstance(said, dict) else {})
    size, part = config.get("input_size"), config.get("crop_pct") or 1
    if not isinstance(size, list | tuple) or len(size) != 3 or not isinstance(part, int | float) or part <= 0:
        raise PruningError(f"{source} says of its images {size!r:.80}, of which {part!r:.80} is used: save it again")
    _checked(source, *size[1:])
    _checked(source, *(int(min(side / part, MAX_SIDE + 1)) for side in size[1:]))  # before it is cropped
    return config


def _files(source: str | Path, revision: str | None) -> dict[str, Path]:
    limits = dict.fromkeys((CONFIG, *PROCESSORS), MAX_CONFIG_BYTES)
    return find_files(source, revision, limits | {WEIGHTS: MAX_BYTES})
