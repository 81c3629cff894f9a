"""Saved timm models as timm itself saves them, so that both libraries load them."""

import json
import os
from pathlib import Path
from typing import Any

import timm
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from transformers import TimmWrapperConfig

from hf_cyclical.core import PruningError
from hf_cyclical.formats import (
    CONFIG,
    PREFIX,
    WEIGHTS,
    WEIGHTS_INDEX,
    check_weights,
    damaged_weights,
    read_json,
    replacing,
    say_classes_once,
    wrapper_arguments,
    write_text,
)

# What a pretrained_cfg says of published weights, and what timm's config says elsewhere.
NOT_OF_THESE_WEIGHTS = {"custom_load", "file", "hf_hub_filename", "hf_hub_id", "label_offset", "source", "tag", "url"}
SAID_ELSEWHERE = {"architecture", "label_descriptions", "label_names", "num_classes"}


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
