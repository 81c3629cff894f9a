"""The command line of the scripts: dataclasses for HfArgumentParser, presets, files and errors."""

import difflib
import json
import math
import sys
from argparse import ArgumentDefaultsHelpFormatter, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NoReturn

import torch
import yaml
from transformers import HfArgumentParser, TrainingArguments

from hf_cyclical.config import PruningConfig
from hf_cyclical.core import PruningError, pattern_of
from hf_cyclical.data import DataArguments
from hf_cyclical.hub import refuse_settings
from hf_cyclical.methods import METHODS, applies
from hf_cyclical.paper import DEFAULT_PRESET, PRESETS
from hf_cyclical.reports import align
from hf_cyclical.training import newest_checkpoint

from .command_line import Parser, fail

_METRICS = ("loss", "accuracy", "top5_accuracy")


def _field(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass
class ModelArguments:
    """Which model."""

    _argument_group_name = "model"

    model_name_or_path: str | None = _field(
        None,
        "A folder, a Hub id (microsoft/resnet-50, timm/resnet18.a1_in1k) or a timm name (resnet18, cifar_resnet20).",
    )
    from_scratch: bool = _field(
        False, "Start from random weights; with dense_epochs, the training from scratch of the paper's appendix."
    )


@dataclass
class RunArguments:
    """What to do."""

    _argument_group_name = "run"

    preset: str | None = _field(
        None,
        "The paper's settings by name, overridden by any other argument; list prints them. "
        f"{DEFAULT_PRESET} if neither a model nor a dataset is given.",
    )
    plan: bool = _field(False, "Print the plan of the run and stop.")
    resume: str | None = _field(
        None,
        "auto goes on from the newest whole checkpoint in output_dir, or starts anew if there is none; "
        "or the folder of a checkpoint.",
    )
    pruning_epochs: float | None = _field(
        None, "Epochs of pruning, all cycles together: sets num_train_epochs to these and the dense ones."
    )
    channels_last: Literal["auto", True, False] = _field(
        "auto",
        "Give the model its images with the channels innermost, which makes convolutions faster, most of all together "
        "with bf16; auto: if the model has several 2-D convolutions. Weights and masks stay as they are.",
    )
    hub_public: bool = _field(False, "With push_to_hub: make the repository public; it is private unless told.")
    packed: bool = _field(False, "With push_to_hub: push packed weights too, on the branch packed.")


@dataclass
class PruningTrainingArguments(TrainingArguments):
    """TrainingArguments with the paper's defaults where they differ from the Trainer's."""

    _argument_group_name = "training (transformers.TrainingArguments, with the paper's defaults)"

    output_dir: str = _field("pruned", "Folder for the pruned model, its report and checkpoints.")
    optim: str = _field("sgd", "Optimizer; SGD with momentum as in the paper's CIFAR experiments.")
    optim_args: str | None = _field("momentum=0.9", "Optimizer arguments.")
    learning_rate: float = _field(1e-2, "Learning rate at the start of each cycle (paper: 1e-2 for CIFAR).")
    max_grad_norm: float = _field(0.0, "Gradient clipping; 0 for none, as the paper has none.")
    per_device_train_batch_size: int = _field(256, "Batch size on each device (paper: 256 for CIFAR).")
    per_device_eval_batch_size: int = _field(256, "Batch size of evaluations.")
    num_train_epochs: float = _field(100.0, "Epochs in all, those of a dense start included (paper: 100 for CIFAR).")
    logging_steps: float = _field(0.1, "Log every so many updates, or such a part of the run; cycle ends anyway.")
    save_steps: float = _field(0.1, "Checkpoint every so many updates, or such a part of the run; cycle ends anyway.")
    save_total_limit: int | None = _field(2, "Checkpoints to keep.")
    dataloader_pin_memory: bool = _field(torch.accelerator.is_available(), "Where there is a device to copy to.")
    use_cpu: bool = _field(not torch.accelerator.is_available(), "Where there is no other device; bf16 asks for it.")
    remove_unused_columns: bool = _field(False, "Leave it off: our data gives what the model takes.")
    hub_strategy: str = _field("end", "When to push: at the end, as models on the way are not at the target.")


@dataclass
class Arguments:
    """All arguments of a run; `repo_id` says where to push what it leaves."""

    model: ModelArguments
    data: DataArguments
    run: RunArguments
    pruning: PruningConfig
    training: PruningTrainingArguments
    repo_id: str | None


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
        named = _named(parser, argv)
        if "file" in named:
            argv = [*_read_file(named["file"]), *argv]  # the command line comes last and so overrides the file
            named = _named(parser, argv)
        if named.get("preset") == "list":
            _print_presets()
        parser.set_defaults(**_preset(named))
        run, model, data, pruning, training, _ = parser.parse_args_into_dataclasses(
            list(argv), look_for_args_file=False
        )
        _require(model, data, training)
        _check_training(training)
        _set_epochs(run, pruning, training, named)
        _set_resume(run, training)
        repo_id = _take_push(run, pruning, training)
    except Exception as error:  # TrainingArguments checks itself, and the packages it needs, with errors of any kind
        fail(error)
    return Arguments(model, data, run, pruning, training, repo_id)


class _Parser(HfArgumentParser):
    error = Parser.error


class _HelpFormatter(ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter):
    pass


class _Unset:
    """Stands in for every default, to see what was named."""


def _named(parser: HfArgumentParser, argv: Sequence[str]) -> dict[str, Any]:
    """The arguments that the command line names."""
    blank = Namespace(**{action.dest: _Unset for action in parser._actions if action.dest != "help"})
    given, unknown = parser.parse_known_args(argv, blank)
    if unknown:
        options = [option for action in parser._actions for option in action.option_strings]
        word = unknown[0].partition("=")[0]  # its value may be a token
        raise PruningError(f"argument {word} is unknown: {_near(word, options)}")
    return {name: value for name, value in vars(given).items() if value is not _Unset and value is not None}


def _read_file(name: str) -> list[str]:
    """The arguments of a file as a command line has them, so that both are checked alike."""
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
    words: list[str] = []
    for key, value in values.items():
        if key not in known:
            raise PruningError(f"argument {key!r} in {name} is unknown: {_near(str(key), known)}")
        if value is None:
            raise PruningError(f"argument {key!r} in {name} has no value: give one or leave it out")
        items = value if isinstance(value, list) else [value]
        words += [f"--{key}", *(json.dumps(item) if isinstance(item, dict) else str(item) for item in items)]
    return words


def _preset(named: dict[str, Any]) -> dict[str, Any]:
    """The preset's values, but for what was named and for settings that the chosen method does not have."""
    name = named.get("preset")
    if name is None and "model_name_or_path" not in named and "dataset_name" not in named:
        name = DEFAULT_PRESET
    if name is None:
        return {}
    if name not in PRESETS:
        raise PruningError(f"preset {name!r} is unknown: {_near(name, PRESETS, '--preset list prints them')}")
    left_out = set(named)
    if "model_name_or_path" in named and not named.get("from_scratch"):
        left_out.add("dense_epochs")  # meant for the preset's own model, which has no trained weights
    if named.get("lr_shape", "drop") != "drop":
        left_out |= {"lr_drop_at", "lr_drop_factor"}
    if {"lr_drop_at", "lr_drop_factor"} & set(named):
        left_out.add("lr_shape")
    if named.get("optim", PRESETS[name].settings["optim"]) != PRESETS[name].settings["optim"]:
        left_out.add("optim_args")  # those of another optimizer
    method = named.get("method", PruningConfig.method)
    if {"dense_updates", "max_steps"} & set(named) or METHODS[method].keeps_zeros:
        left_out.add("dense_epochs")
    if {"num_train_epochs", "max_steps"} & set(named):
        left_out.add("pruning_epochs")
    if pattern_of(named.get("pattern")).sparsity is not None:
        left_out.add("target_sparsity")  # the pattern fixes it
    return {key: value for key, value in PRESETS[name].settings.items() if key not in left_out and applies(method, key)}


def _require(model: ModelArguments, data: DataArguments, training: PruningTrainingArguments) -> None:
    for name, value in (("model_name_or_path", model.model_name_or_path), ("dataset_name", data.dataset_name)):
        if value is None:
            raise PruningError(f"{name} is missing: give both a model and a dataset, or a preset (--preset list)")
    if data.streaming and training.max_steps <= 0:
        raise PruningError("streaming needs max_steps, as a stream has no known length: give the number of updates")


def _check_training(training: PruningTrainingArguments) -> None:
    """What TrainingArguments lets pass and the Trainer stumbles over later."""
    epochs = "num_train_epochs" if training.max_steps <= 0 else "max_steps"
    at_least = {
        "per_device_train_batch_size": 1,
        "per_device_eval_batch_size": 1,
        "gradient_accumulation_steps": 1,
        epochs: 1e-9,
        "learning_rate": 1e-30,
    }
    for name, least in at_least.items():
        value = getattr(training, name)
        if not least <= value < math.inf:
            rule = "at least 1" if least == 1 else "above 0"
            raise PruningError(f"{name} {value!r} must be {rule}: give another value")
    for part in (training.optim_args or "").replace(" ", "").split(","):
        if part and not all(part.partition("=")):
            raise PruningError(f"optim_args {training.optim_args!r} must be pairs: write momentum=0.9,nesterov=True")
    best = (training.metric_for_best_model or "loss").removeprefix("eval_")
    if best not in _METRICS:
        raise PruningError(f"metric_for_best_model {best!r} is not measured: {_near(best, _METRICS)}")
    folder = Path(training.output_dir)
    if folder.exists() and not folder.is_dir():
        raise PruningError(f"output_dir {training.output_dir!r} is a file: name a folder")


def _set_epochs(
    run: RunArguments, pruning: PruningConfig, training: PruningTrainingArguments, named: dict[str, Any]
) -> None:
    if run.pruning_epochs is None:
        return
    for name in ("num_train_epochs", "max_steps"):
        if name in named:
            raise PruningError(
                f"pruning_epochs {run.pruning_epochs:g} contradicts {name} {named[name]}: give one of them"
            )
    if run.pruning_epochs <= 0:
        raise PruningError(f"pruning_epochs {run.pruning_epochs:g} must be above 0: the paper has 100 for CIFAR")
    training.num_train_epochs = run.pruning_epochs + pruning.dense_epochs


def _set_resume(run: RunArguments, training: PruningTrainingArguments) -> None:
    """One place for where a run goes on: `training.resume_from_checkpoint`."""
    if run.resume is None:
        return
    if training.resume_from_checkpoint is not None:
        raise PruningError(
            f"resume {run.resume!r} contradicts resume_from_checkpoint {training.resume_from_checkpoint!r}: "
            "give one of them"
        )
    newest: str | Path | None = run.resume
    if run.resume == "auto":
        newest = newest_checkpoint(training.output_dir)
    training.resume_from_checkpoint = None if newest is None else str(newest)


def _take_push(run: RunArguments, pruning: PruningConfig, training: PruningTrainingArguments) -> str | None:
    """Where to push to; taken from the Trainer, which would push whenever it saves and not the finished folder."""
    refuse_settings(training)
    if not training.push_to_hub:
        unused = {"hub_public": run.hub_public, "packed": run.packed, "hub_model_id": training.hub_model_id}
        for name in (name for name, value in unused.items() if value):
            raise PruningError(f"{name} {unused[name]} has no effect without push_to_hub: add --push_to_hub")
        return None
    if training.hub_model_id is None:
        raise PruningError("push_to_hub needs a repository: add --hub_model_id user/name")
    if not pruning.prunes:
        raise PruningError("push_to_hub with target_sparsity 0: only pruned models are pushed, leave it out")
    if run.hub_public and training.hub_private_repo:
        raise PruningError("hub_public contradicts hub_private_repo True: give one of them")
    run.hub_public |= training.hub_private_repo is False
    training.push_to_hub = False
    return training.hub_model_id


def _print_presets() -> NoReturn:
    columns = {
        "model": "model_name_or_path",
        "dataset": "dataset_name",
        "sparsity": "target_sparsity",
        "cycles": "cycles",
        "epochs": "pruning_epochs",
        "delta_t": "delta_t",
        "optimizer": "optim",
        "rate": "learning_rate",
        "drop at": "lr_drop_at",
        "batch": "per_device_train_batch_size",
    }
    rows = [[name, *(str(p.settings.get(key, "")) for key in columns.values())] for name, p in PRESETS.items()]
    sys.stdout.write(align([["preset", *columns], *rows], texts=3) + "\n")
    sys.exit(0)


def _near(word: str, known: Iterable[str], otherwise: str = "--help lists all of them") -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]}?" if near else otherwise
