"""The folder of a saved model: the names of its files, and what is read of them."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from hf_cyclical.core import PruningError, first_line

CONFIG, WEIGHTS, WEIGHTS_INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PREFIX = "timm_model."  # what the wrapper of transformers puts before timm's names
PROCESSORS = ("preprocessor_config.json", "processor_config.json")


def read_json(name: str, file: Path) -> dict[str, Any]:
    """The content of a JSON file of the model `name`."""
    if not file.is_file():
        raise PruningError(f"model {name!r} has no {file.name}: give a folder or Hub id of transformers or timm")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise PruningError(
            f"{file.name} of {name!r} is not valid JSON, download or save it again: {first_line(error)}"
        ) from error
    if not isinstance(content, dict):
        raise PruningError(f"{file.name} of {name!r} holds no settings but a {type(content).__name__}: save it again")
    return content


def check_weights(name: str, folder: Path) -> None:
    """Refuse a folder without safetensors."""
    if not any((folder / file).is_file() for file in (WEIGHTS, WEIGHTS_INDEX)):
        others = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern))
        found = f" but {others[0]!r:.80}, which is not read" if others else ", the only kind of weights that is read"
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
