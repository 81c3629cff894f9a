"""What a model expects of its images, and the processor that does it, for evaluations and for users of the model."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, resolve_data_config
from transformers import AutoImageProcessor, BaseImageProcessor, PreTrainedConfig, ViTImageProcessor

from hf_cyclical.core import PruningError, first_line
from hf_cyclical.formats import PROCESSORS

logger = logging.getLogger(__name__)

INTERPOLATIONS = {
    Image.Resampling.NEAREST: "nearest",
    Image.Resampling.BILINEAR: "bilinear",
    Image.Resampling.BICUBIC: "bicubic",
}


@dataclass(frozen=True)
class ImageSettings:
    """What a model expects of the images that it is trained on; an evaluation uses its processor itself.

    Attributes:
        size: Side in pixels.
        mean: Per channel, of images scaled to [0, 1].
        std: Per channel.
        interpolation: "bilinear", "bicubic" or "nearest".
    """

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str


def timm_settings(name: str, pretrained_cfg: dict[str, Any]) -> ImageSettings:
    """The settings that timm takes from a model's `pretrained_cfg`."""
    data = resolve_data_config(pretrained_cfg=pretrained_cfg)
    _, height, width = data["input_size"]
    interpolation = data["interpolation"]
    return ImageSettings(
        size=_side(name, height, width),
        mean=tuple(data["mean"]),
        std=tuple(data["std"]),
        interpolation=interpolation if interpolation in INTERPOLATIONS.values() else "bicubic",
    )


def load_image_processor(
    name: str, folder: Path, config: PreTrainedConfig, image_size: int | None
) -> BaseImageProcessor:
    """The image processor of a transformers model, or a plain one where the folder has none.

    Args:
        name: The model, for messages.
        folder: Its files.
        config: Its config.
        image_size: The side that the processor is to give; its own if None.
    """
    if any((folder / file).is_file() for file in PROCESSORS):
        try:
            processor = AutoImageProcessor.from_pretrained(str(folder), config=config, trust_remote_code=False)
        except (KeyError, OSError, TypeError, ValueError) as error:
            raise PruningError(
                f"the image processor of {name!r} cannot be read, save it again: {first_line(error)}"
            ) from error
    else:
        side = _config_side(config)
        logger.info("%s has no image processor: images of %d pixels, ImageNet's mean and deviation", name, side)
        processor = ViTImageProcessor(
            size={"height": side, "width": side}, image_mean=IMAGENET_DEFAULT_MEAN, image_std=IMAGENET_DEFAULT_STD
        )
    return processor if image_size is None else _resized(name, processor, config, image_size)


def processor_settings(name: str, processor: BaseImageProcessor, config: PreTrainedConfig) -> ImageSettings:
    """The settings of an image processor, found by what it makes of plain black, white and red images.

    Processors differ in how they scale, shift and normalise (EfficientNet's divides by its deviation twice), but all
    of it is u -> (u - mean) / std of a pixel u in [0, 1], so that the images of u = 0 and u = 1 tell mean and std.
    """
    side = _config_side(config)
    black, white, red = (
        processor(Image.new("RGB", (side, side), colour), return_tensors="pt")["pixel_values"][0].double()
        for colour in ("black", "white", "red")
    )
    if black.ndim != 3:
        raise PruningError(f"the image processor of {name!r} makes no plain images: use another model")
    size = _side(name, *black.shape[1:])
    black, white, red = black[:, 0, 0], white[:, 0, 0], red[:, 0, 0]
    if red[0] != white[0] or red[-1] != black[-1]:
        raise PruningError(
            f"the image processor of {name!r} reorders colours, which training does not: use another model"
        )
    std = 1 / (white - black)
    fields = processor.to_dict()
    return ImageSettings(
        size=size,
        mean=tuple(round(value, 6) for value in (-black * std).tolist()),  # 0.485, not 0.48500001 of float32
        std=tuple(round(value, 6) for value in std.tolist()),
        interpolation=INTERPOLATIONS.get(fields.get("resample"), "bicubic"),
    )


def whole_processor(processor: BaseImageProcessor) -> BaseImageProcessor:
    """The same processor without a crop after resizing, if it has one."""
    fields = processor.to_dict()
    if fields.get("crop_pct"):
        return type(processor).from_dict(fields | {"crop_pct": 1.0})
    size, crop = fields.get("size") or {}, fields.get("crop_size") or {}
    if not (fields.get("do_center_crop") and size and crop):
        return processor
    side = max(crop.values())
    return type(processor).from_dict(fields | {"size": crop if "height" in size else {"shortest_edge": side}})


def _resized(name: str, processor: BaseImageProcessor, config: PreTrainedConfig, image_size: int) -> BaseImageProcessor:
    """The same processor for images of another side: every length in proportion."""
    factor = image_size / processor_settings(name, processor, config).size
    fields = processor.to_dict()
    lengths = {
        field: {edge: round(length * factor) for edge, length in fields[field].items()}
        for field in ("size", "crop_size")
        if fields.get(field)
    }
    return type(processor).from_dict(fields | lengths)


def _config_side(config: PreTrainedConfig) -> int:
    size = config.to_dict().get("image_size") or 224
    return size if isinstance(size, int) else max(size)


def _side(name: str, height: int, width: int) -> int:
    if height != width:
        raise PruningError(
            f"model {name!r} takes images of {height}x{width} pixels, training needs square ones: use another"
        )
    return height
