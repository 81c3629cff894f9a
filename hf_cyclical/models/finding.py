"""From a model's name to its files and its config, before anything is built.

Every name becomes a folder (that of the local cache for a Hub id) or, for a timm name with random weights, a config.
"""

import os
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import timm
import transformers
from huggingface_hub.errors import StrictDataclassError
from timm.models import PretrainedCfg
from transformers import AutoConfig, PreTrainedConfig, TimmWrapperConfig

from hf_cyclical.core import PruningError, first_line
from hf_cyclical.formats import CLASSIFICATION, CONFIG, Task, read_json, task_of, wrapper_arguments

from .download import download_model

UNBUILDABLE = (ArithmeticError, AssertionError, ImportError, KeyError, RuntimeError, TypeError, ValueError)
_OUTSIDE = ("architecture", "label_descriptions", "label_names", "num_classes")  # of `pretrained_cfg`
_IN_A_FOLDER, _ON_THE_HUB = "local-dir:", ("hf-hub:", "hf_hub:")  # timm's own words for it


def check_image_model(name: str | os.PathLike[str], *, from_scratch: bool = False) -> None:
    """Find a model and read its config, to know before anything else is prepared that it can be loaded.

    Args:
        name: As for `load_image_model`.
        from_scratch: Whether its weights are not needed.

    Raises:
        PruningError: If there is no such model, or if it is no image classifier.
    """
    name, folder = find_folder(os.fspath(name), from_scratch)
    if folder is not None:
        read_config(name, folder)


def auto_class(task: Task) -> Any:
    """The class of transformers that makes and loads any model for a task."""
    return getattr(transformers, task.auto_class)


def local_folder(name: str | os.PathLike[str]) -> Path:
    """The path that a name would have as a folder, also with timm's prefix."""
    return Path(os.path.expanduser(os.fspath(name).removeprefix(_IN_A_FOLDER)))


def find_folder(name: str, from_scratch: bool) -> tuple[str, Path | None]:
    """The model's name on the Hub if it has one there, and its folder, downloaded if need be.

    There is no folder for a timm name that starts from random weights.
    """
    path = local_folder(name)
    if path.is_dir():
        return name.removeprefix(_IN_A_FOLDER), path
    if name.startswith(_IN_A_FOLDER):
        raise PruningError(f"model {name!r} is a path without a folder: check the path")
    if name.startswith(_ON_THE_HUB):
        name = name.partition(":")[2]
        return name, download_model(name, weights=not from_scratch)
    if "/" in name:
        if path.is_absolute() or name.startswith(".") or name.count("/") > 1:
            raise PruningError(f"model {name!r} is a path without a folder: check the path")
        return name, download_model(name, weights=not from_scratch)
    if not timm.is_model(name):
        raise PruningError(f"model {name!r} is no folder, Hub id or timm name: timm has {_near_timm_names(name)}")
    published = _published_weights(name)
    if from_scratch:
        return name, None
    if published.hf_hub_id is not None:
        return published.hf_hub_id, download_model(published.hf_hub_id, weights=True)
    if published.url is not None:
        raise PruningError(
            f"the weights of {name!r} are no safetensors on the Hub but {published.url}: use from_scratch"
        )
    return name, None


def _published_weights(name: str) -> Any:
    try:
        return timm.get_pretrained_cfg(name)
    except RuntimeError as error:
        architecture = name.partition(".")[0]
        tagged = timm.list_pretrained(f"{architecture}.*")
        raise PruningError(f"timm has no weights {name!r}: use {', '.join([architecture, *tagged[:3]])}") from error


def _near_timm_names(name: str) -> str:
    near = timm.list_models(f"*{name}*")[:3] or get_close_matches(name, timm.list_models(), n=3)
    return ", ".join(near or ["resnet18", "cifar_resnet20"])


def timm_config(name: str) -> TimmWrapperConfig:
    """The config of a timm name that starts from random weights."""
    return TimmWrapperConfig(
        architecture=name.partition(".")[0], pretrained_cfg=timm.get_pretrained_cfg(name).to_dict()
    )


def read_config(name: str, folder: Path) -> PreTrainedConfig:
    """The config of an image classifier in a folder of transformers or of timm.

    Raises:
        PruningError: If it cannot be used.
    """
    raw = read_json(name, folder / CONFIG)
    of_timm = _is_timm(raw)
    if of_timm:
        raw = nested(raw)
    elif raw.get("model_type") not in transformers.CONFIG_MAPPING:
        if "auto_map" in raw:
            raise PruningError(
                f"model {name!r} needs code of its own, which is never run: use one that transformers has"
            )
        version = f"transformers {transformers.__version__}"
        raise PruningError(
            f"model {name!r} is of type {raw.get('model_type')!r}, which {version} lacks: update or use another"
        )
    try:
        config = (
            TimmWrapperConfig.from_dict(raw) if of_timm else AutoConfig.from_pretrained(folder, trust_remote_code=False)
        )
    except (AttributeError, OSError, StrictDataclassError, *UNBUILDABLE) as error:
        raise PruningError(f"{CONFIG} of {name!r} cannot be used, save it again: {first_line(error)}") from error
    if (task := task_of(raw)) is not CLASSIFICATION:
        raise PruningError(
            f"model {name!r} is for {task.tag}, and this is for image classifiers: prune it in Python, with "
            "CyclicalPruningTrainer and your own data"
        )
    if type(config) not in getattr(transformers, CLASSIFICATION.mapping):
        raise PruningError(f"model {name!r} is of type {config.model_type!r}, no {CLASSIFICATION.noun}: use one")
    if of_timm:
        _complete(name, config, raw.get("pretrained_cfg"))
    return config


def _is_timm(raw: dict[str, Any]) -> bool:
    """Whether a config is timm's: its own, which has no model type, or that of transformers' wrapper."""
    return raw.get("model_type", TimmWrapperConfig.model_type) == TimmWrapperConfig.model_type and (
        "architecture" in raw or "pretrained_cfg" in raw
    )


def nested(raw: dict[str, Any]) -> dict[str, Any]:
    """A config of timm as it writes it today: before 0.9 the keys of `pretrained_cfg` stood beside the others."""
    if "model_type" in raw or "pretrained_cfg" in raw:
        return raw
    inner = {field.name for field in fields(PretrainedCfg)} - set(_OUTSIDE)
    outer = {"label_names" if key == "labels" else key: value for key, value in raw.items() if key not in inner}
    return outer | {"pretrained_cfg": {key: value for key, value in raw.items() if key in inner}}


def _complete(name: str, config: TimmWrapperConfig, pretrained_cfg: dict[str, Any] | None) -> None:
    if not timm.is_model(config.architecture):
        near = _near_timm_names(config.architecture)
        raise PruningError(f"timm {timm.__version__} has no {config.architecture!r} of {name!r}: it has {near}")
    config.model_args = wrapper_arguments(config.model_args)
    if not pretrained_cfg:
        config.pretrained_cfg = timm.get_pretrained_cfg(config.architecture).to_dict()
