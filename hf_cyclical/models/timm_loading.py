"""What timm makes of stored tensors, which it changes, or leaves out, as `pretrained_cfg` tells it."""

from functools import partial
from pathlib import Path
from typing import Any

import timm
from torch import Tensor

from hf_cyclical.core import PruningError
from hf_cyclical.formats import WEIGHTS, is_packed, iterate_tensors

from .fitting import UNBUILDABLE, Kinds, sketch_within
from .silence import silence


def changed_by_timm(folder: Path, config: dict[str, Any], kinds: Kinds, max_bytes: int) -> list[str]:
    """Names of stored tensors that are others where timm loads the model from the folder itself.

    It then takes arguments from `pretrained_cfg`, too, changes tensors so that they fit, and starts layers anew that
    are those of other classes. What it cannot make at all it does not load either.

    Args:
        folder: The model, whose config leads to no other weights.
        config: Its config, which fits what is stored.
        kinds: Of the tensors that are stored.
        max_bytes: The most that the model may take.

    Raises:
        PruningError: If timm would make a far larger model.
    """
    source = config.get("pretrained_cfg")
    if not isinstance(source, dict):
        source = {key: value for key, value in config.items() if key not in ("architecture", "num_features")}
    arguments = {key: value for key, value in (config.get("model_args") or {}).items() if value is not None}
    classes = {"num_classes": config["num_classes"]} if config.get("num_classes") is not None else {}
    make = partial(
        timm.create_model, config["architecture"], pretrained=False, pretrained_cfg=source | classes, **arguments
    )
    try:
        with silence():
            made = sketch_within(folder, make, kinds=kinds, max_bytes=max_bytes, exact=False)
    except PruningError:
        raise
    except UNBUILDABLE:
        return []
    expected = {name: tuple(tensor.shape) for name, tensor in made.state_dict().items()}
    others = sorted(name for name, kind in kinds.items() if expected.get(name, kind.shape) != kind.shape)
    return others or ([] if is_packed(folder / WEIGHTS) else _changed_values(folder))


def _changed_values(folder: Path) -> list[str]:
    """The same by loading it, which takes no more memory than the model; timm reads no packed weights."""
    try:
        with silence():
            loaded = timm.create_model(f"local-dir:{folder}", pretrained=True).state_dict()
    except UNBUILDABLE:
        return []
    stored = iterate_tensors(folder / WEIGHTS)
    return sorted(name for name, tensor in stored if name in loaded and not _same(loaded[name], tensor))


def _same(loaded: Tensor, stored: Tensor) -> bool:
    if loaded.shape != stored.shape:
        return False
    stored = stored.to(loaded.dtype)
    return bool(((loaded == stored) | (loaded.isnan() & stored.isnan())).all())
