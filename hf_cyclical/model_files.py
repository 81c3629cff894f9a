"""The files of a model: where they are for a name, what may be read of them, and how they are left for others."""

import json
import os
from pathlib import Path
from typing import Any

import timm
from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from transformers import TimmWrapperConfig

from .core import PruningError
from .files import replacing, write_text
from .hub_errors import downloading, first_line

CONFIG, WEIGHTS, WEIGHTS_INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PREFIX = "timm_model."  # what the wrapper of transformers puts before timm's names
PROCESSORS = ("preprocessor_config.json", "processor_config.json")
# What a pretrained_cfg says of published weights, and what timm's config says elsewhere.
NOT_OF_THESE_WEIGHTS = {"custom_load", "file", "hf_hub_filename", "hf_hub_id", "label_offset", "source", "tag", "url"}
SAID_ELSEWHERE = {"architecture", "label_descriptions", "label_names", "num_classes"}


def download_model(name: str, *, weights: bool) -> Path:
    """The folder in the local cache that holds a model of the Hub, downloaded if need be.

    Args:
        name: Hub id.
        weights: Whether the weights are needed, or its configs only.
    """
    files = [CONFIG, *PROCESSORS]
    if weights:
        files += [WEIGHTS, WEIGHTS_INDEX, "model-*-of-*.safetensors"]
    with downloading(name):
        return Path(snapshot_download(name, allow_patterns=files))


def read_json(name: str, file: Path) -> dict[str, Any]:
    """The content of a JSON file of the model `name`."""
    if not file.is_file():
        raise PruningError(f"model {name!r} has no {file.name}: give a folder or Hub id of transformers or timm")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise PruningError(
            f"{file.name} of {name!r} is no JSON, download or save it again: {first_line(error)}"
        ) from error
    if not isinstance(content, dict):
        raise PruningError(f"{file.name} of {name!r} holds no settings but a {type(content).__name__}: save it again")
    return content


def check_weights(name: str, folder: Path) -> None:
    """Refuse a folder without safetensors."""
    if not any((folder / file).is_file() for file in (WEIGHTS, WEIGHTS_INDEX)):
        others = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern))
        found = f" but {others[0]}, which is not read" if others else ", the only kind of weights that is read"
        raise PruningError(
            f"model {name!r} has no {WEIGHTS}{found}: save it with save_pretrained or timm's save_for_hf"
        )


def damaged_weights(name: str, error: SafetensorError) -> PruningError:
    """The error for weights that cannot be read."""
    return PruningError(f"the weights of {name!r} are damaged, download or save them again: {first_line(error)}")


def wrapper_arguments(model_args: dict[str, Any] | None) -> dict[str, Any] | None:
    """What transformers' wrapper of timm models may get as `model_args`.

    timm 1.0.31 saves the number of classes there, too, and the wrapper would pass it twice.
    """
    return model_args and {key: value for key, value in model_args.items() if key != "num_classes"}


def say_classes_once(config: dict[str, Any]) -> bool:
    """Change a config of timm so that both libraries read it, see `wrapper_arguments`; says whether it was changed."""
    arguments = config.get("model_args")
    if not isinstance(arguments, dict) or "num_classes" not in config:
        return False
    if arguments.get("num_classes") != config["num_classes"]:  # if they differ, timm takes that of the arguments
        return False
    config["model_args"] = wrapper_arguments(arguments)
    return True


def make_portable(folder: str | os.PathLike[str]) -> None:
    """Rewrite a saved timm model so that both timm and transformers read it.

    A folder of another kind stays as it is. Keys that others put into the config are kept. A crash leaves a folder
    that transformers reads, and the next call finishes the work.

    Raises:
        PruningError: If the folder has no config or no weights, or damaged ones, or weights in several files.
    """
    folder = Path(folder)
    config = read_json(str(folder), folder / CONFIG)
    if "model_type" not in config and say_classes_once(config):
        write_text(folder / CONFIG, json.dumps(config, indent=2) + "\n")
    if config.get("model_type") != TimmWrapperConfig.model_type:
        return
    if (folder / WEIGHTS_INDEX).is_file():
        raise PruningError(
            f"the weights in {folder} are in several files, timm reads one: raise max_shard_size at saving"
        )
    check_weights(str(folder), folder)
    # The weights first: the wrapper of transformers reads them with and without its prefix.
    _drop_prefix(folder / WEIGHTS)
    layout = json.dumps(_timm_layout(config), indent=2) + "\n"
    write_text(folder / CONFIG, layout)


def _drop_prefix(file: Path) -> None:
    try:
        tensors = load_file(file)
        with safe_open(file, "pt") as opened:
            metadata = opened.metadata() or {}
    except SafetensorError as error:
        raise damaged_weights(str(file.parent), error) from error
    if any(name.startswith(PREFIX) for name in tensors):
        plain = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
        with replacing(file) as new:
            save_file(plain, new, {"format": "pt"} | metadata)


def _timm_layout(config: dict[str, Any]) -> dict[str, Any]:
    """The config of the wrapper as timm writes it, with the keys that neither knows."""
    kinds = {"architecture": str, "num_classes": int, "label_names": list, "pretrained_cfg": dict}
    for key, kind in (kinds | {"model_args": dict | None}).items():
        if not isinstance(config.get(key, {} if kind is dict else None), kind):
            raise PruningError(f"the {CONFIG} of a timm model has no proper {key}: save the model again")
    cfg = config.get("pretrained_cfg") or timm.get_pretrained_cfg(config["architecture"]).to_dict()
    cfg = {key: value for key, value in cfg.items() if key not in NOT_OF_THESE_WEIGHTS | SAID_ELSEWHERE}
    layout = {key: config[key] for key in ("architecture", "num_classes", "num_features") if key in config}
    layout["label_names"] = config["label_names"]
    if arguments := wrapper_arguments(config.get("model_args")):
        layout["model_args"] = arguments
    layout["pretrained_cfg"] = cfg | {"num_classes": config["num_classes"]}
    of_wrapper = set(TimmWrapperConfig().to_dict())
    return layout | {key: value for key, value in config.items() if key not in {*layout, *of_wrapper}}
