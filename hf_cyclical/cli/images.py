"""What a saved model expects of images, for the commands that use one."""

from pathlib import Path

from torch import nn

from hf_cyclical.core import PruningError
from hf_cyclical.formats import CONFIG, MAX_BYTES, MAX_CONFIG_BYTES, WEIGHTS, read_json
from hf_cyclical.models import find_files

__all__ = ["class_names", "image_side"]


def class_names(source: str | Path) -> list[str]:
    """The names of a model's classes, from its config; their numbers if it has none."""
    limits = {CONFIG: MAX_CONFIG_BYTES, WEIGHTS: MAX_BYTES}
    config = read_json(str(source), find_files(source, None, limits)[CONFIG])
    by_number = config.get("id2label") or {}
    names = config.get("label_names") or [by_number[key] for key in sorted(by_number, key=int)]
    return list(map(str, names)) or [str(i) for i in range(int(config.get("num_classes") or 1000))]


def image_side(source: str | Path, model: nn.Module) -> int:
    """The side of the images that a model is meant for, in pixels."""
    config = getattr(model, "config", None)
    timm_config = getattr(config, "pretrained_cfg", None) or getattr(model, "pretrained_cfg", None)
    if timm_config:
        return int(timm_config["input_size"][-1])
    size = getattr(config, "image_size", None)
    if isinstance(size, int):
        return size
    processor = Path(source) / "preprocessor_config.json"
    if processor.is_file():
        from hf_cyclical.models import load_image_model

        return load_image_model(source, class_names(source)).settings.size
    raise PruningError(f"{source} does not say what size its images have: give --size")
