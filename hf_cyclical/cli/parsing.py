"""From the words of a command line, a file and a preset to the arguments of a run.

What only a run needs, such as the Trainer, is imported after the words are known to be right.
"""

import difflib
import json
import math
import sys
from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

from transformers import HfArgumentParser

from hf_cyclical.config import PruningConfig
from hf_cyclical.core import PruningError, pattern_of
from hf_cyclical.data import DataArguments
from hf_cyclical.formats import optional
from hf_cyclical.methods import METHODS, applies
from hf_cyclical.paper import DEFAULT_PRESET, PRESETS

from .arguments import TYPES, Arguments, ModelArguments, PruningTrainingArguments, RunArguments
from .command_line import Parser, fail
from .help import COMPLETE, SHORT, Formatter, add_help
from .presets import describe_presets

_METRICS = ("loss", "accuracy", "top5_accuracy")
_USE = f"use {', '.join(_METRICS)}"


def parse_arguments(argv: Sequence[str], description: str = "") -> Arguments:
    """Arguments from the command line, or from one YAML or JSON file named first and overridden by the rest.

    Exits with code 2 and one line if something is wrong.
    """
    parser = _RunParser(description)
    try:
        named = _named(parser, argv)
        if "file" in named:
            argv = without_file(argv, named["file"])  # the command line comes last and so overrides the file
            named = _named(parser, argv) | {"file": named["file"]}
        if named.get("preset") == "list":
            sys.stdout.write(f"{describe_presets()}\n")
            sys.exit(0)
        parser.set_defaults(**_preset(named))
        run, model, data, pruning, training, _ = parser.parse_args_into_dataclasses(
            list(argv), look_for_args_file=False
        )
        _require(model, data, training)
        _check_training(training)
        _set_epochs(run, pruning, training, named)
        _check_dense_updates(pruning, named)
        _check_budget(run, pruning, named)
        _check_rate(pruning, named)
        _set_resume(run, training)
        repo_id = _take_push(run, pruning, training)
    except Exception as error:  # TrainingArguments checks itself, and the packages it needs, with errors of any kind
        fail(error)
    return Arguments(model, data, run, pruning, training, repo_id, named, _preset_name(named) is not None)


def without_file(words: Sequence[str], file: str | None) -> list[str]:
    """A command line with the arguments of the file that it names in its place: the file may change."""
    if file is None:
        return list(words)
    i = list(words).index(file)
    return [*_read_file(file), *words[:i], *words[i + 1 :]]


def check_words(words: Sequence[str]) -> None:
    """Refuse what no argument of a run is, or what cannot be its value; whether values go together shows later.

    Raises:
        PruningError: If an argument is unknown.
    """
    _named(_RunParser(""), words)


class _RunParser(HfArgumentParser):
    error = Parser.error

    def __init__(self, description: str) -> None:
        super().__init__(
            TYPES,
            prog="hf-cyclical prune",
            usage="%(prog)s [FILE] [--argument value ...]",
            description=description,
            formatter_class=Formatter,
            allow_abbrev=False,
            add_help=False,
        )
        self.add_argument(
            "file", metavar="FILE", nargs="?", help="YAML or JSON file with any of the arguments, which override it"
        )
        add_help(self)


class _Unset:
    """Stands in for every default, to see what was named."""


def _named(parser: HfArgumentParser, argv: Sequence[str]) -> dict[str, Any]:
    """The arguments that the command line names."""
    blank = Namespace(**{action.dest: _Unset for action in parser._actions if action.dest not in (SHORT, COMPLETE)})
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
        values = json.loads(text) if name.endswith(".json") else _yaml().safe_load(text)
    except OSError as error:
        raise PruningError(f"file {name!r} cannot be read ({error.strerror}): give a YAML or JSON file") from error
    except (json.JSONDecodeError, _yaml().YAMLError) as error:
        raise PruningError(f"file {name!r} is neither YAML nor JSON: {error}") from error
    if not isinstance(values, dict):
        raise PruningError(f"file {name!r} holds no arguments: write one 'name: value' per line")
    known = {f.name for kind in TYPES for f in fields(kind)}
    words: list[str] = []
    for key, value in values.items():
        if key not in known:
            raise PruningError(f"argument {key!r} in {name} is unknown: {_near(str(key), known)}")
        if value is None:  # as if it were left out
            continue
        items = value if isinstance(value, list) else [value]
        words += [f"--{key}", *(json.dumps(item) if isinstance(item, dict) else str(item) for item in items)]
    return words


def _yaml() -> ModuleType:
    return optional("yaml", "pyyaml")


