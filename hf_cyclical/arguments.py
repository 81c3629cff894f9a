"""The command line of the scripts: dataclasses for HfArgumentParser, presets, files and errors."""

import difflib
import json
import sys
from argparse import ArgumentDefaultsHelpFormatter, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn

import torch
import yaml
from transformers import HfArgumentParser, TrainingArguments

from .config import PruningConfig, applies
from .core import PruningError
from .presets import PRESETS

USAGE_ERROR = 2


@dataclass
class ModelArguments:
    """Which model."""

    _argument_group_name = "model"

    model_name_or_path: str | None = field(
        default=None,
        metadata={
            "help": "A folder, a Hub id (microsoft/resnet-50, timm/resnet18.a1_in1k) or a timm name (cifar_resnet8)."
        },
    )


@dataclass
class DataArguments:
    """Which data."""

    _argument_group_name = "data"

    dataset_name: str | None = field(
        default=None, metadata={"help": "digits: scikit-learn's handwritten digits, which need no download."}
    )


@dataclass
class RunArguments:
    """What to do."""

    _argument_group_name = "run"

    preset: str | None = field(
        default=None,
        metadata={
            "help": f"Settings by name, overridden by any other argument: {', '.join(PRESETS)}. "
            "digits if neither a model nor a dataset is given."
        },
    )
    plan: bool = field(default=False, metadata={"help": "Print the plan of the run and stop."})


@dataclass
class PruningTrainingArguments(TrainingArguments):
    """TrainingArguments with the paper's defaults where they differ from the Trainer's."""

    _argument_group_name = "training (transformers.TrainingArguments, with the paper's defaults)"

    output_dir: str = field(
        default="pruned", metadata={"help": "Folder for the pruned model, its report and checkpoints."}
    )
    optim: str = field(
        default="sgd", metadata={"help": "Optimizer; SGD with momentum as in the paper's CIFAR experiments."}
    )
    optim_args: str | None = field(default="momentum=0.9", metadata={"help": "Optimizer arguments."})
    learning_rate: float = field(
        default=1e-2, metadata={"help": "Learning rate at the start of each cycle (paper: 1e-2 for CIFAR)."}
    )
    max_grad_norm: float = field(
        default=0.0, metadata={"help": "Gradient clipping; 0 for none, as the paper has none."}
    )
    per_device_train_batch_size: int = field(default=256, metadata={"help": "Batch size (paper: 256 for CIFAR)."})
    per_device_eval_batch_size: int = field(default=256, metadata={"help": "Batch size of evaluations."})
    num_train_epochs: float = field(
        default=100.0, metadata={"help": "Epochs in all, those of a dense start included (paper: 100 for CIFAR)."}
    )
    logging_steps: float = field(
        default=0.1,
        metadata={"help": "Log every so many updates, or such a part of the run. Cycle ends are logged anyway."},
    )
    save_steps: float = field(
        default=0.1,
        metadata={"help": "Checkpoint every so many updates, or such a part of the run, and at cycle ends."},
    )
    save_total_limit: int | None = field(default=2, metadata={"help": "Checkpoints to keep."})
    dataloader_pin_memory: bool = field(
        default=torch.accelerator.is_available(), metadata={"help": "Pin memory: where there is a device to copy to."}
    )
    remove_unused_columns: bool = field(
        default=False, metadata={"help": "Leave it off: our data gives what the model takes."}
    )
    hub_strategy: str = field(
        default="end", metadata={"help": "When to push: at the end only, as models between are not at the target."}
    )


@dataclass
class Arguments:
    """All arguments of a run."""

    model: ModelArguments
    data: DataArguments
    run: RunArguments
    pruning: PruningConfig
    training: PruningTrainingArguments


_TYPES = [RunArguments, ModelArguments, DataArguments, PruningConfig, PruningTrainingArguments]


def parse_arguments(argv: Sequence[str], description: str) -> Arguments:
    """Arguments from the command line, or from one YAML or JSON file named first and overridden by the rest.

    Exits with code 2 and one line if something is wrong.
    """
    parser = _Parser(
        _TYPES,
        usage="%(prog)s [file] [--argument value ...]",
        description=description,
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("file", nargs="?", help="YAML or JSON file with any of the arguments below")
    try:
        given, unknown = parser.parse_known_args(argv)
        if unknown:
            options = [option for action in parser._actions for option in action.option_strings]
            raise PruningError(f"argument {unknown[0]} is unknown: {_near(unknown[0], options)}")
        in_file = {} if given.file is None else _read_file(given.file)
        parser.set_defaults(**in_file)
        parser.set_defaults(**_preset(parser.parse_args(argv), in_file))
        run, model, data, pruning, training, _ = parser.parse_args_into_dataclasses(
            list(argv), look_for_args_file=False
        )
        _require(model, data)
    except ValueError as error:
        fail(error)
    return Arguments(model, data, run, pruning, training)


def fail(error: object) -> NoReturn:
    """End the script with one line and exit code 2."""
    sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
    sys.exit(USAGE_ERROR)


class _Parser(HfArgumentParser):
    def error(self, message: str) -> NoReturn:
        fail(f"{message} (--help explains every argument)")


class _HelpFormatter(ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter):
    pass


def _read_file(name: str) -> dict[str, Any]:
    try:
        text = Path(name).read_text()
        values = json.loads(text) if name.endswith(".json") else yaml.safe_load(text)
    except OSError as error:
        raise PruningError(f"file {name!r} cannot be read ({error.strerror}): give a YAML or JSON file") from error
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        raise PruningError(f"file {name!r} is neither YAML nor JSON: {error}") from error
    if not isinstance(values, dict):
        raise PruningError(f"file {name!r} holds no arguments: write one 'name: value' per line")
    known = {f.name for kind in _TYPES for f in fields(kind)}
    for key in values:
        if key not in known:
            raise PruningError(f"argument {key!r} in {name} is unknown: {_near(str(key), known)}")
    return values


def _preset(given: Namespace, in_file: dict[str, Any]) -> dict[str, Any]:
    """The preset's values, but for what the file sets and for settings that the chosen method does not have."""
    name = given.preset
    if name is None and given.model_name_or_path is None and given.dataset_name is None:
        name = "digits"
    if name is None:
        return {}
    if name not in PRESETS:
        raise PruningError(f"preset {name!r} is unknown: {_near(name, PRESETS)}")
    return {key: value for key, value in PRESETS[name].items() if applies(given.method, key) and key not in in_file}


def _require(model: ModelArguments, data: DataArguments) -> None:
    for name, value in (("model_name_or_path", model.model_name_or_path), ("dataset_name", data.dataset_name)):
        if value is None:
            raise PruningError(
                f"{name} is missing: give both a model and a dataset, or a preset ({', '.join(PRESETS)})"
            )


def _near(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]}?" if near else "--help lists all of them"
