"""Image models by name: one path for transformers, timm and the networks registered here."""

import logging
from pathlib import Path
from typing import Any

import timm
import torch
from huggingface_hub.errors import HFValidationError
from transformers import AutoConfig, AutoModelForImageClassification, PreTrainedModel, TimmWrapperConfig

from .core import PruningError

logger = logging.getLogger(__name__)


def load_image_model(name: str, labels: list[str], *, image_size: int | None = None) -> PreTrainedModel:
    """An image classifier with a class for each of `labels`.

    Args:
        name: A folder, a Hub id (`microsoft/resnet-50`, `timm/resnet18.a1_in1k`), or a timm name (`resnet18`,
            `cifar_resnet8`). A timm name without published weights starts from random ones.
        labels: Names of the classes, in order. A head of another size is replaced.
        image_size: Side of the images that a model with random weights is meant for; the architecture's own if not
            given.
    """
    names = {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
    if not Path(name).is_dir() and "/" not in name:
        if not timm.is_model(name):
            raise PruningError(
                f"model {name!r} is not a folder, a Hub id or a timm name: timm has {_near_timm_names(name)}"
            )
        published = timm.get_pretrained_cfg(name).hf_hub_id
        if published is None:
            logger.info("%s has no published weights: it starts from random ones", name)
            return _random_timm_model(name, names, image_size)
        name = published
    try:
        config = AutoConfig.from_pretrained(name, num_labels=len(labels), **names)
        return AutoModelForImageClassification.from_pretrained(
            name, config=config, ignore_mismatched_sizes=True, dtype=torch.float32, use_safetensors=True
        )
    except (OSError, HFValidationError) as error:
        raise PruningError(f"model {name!r} cannot be loaded: {str(error).splitlines()[0]}") from error


def _random_timm_model(name: str, names: dict[str, Any], image_size: int | None) -> PreTrainedModel:
    fresh = timm.create_model(name, num_classes=len(names["id2label"]))
    cfg = {key: value for key, value in fresh.pretrained_cfg.items() if key != "num_classes"}
    if image_size is not None:
        cfg["input_size"] = (cfg["input_size"][0], image_size, image_size)
    model = AutoModelForImageClassification.from_config(
        TimmWrapperConfig(architecture=name, pretrained_cfg=cfg, **names)
    )
    # The wrapper initialises every layer its own way; the architecture's own way is the one to start from.
    model.timm_model.load_state_dict(fresh.state_dict())
    return model


def _near_timm_names(name: str) -> str:
    near = timm.list_models(f"*{name}*")[:3] or timm.list_models(f"{name[:4]}*")[:3] or ["resnet18", "cifar_resnet8"]
    return ", ".join(near)
