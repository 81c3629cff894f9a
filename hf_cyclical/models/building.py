"""Models from their configs, for images of any side."""

from copy import deepcopy
from math import isqrt

import timm
import torch
from timm.layers import resample_abs_pos_embed
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, TimmWrapperConfig

from hf_cyclical.core import PruningError, first_line
from hf_cyclical.formats import CLASSIFICATION

from .finding import UNBUILDABLE, auto_class

_OTHER_TOKENS = range(3)  # of a class and of a distillation, before those of the image


def random_model(name: str, config: PreTrainedConfig, image_size: int | None) -> PreTrainedModel:
    """A model with random weights.

    Args:
        name: The model, for errors.
        config: Its config, which is changed to the image size.
        image_size: Side of the images; the config's own if None.
    """
    if image_size is not None:
        _set_size(config, image_size)
    try:
        model = _build(config)
        if image_size is not None:
            _check_size(model, image_size)
    except UNBUILDABLE as error:
        size = "" if image_size is None else f" for images of {image_size} pixels"
        raise PruningError(f"model {name!r} cannot be made{size}, use another: {first_line(error)}") from error
    return model


def at_size(name: str, model: PreTrainedModel, image_size: int) -> PreTrainedModel:
    """The same model, weights included, for images of another side: a grid of position embeddings is interpolated."""
    config = deepcopy(model.config)
    resized = random_model(name, config, image_size)
    weights = model.state_dict()
    for key, wanted in resized.state_dict().items():
        if weights[key].shape != wanted.shape:
            weights[key] = _resampled(name, key, weights[key], wanted)
    resized.load_state_dict(weights)
    return resized


def _resampled(name: str, key: str, embeddings: Tensor, wanted: Tensor) -> Tensor:
    others = [n for n in _OTHER_TOKENS if _is_grid(embeddings, n) and _is_grid(wanted, n)]
    if not others or embeddings.shape[-1] != wanted.shape[-1]:
        raise PruningError(
            f"the trained weights of {name!r} are for images of one size ({key} is {tuple(embeddings.shape)}): leave "
            "image_size out, or start from_scratch"
        )
    side = isqrt(wanted.shape[1] - others[0])
    return resample_abs_pos_embed(embeddings, new_size=[side, side], num_prefix_tokens=others[0])


def _is_grid(embeddings: Tensor, others: int) -> bool:
    if embeddings.ndim != 3 or len(embeddings) != 1 or embeddings.shape[1] <= others:
        return False
    return isqrt(embeddings.shape[1] - others) ** 2 == embeddings.shape[1] - others


def _set_size(config: PreTrainedConfig, image_size: int) -> None:
    if not isinstance(config, TimmWrapperConfig):
        if "image_size" in config.to_dict():
            config.image_size = image_size
        return
    cfg = {key: value for key, value in config.pretrained_cfg.items() if not key.startswith("test_")}
    config.pretrained_cfg = cfg | {"input_size": (cfg.get("input_size", (3,))[0], image_size, image_size)}
    arguments = config.model_args or {}
    if cfg.get("fixed_input_size") or "img_size" in arguments:
        config.model_args = arguments | {"img_size": image_size}


def _build(config: PreTrainedConfig) -> PreTrainedModel:
    if not isinstance(config, TimmWrapperConfig):
        return auto_class(CLASSIFICATION).from_config(config, dtype=torch.float32, trust_remote_code=False)
    fresh = timm.create_model(config.architecture, num_classes=config.num_labels, **(config.model_args or {}))
    model = auto_class(CLASSIFICATION).from_config(config, dtype=torch.float32)
    # The wrapper initialises every layer its own way; the architecture's own way is the one to start from.
    model.timm_model = fresh
    return model


@torch.no_grad()
def _check_size(model: PreTrainedModel, image_size: int) -> None:
    """Run the model once: many can be made for images that are too small for them."""
    model.eval()(torch.zeros(1, 3, image_size, image_size))
    model.train()
