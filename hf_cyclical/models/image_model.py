"""Image models by name: one path for transformers, timm and the networks registered here.

Only safetensors are read, and no code that comes with a model is run.
"""

import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    BaseImageProcessor,
    PreTrainedConfig,
    PreTrainedModel,
    TimmWrapperConfig,
    TimmWrapperImageProcessor,
)

from hf_cyclical.core import PruningError, first_line
from hf_cyclical.formats import CLASSIFICATION, check_weights, damaged_weights

from .building import at_size, random_model
from .finding import UNBUILDABLE, auto_class, find_folder, local_folder, read_config, timm_config
from .image_settings import ImageSettings, load_image_processor, processor_settings, timm_settings, whole_processor

__all__ = ["ImageModel", "load_image_model"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ImageModel:
    """A classifier, the image processor that is saved beside it, and what both expect of images.

    Attributes:
        base_model: The Hub id that its weights come from; None if they are random or from a folder.
        revision: The commit of these weights.
        untrained: Which of its weights are random, in words: all of them, or those of a new head; None if none are.
        of_other_classes: Whether its head was trained for others, by their names.
    """

    model: PreTrainedModel
    processor: BaseImageProcessor
    settings: ImageSettings
    base_model: str | None = None
    revision: str | None = None
    untrained: str | None = None
    of_other_classes: bool = False


def load_image_model(
    name: str | os.PathLike[str],
    labels: list[str],
    *,
    image_size: int | None = None,
    resize_trained: bool = False,
    whole: bool = False,
    from_scratch: bool = False,
) -> ImageModel:
    """An image classifier, in float32, with a class for each of `labels`.

    Args:
        name: A folder of transformers or timm, a Hub id (`microsoft/resnet-50`, `timm/resnet18.a1_in1k`), or a timm
            name (`resnet18`, `cifar_resnet20`): with its published weights, or random ones if it has none.
        labels: Names of the classes, in order. A head of another size is replaced.
        image_size: Side of the images that a model with random weights is meant for; its config's own if not given.
        resize_trained: Let a model with trained weights take images of that side, too.
        whole: Let the processor cut nothing off the edges of an image after resizing it, as for small images.
        from_scratch: Start from random weights of that architecture and read none.

    Raises:
        PruningError: If there is no such model, if it cannot be read, or if it is no image classifier.
    """
    if not labels or len(set(labels)) < len(labels):
        raise PruningError(f"labels must be distinct and at least one, got {labels[:5]}: name every class once")
    of_the_hub = not local_folder(name).is_dir()
    name, folder = find_folder(os.fspath(name), from_scratch)
    downloaded = folder is not None and of_the_hub and not from_scratch
    base = (name, folder.name) if downloaded else (None, None)  # a snapshot's folder has the name of its commit
    config = timm_config(name) if folder is None else read_config(name, folder)
    others = _other_classes(config, labels)
    _set_labels(config, labels)
    if folder is None and not from_scratch:
        logger.info("%s has no published weights: it starts from random ones", name)
    if folder is None or from_scratch:
        model, untrained = random_model(name, config, image_size), "weights"
    else:
        model, new_head = _trained_model(name, folder, config)
        untrained = "head" if new_head else None
        image_size = image_size if resize_trained else None
        model = model if image_size is None else at_size(name, model, image_size)
    config = model.config
    config.name_or_path, config._commit_hash = name, base[1]  # the latter is never saved
    if isinstance(config, TimmWrapperConfig):
        config.num_features = model.timm_model.num_features  # timm's own configs say it
        if whole:
            config.pretrained_cfg = config.pretrained_cfg | {"crop_pct": 1.0}
        processor = TimmWrapperImageProcessor(config.pretrained_cfg, config.architecture)
        return ImageModel(model, processor, timm_settings(name, config.pretrained_cfg), *base, untrained, others)
    processor = load_image_processor(name, folder, config, image_size)
    processor = whole_processor(processor) if whole else processor
    return ImageModel(model, processor, processor_settings(name, processor, config), *base, untrained, others)


def _other_classes(config: PreTrainedConfig, labels: list[str]) -> bool:
    """Whether a config names other classes than these; LABEL_0 and the like are no names."""
    named = {str(label).lower() for label in (config.id2label or {}).values()}
    return not any(re.fullmatch(r"label_\d+|\d+", name) for name in named) and named.isdisjoint(map(str.lower, labels))


def _set_labels(config: PreTrainedConfig, labels: list[str]) -> None:
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: i for i, label in enumerate(labels)}
    config.problem_type = "single_label_classification"
    if isinstance(config, TimmWrapperConfig):
        # What a folder of timm says of its labels would be saved in place of these.
        config.label_names = list(labels)
        config.__dict__.pop("label_descriptions", None)


def _trained_model(name: str, folder: Path, config: PreTrainedConfig) -> tuple[PreTrainedModel, bool]:
    """The model, and whether its head is new."""
    check_weights(name, folder)
    try:
        model, loaded = auto_class(CLASSIFICATION).from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
    except SafetensorError as error:
        raise damaged_weights(name, error) from error
    except (OSError, *UNBUILDABLE) as error:
        raise PruningError(f"model {name!r} cannot be loaded, save it again: {first_line(error)}") from error
    return model, _has_new_head(name, model, loaded)


def _has_new_head(name: str, model: PreTrainedModel, loaded: dict[str, Any]) -> bool:
    """Whether the head is new, which is said; refuses a model of which any other layer is."""
    old_shapes = {key: shape for key, shape, _ in loaded["mismatched_keys"]}
    missing = {key for key in loaded["missing_keys"] if not key.endswith("num_batches_tracked")}
    new = sorted({*old_shapes, *missing})
    strangers = [key for key in new if key not in _head(model)]
    if strangers:
        raise PruningError(
            f"the weights of {name!r} do not fit its config: {len(strangers)} tensors are missing or of another size, "
            f"the first is {strangers[0]}: save the model again"
        )
    if new:
        old = f"one for {old_shapes[new[0]][0]}" if new[0] in old_shapes else "none"
        logger.info("%s gets a new head for %d classes in place of %s", name, model.config.num_labels, old)
    return bool(new)


def _head(model: PreTrainedModel) -> set[str]:
    """Names of the parameters that turn features into classes."""
    if not isinstance(model.config, TimmWrapperConfig):
        return {key for key, _ in model.named_parameters() if not key.startswith(f"{model.base_model_prefix}.")}
    heads = model.timm_model.get_classifier()
    parameters = {id(p) for head in (heads if isinstance(heads, tuple) else (heads,)) for p in head.parameters()}
    return {key for key, p in model.named_parameters() if id(p) in parameters}
