"""The command line of `hf-cyclical compare`."""

import argparse
import math
import sys
from pathlib import Path

from hf_cyclical.paper import EXPERIMENTS, PRESETS, RESULTS_NAME, Experiment
from hf_cyclical.reports import align

from .command_line import Parser, fail

# What is set for each run.
OWN = (
    *("method", "target_sparsity", "seed", "pruning_epochs", "num_train_epochs", "max_steps", "dense_updates"),
    *("from_scratch", "budget", "resume", "resume_from_checkpoint", "push_to_hub", "plan"),
)


def parse(argv: list[str], description: str | None) -> tuple[argparse.Namespace, list[str]]:
    """The arguments of the command itself, with the experiment's where there are none, and all other words.

    `named` is the experiment if there was one.
    """
    parser = Parser("compare", description)
    parser.add_argument("--experiment", metavar="NAME", help="what to run (digits); list prints all")
    parser.add_argument("--scale", type=float, help="fraction of the paper's epochs of pruning (1)")
    parser.add_argument("--updates", type=int, metavar="N", help="updates of pruning, in place of the paper's epochs")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="some of the experiment's columns or rows (all)")
    parser.add_argument("--sparsities", nargs="+", type=float, metavar="S", help="targets (those of the experiment)")
    parser.add_argument("--seeds", nargs="+", type=int, metavar="N", help="seeds (those of the experiment)")
    parser.add_argument(
        "--model_name_or_path", metavar="NAME", help="trained model to start from (the preset's, trained if need be)"
    )
    parser.add_argument("--output_dir", metavar="FOLDER", help="where reports go (compare-EXPERIMENT)")
    parser.add_argument("--keep_models", action="store_true", help="keep the pruned models, too, in FOLDER/cells")
    parser.add_argument(
        "--by_cycle", action="store_true", help="print accuracy, mask distance and regrown weights of each cycle"
    )
    parser.add_argument(
        "--add",
        type=Path,
        nargs="+",
        metavar="FILE",
        help=f"take the finished runs of other {RESULTS_NAME} into output_dir, print the table and stop; with "
        "--experiment also those of other experiments that are set alike",
    )
    parser.add_argument("--show", type=Path, metavar="FILE", help=f"print the table of a {RESULTS_NAME} and stop")
    options, more = parser.parse_known_args([_with_underscores(word) for word in argv])
    options.named, options.experiment = options.experiment, options.experiment or "digits"
    if options.experiment == "list":
        sys.stdout.write(f"{describe_experiments()}\n")
        sys.exit(0)
    if options.experiment not in EXPERIMENTS:
        fail(f"experiment {options.experiment!r} is unknown: choose one of {', '.join(EXPERIMENTS)}")
    experiment = EXPERIMENTS[options.experiment]
    _check_holdout(options, experiment, more)
    options.methods = _rows(options.methods, options.experiment)
    options.sparsities = options.sparsities or list(experiment.sparsities)
    options.seeds = options.seeds or list(experiment.seeds)
    options.output_dir = options.output_dir or f"compare-{options.experiment}"
    for s in options.sparsities:
        if not 0 < s < 1:
            fail(f"sparsity {s:g} must be above 0 and below 1: give fractions, such as 0.9 for 90 %")
    _check_budget(options, experiment)
    for seed in options.seeds:
        if not 0 <= seed < 2**32:
            fail(f"seed {seed} must be in 0 to {2**32 - 1}: give another one")
    for name in ("methods", "sparsities", "seeds"):
        setattr(options, name, list(dict.fromkeys(getattr(options, name))))  # each once
    return options, more


def _rows(names: list[str] | None, experiment: str) -> list[str]:
    """The labels of the rows that are asked for: each by its label, or all of a method by its name."""
    methods: dict[str, list[str]] = {}
    for variant in EXPERIMENTS[experiment].variants:
        methods.setdefault(variant.settings["method"], []).append(variant.label)
    known = [variant.label for variant in EXPERIMENTS[experiment].variants]
    rows = {label: [label] for label in known}
    for name in names or []:
        if name not in methods | rows:
            choices = methods if EXPERIMENTS[experiment].chooses else known
            fail(f"method {name!r} is not part of {experiment}: choose from {', '.join(choices)}")
    return [label for name in names or known for label in (methods | rows)[name]]


def _check_holdout(options: argparse.Namespace, experiment: Experiment, words: list[str]) -> None:
    """Refuse a dense model that may know the images that are held out."""
    if "holdout" not in experiment.dense and not any(word.partition("=")[0] == "--holdout" for word in words):
        return
    preset = PRESETS[experiment.preset].settings
    trains = "dense_epochs" in preset
    if options.model_name_or_path or not trains:
        model = options.model_name_or_path or preset["model_name_or_path"]
        fail(
            f"model_name_or_path {model!r} may have been trained on the images that are held out to choose by: "
            + ("leave it out, a dense model is then trained without them" if trains else "leave holdout out")
        )


def _check_budget(options: argparse.Namespace, experiment: Experiment) -> None:
    if options.updates is not None:
        if options.scale is not None:
            fail(f"updates {options.updates} contradicts scale {options.scale:g}: give one of them")
        if options.updates < 1:
            fail(f"updates {options.updates} must be at least 1: give the optimizer updates of a run")
        if any({"pruning_epochs", "dense_epochs"} & set(variant.settings) for variant in experiment.variants):
            unfit = f"updates {options.updates} does not suit {options.experiment}"
            fail(f"{unfit}, as its variants differ in length: use scale")
    options.scale = 1.0 if options.scale is None else options.scale
    if not 0 < options.scale < math.inf:
        fail(f"scale {options.scale:g} must be above 0: 1 is the paper's number of epochs")


def describe_experiments() -> str:
    """A table of all experiments."""
    rows = [
        [name, e.about, ", ".join(f"{s:g}" for s in e.sparsities), str(len(e.variants))]
        for name, e in EXPERIMENTS.items()
    ]
    return align([["experiment", "what", "sparsities", "variants"], *rows], texts=3)


def by_argument(words: list[str], experiment: Experiment) -> dict[str, list[str]]:
    """Words of a command line by the argument they belong to, except those that would change what is compared."""
    found: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            found[name] = [value] if equals else []
        elif found:
            found[next(reversed(found))].append(word)
        else:
            fail(f"argument {word!r} stands alone: --help explains every argument")
    if "preset" in found:
        name = " ".join(found["preset"]) or "NAME"
        fail(f"--preset is an argument of hf-cyclical prune: what is compared is chosen with --experiment {name}")
    compared = {name for variant in experiment.variants for name in variant.settings}
    for name in found:
        if name in OWN or name in compared:
            fail(
                f"--{name} is set for each run by compare: leave it out (--methods, --sparsities, --seeds, "
                "--scale, --updates)"
            )
    if "streaming" in found:
        fail("--streaming needs max_steps, and compare counts in epochs: use hf-cyclical prune for streams")
    return found


def _with_underscores(word: str) -> str:
    """The name of an argument as it is here; both forms are in use."""
    name, equals, value = word.partition("=")
    return f"--{name[2:].replace('-', '_')}{equals}{value}" if name.startswith("--") else word