def _preset(named: dict[str, Any]) -> dict[str, Any]:
    """The preset's values, except what was named and settings that the chosen method does not have."""
    name = _preset_name(named)
    method = named.get("method", PruningConfig.method)
    timed = {name: "auto" for name in ("cycles", "delta_t") if "budget" in named and applies(method, name)}
    fixed = set(named) | {"delta_t"} & set(METHODS[method].defaults)
    timed = {name: value for name, value in timed.items() if name not in fixed}
    if name is None:
        return timed
    if name not in PRESETS:
        raise PruningError(f"preset {name!r} is unknown: {_near(name, PRESETS, '--preset list prints them')}")
    left_out = set(named) | set(METHODS[method].defaults)  # the preset's are the paper's, for other methods
    if "model_name_or_path" in named and not named.get("from_scratch"):
        left_out.add("dense_epochs")  # meant for the preset's own model, which has no trained weights
    if named.get("lr_shape", METHODS[method].defaults.get("lr_shape", "drop")) != "drop":
        left_out |= {"lr_drop_at", "lr_drop_factor"}
    if {"lr_drop_at", "lr_drop_factor"} & set(named):
        left_out.add("lr_shape")
    settings = dict(PRESETS[name].settings)
    if named.get("optim", settings["optim"]) != settings["optim"]:
        settings["optim_args"] = "momentum=0.9" if named["optim"] == "sgd" else None  # the preset's are another's
    if {"dense_updates", "max_steps"} & set(named) or METHODS[method].keeps_zeros:
        left_out.add("dense_epochs")
    if {"num_train_epochs", "max_steps", "budget"} & set(named):
        left_out.add("pruning_epochs")
    if pattern_of(named.get("pattern")).sparsity is not None:
        left_out.add("target_sparsity")  # the pattern fixes it
    return {key: value for key, value in settings.items() if key not in left_out and applies(method, key)} | timed


def _preset_name(named: dict[str, Any]) -> str | None:
    own = "model_name_or_path" in named or "dataset_name" in named
    return named.get("preset", None if own else DEFAULT_PRESET)


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
        raise PruningError(f"metric_for_best_model {best!r} is not measured: {_near(best, _METRICS, _USE)}")
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


def _check_dense_updates(pruning: PruningConfig, named: dict[str, Any]) -> None:
    if pruning.dense_updates and not {"max_steps", "num_train_epochs", "budget"} & set(named):
        rule = "is out of max_steps, which is not given: give it, or use dense_epochs"
        raise PruningError(f"dense_updates {pruning.dense_updates} {rule}")


def _check_budget(run: RunArguments, pruning: PruningConfig, named: dict[str, Any]) -> None:
    if run.budget is None:
        return
    from hf_cyclical.training import seconds_of

    seconds_of(run.budget)
    for name in ("num_train_epochs", "max_steps", "pruning_epochs", "streaming"):
        if name in named and named[name] is not False:
            raise PruningError(f"budget {run.budget!r} contradicts {name} {named[name]}: give one of them")
    if not pruning.prunes:
        raise PruningError(f"budget {run.budget!r} is for pruning, and target_sparsity is 0: use num_train_epochs")


def _check_rate(pruning: PruningConfig, named: dict[str, Any]) -> None:
    for name in ("lr_shape", "lr_drop_at", "lr_drop_factor"):
        if name in named and not pruning.prunes:
            raise PruningError(f"{name} {named[name]!r} has no effect where nothing is pruned: use lr_scheduler_type")


def _set_resume(run: RunArguments, training: PruningTrainingArguments) -> None:
    """One place for where a run resumes: `training.resume_from_checkpoint`."""
    if run.resume is None:
        return
    if training.resume_from_checkpoint is not None:
        raise PruningError(
            f"resume {run.resume!r} contradicts resume_from_checkpoint {training.resume_from_checkpoint!r}: "
            "give one of them"
        )
    newest: str | Path | None = run.resume
    if run.resume == "auto":
        from hf_cyclical.training import newest_checkpoint

        newest = newest_checkpoint(training.output_dir)
    training.resume_from_checkpoint = None if newest is None else str(newest)


def _take_push(run: RunArguments, pruning: PruningConfig, training: PruningTrainingArguments) -> str | None:
    """Where to push to; taken from the Trainer, which would push whenever it saves and not the finished folder."""
    from hf_cyclical.hub import refuse_settings

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


def _near(word: str, known: Iterable[str], otherwise: str = "--help-all lists all of them") -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]}?" if near else otherwise
