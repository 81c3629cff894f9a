"""Run a table of the paper: methods x sparsities x seeds, from the same dense weights and with the same epochs.

python scripts/compare.py                                  # every method on handwritten digits, no download
python scripts/compare.py --preset list                    # the experiments
python scripts/compare.py --preset cifar10-resnet20 --scale 0.1 --model_name_or_path FOLDER --seeds 1 2 3
python scripts/compare.py --preset digits-schedules --sparsities 0.95
accelerate launch --multi_gpu --num_processes 8 scripts/compare.py --preset imagenet-resnet50
python scripts/compare.py --show FOLDER/results.json       # the table of runs that are done

The same command goes on where it was interrupted; with more seeds, methods or sparsities it runs what is missing.
Started several times at once, on several GPUs or machines with one disk, the commands share the runs among them.
Every other argument is one of scripts/prune.py, for all runs to which it applies.
"""

import argparse
import math
import shlex
import shutil
import sys
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import transformers
from accelerate import PartialState
from tqdm import tqdm
from transformers import PrinterCallback, TrainerCallback

from hf_cyclical import PruningError
from hf_cyclical.arguments import parse_arguments
from hf_cyclical.command_line import INTERRUPTED, Parser, fail, without_secrets
from hf_cyclical.comparison import (
    RESULTS_NAME,
    Cell,
    Setting,
    check_folder,
    claimed,
    load_results,
    make_folder,
    read_reports,
    report_path,
    save_results,
)
from hf_cyclical.config import PruningConfig, applies
from hf_cyclical.data import ImageData, load_image_data
from hf_cyclical.distributed import any_process
from hf_cyclical.experiments import EXPERIMENTS, Experiment, epochs_of
from hf_cyclical.files import write_text
from hf_cyclical.plots import plot_comparison
from hf_cyclical.presets import PRESETS
from hf_cyclical.report import REPORT_NAME, align
from hf_cyclical.result_table import table
from hf_cyclical.runs import Run

DENSE_SEED = 0  # of the dense model that all runs of an experiment start from
OWN = (
    *("method", "target_sparsity", "seed", "pruning_epochs", "num_train_epochs", "max_steps", "dense_epochs"),
    *("dense_updates", "from_scratch", "resume", "resume_from_checkpoint", "push_to_hub", "plan"),
)
QUIET = ["--disable_tqdm", "True", "--report_to", "none", "--logging_strategy", "no"]


class Progress(TrainerCallback):
    """One bar over the updates of all cells: its estimate of the time left is that of the whole experiment."""

    def __init__(self, bar: tqdm, text: str) -> None:
        self.bar, self.text = bar, text

    def on_train_begin(self, args: Any, state: transformers.TrainerState, *rest: Any, **kwargs: Any) -> None:
        self.bar.total = self.bar.total or state.max_steps
        self.bar.set_description_str(self.text)
        self.bar.update(state.global_step)

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.bar.update()


class Comparison:
    """An experiment in its folder."""

    def __init__(self, options: argparse.Namespace, more: list[str]) -> None:
        self.experiment: Experiment = EXPERIMENTS[options.preset]
        self.options = options
        self.more = by_argument(more, self.experiment)
        self.folder = Path(options.output_dir)
        preset = PRESETS[self.experiment.preset].settings
        self.model = options.model_name_or_path or preset["model_name_or_path"]
        self.trains_dense = options.model_name_or_path is None and "dense_epochs" in preset
        self.setting = Setting(
            experiment=options.preset,
            scale=options.scale,
            model=self.model,
            dataset=self.more.get("dataset_name", [preset["dataset_name"]])[0],
            arguments=without_secrets(more),
            processes=PartialState().num_processes,
        )
        self.variants = {variant.label: variant for variant in self.experiment.variants}
        self.cells = [Cell(v, s, seed) for seed in options.seeds for s in options.sparsities for v in options.methods]

    def arguments(self, cell: Cell, model: str) -> list[str]:
        """The command line of scripts/prune.py for a cell."""
        variant = self.variants[cell.label]
        method = variant.settings["method"]
        settings: dict[str, list[Any]] = {name: [value] for name, value in variant.settings.items()}
        settings |= {"pruning_epochs": [f"{self.options.scale * epochs_of(self.experiment, variant):g}"]}
        if "dense_epochs" in settings:
            settings["dense_epochs"] = [f"{self.options.scale * variant.settings['dense_epochs']:g}"]
        settings |= {name: values for name, values in self.more.items() if applies(method, name)}
        settings |= {"target_sparsity": [cell.sparsity], "seed": [cell.seed], "model_name_or_path": [model]}
        words = ["--preset", self.experiment.preset]
        for name, values in settings.items():
            words += [f"--{name}", *map(str, values)]
        return words

    def check(self, cells: list[Cell], data: ImageData) -> dict[Cell, int]:
        """Updates of every cell; what is wrong with one is said before the first is run."""
        updates: dict[str, int] = {}
        with TemporaryDirectory() as folder:
            for cell in cells:
                words = [*self.arguments(cell, self.model), *QUIET, "--output_dir", folder]
                args = parse_arguments(words, description=__doc__)
                if cell.label not in updates:
                    updates[cell.label] = Run.build(args, data).trainer.plan().T
        return {cell: updates[cell.label] for cell in cells}

    def dense_model(self, data: ImageData) -> str | None:
        """The folder of the dense model, trained now if it is not there; None if that was interrupted."""
        folder = self.folder / f"{Path(self.model).name}-dense"
        with claimed(self.folder, folder.name, wait=True):
            if (folder / "config.json").exists() or self.train_dense(folder, data):
                return str(folder)
        return None

    def train_dense(self, folder: Path, data: ImageData) -> bool:
        """Train the dense model; False if that was interrupted."""
        epochs = str(PRESETS[self.experiment.preset].settings["dense_epochs"])
        words = ["--preset", self.experiment.preset, "--target_sparsity", "0", "--dense_epochs", "0"]
        words += ["--num_train_epochs", epochs, "--seed", str(DENSE_SEED)]
        for name, value in self.experiment.dense.items():
            words += [f"--{name}", str(value)]
        of_pruning = {field.name for field in fields(PruningConfig)} | {"pruning_epochs"}
        for name, values in self.more.items():
            words += [f"--{name}", *values] if name not in of_pruning else []
        work = folder.with_name(f"{folder.name}-unfinished")
        with progress_bar() as bar:
            run = self.train(words, work, data, Progress(bar, "dense model"))
        if run is None:
            return False
        run.save(command="")
        self.on_main(lambda: _drop_checkpoints(work).rename(folder))
        return True

    def run(self, cell: Cell, model: str, data: ImageData, bar: tqdm) -> bool:
        """Run a cell, or go on with it; False if there was a signal to stop."""
        words, work = self.arguments(cell, model), self.folder / "cells" / cell.name
        text = f"{self.cells.index(cell) + 1}/{len(self.cells)} {cell.label} {cell.sparsity:g} seed {cell.seed}"
        run = self.train(words, work, data, Progress(bar, text))
        if run is None:
            return False
        run.save(shlex.join(["python", "scripts/prune.py", *words]))
        self.on_main(lambda: self.store(cell, work))
        return not any_process(run.stop.asked, run.args.training.device)  # asked for in its last moments

    def train(self, words: list[str], work: Path, data: ImageData, progress: Progress) -> Run | None:
        """Train, or go on; None if it was interrupted."""
        words = [*words, *QUIET, "--output_dir", str(work), "--resume", "auto"]
        args = parse_arguments(words, description=__doc__)
        run = Run.build(args, data, [progress])
        run.trainer.remove_callback(PrinterCallback)
        run.trainer.train(resume_from_checkpoint=args.training.resume_from_checkpoint)
        return None if run.stop.stopped else run

    def store(self, cell: Cell, work: Path) -> None:
        """Put the report where finished ones are; the model goes, unless it is wanted."""
        path = report_path(self.folder, cell)
        path.parent.mkdir(exist_ok=True)
        write_text(path, (work / REPORT_NAME).read_text())
        if self.options.keep_models:
            _drop_checkpoints(work)
        else:
            shutil.rmtree(work)

    def show(self) -> str:
        """The table of all that is finished in the folder; it is also left there, with a plot and the results."""
        path, cells = self.folder / RESULTS_NAME, list(self.cells)
        if path.exists():  # of earlier commands, with other seeds
            cells += [cell for cell in load_results(path)[1] if cell not in cells]
        results = read_reports(self.folder, cells)
        if not results:
            return "No run is finished."
        text = table(self.setting, results)
        save_results(path, self.setting, results)
        write_text(self.folder / "table.md", text + "\n")
        if len({cell.sparsity for cell in results}) > 1:
            for ending in ("png", "svg"):
                plot_comparison(results, self.folder / f"accuracy.{ending}")
        return table(self.setting, results, by_cycle=True) if self.options.by_cycle else text

    @staticmethod
    def on_main(work: Any) -> None:
        if PartialState().is_main_process:
            work()
        PartialState().wait_for_everyone()


def main(argv: list[str]) -> int:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    options, more = parse(argv)
    try:
        if options.show:
            print(table(*load_results(options.show), by_cycle=options.by_cycle))
            return 0
        return compare(Comparison(options, more))
    except (PruningError, OSError) as error:  # of a full disk, too: what is finished stays
        fail(error)
    except KeyboardInterrupt:  # between two runs
        return stopped()


def compare(comparison: Comparison) -> int:
    check_folder(comparison.folder, comparison.setting)
    finished = read_reports(comparison.folder, comparison.cells)
    pending = [cell for cell in comparison.cells if cell not in finished]
    if pending:
        first = parse_arguments(comparison.arguments(pending[0], comparison.model), description=__doc__)
        data = load_image_data(first.data, seed=DENSE_SEED)
        updates = comparison.check(pending, data)
        with claimed(comparison.folder, "folder", wait=True):
            check_folder(comparison.folder, comparison.setting)  # which another command may have made meanwhile
            Comparison.on_main(lambda: make_folder(comparison.folder, comparison.setting))
        model = comparison.dense_model(data) if comparison.trains_dense else comparison.model
        if model is None:
            return stopped()
        with progress_bar(sum(updates.values())) as bar:
            for cell in pending:
                with claimed(comparison.folder, cell.name) as free:
                    done = report_path(comparison.folder, cell).exists()
                    if any_process(done or not free, PartialState().device):  # another command was at it, or is
                        bar.total -= updates[cell]
                        bar.refresh()
                    elif not comparison.run(cell, model, data, bar):
                        return stopped()
    with claimed(comparison.folder, "table", wait=True):
        Comparison.on_main(lambda: report(comparison, pending))
    return 0


def report(comparison: Comparison, pending: list[Cell]) -> None:
    print(f"{comparison.show()}\n\nThe reports and what is made of them are in {comparison.folder}")
    if missing := len(pending) - len(read_reports(comparison.folder, pending)):
        print(f"Runs that another command is at: {missing}. Once they are done, the same command shows them too.")


def progress_bar(total: int | None = None) -> tqdm:
    return tqdm(total=total, unit=" updates", smoothing=0.05, disable=not PartialState().is_main_process)


def stopped() -> int:
    if PartialState().is_main_process:
        sys.stderr.write("\nStopped. What is finished is kept; the same command goes on.\n")
    return INTERRUPTED


def parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--preset", default="digits", help="the experiment (digits); list prints them all")
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the paper's epochs of pruning (1)")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="some of the experiment's columns or rows (all)")
    parser.add_argument("--sparsities", nargs="+", type=float, metavar="S", help="targets (those of the experiment)")
    parser.add_argument("--seeds", nargs="+", type=int, metavar="N", help="seeds (those of the experiment)")
    parser.add_argument(
        "--model_name_or_path", metavar="NAME", help="trained model to start from (the preset's, trained if need be)"
    )
    parser.add_argument("--output_dir", metavar="FOLDER", help="where reports go (compare-PRESET)")
    parser.add_argument("--keep_models", action="store_true", help="keep the pruned models, too, in FOLDER/cells")
    parser.add_argument(
        "--by_cycle", action="store_true", help="print accuracy, mask distance and regrown weights of each cycle"
    )
    parser.add_argument("--show", type=Path, metavar="FILE", help=f"print the table of a {RESULTS_NAME} and stop")
    options, more = parser.parse_known_args([_with_underscores(word) for word in argv])
    if options.preset == "list":
        print(describe_experiments())
        sys.exit(0)
    if options.preset not in EXPERIMENTS:
        fail(f"preset {options.preset!r} is unknown: choose one of {', '.join(EXPERIMENTS)}")
    experiment = EXPERIMENTS[options.preset]
    known = [variant.label for variant in experiment.variants]
    options.methods = options.methods or known
    options.sparsities = options.sparsities or list(experiment.sparsities)
    options.seeds = options.seeds or list(experiment.seeds)
    options.output_dir = options.output_dir or f"compare-{options.preset}"
    if unknown := [name for name in options.methods if name not in known]:
        fail(f"method {unknown[0]!r} is not part of {options.preset}: choose from {', '.join(known)}")
    for s in options.sparsities:
        if not 0 < s < 1:
            fail(f"sparsity {s:g} must be above 0 and below 1: give fractions, such as 0.9 for 90 %")
    if not 0 < options.scale < math.inf:
        fail(f"scale {options.scale:g} must be above 0: 1 is the paper's number of epochs")
    for seed in options.seeds:
        if not 0 <= seed < 2**32:
            fail(f"seed {seed} must be in 0 to {2**32 - 1}: give another one")
    for name in ("methods", "sparsities", "seeds"):
        setattr(options, name, list(dict.fromkeys(getattr(options, name))))  # each once
    return options, more


def describe_experiments() -> str:
    rows = [
        [name, e.about, ", ".join(f"{s:g}" for s in e.sparsities), str(len(e.variants))]
        for name, e in EXPERIMENTS.items()
    ]
    return align([["preset", "what", "sparsities", "variants"], *rows])


def by_argument(words: list[str], experiment: Experiment) -> dict[str, list[str]]:
    """Words of a command line by the argument they belong to, but for those that would change what is compared."""
    found: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            found[name] = [value] if equals else []
        elif found:
            found[next(reversed(found))].append(word)
        else:
            fail(f"argument {word!r} stands alone: --help explains every argument")
    compared = {name for variant in experiment.variants for name in variant.settings}
    for name in found:
        if name in OWN or name in compared:
            fail(
                f"--{name} is set for each run by this script: leave it out (--methods, --sparsities, --seeds, --scale)"
            )
    if "streaming" in found:
        fail("--streaming needs max_steps, and this script counts in epochs: use scripts/prune.py for streams")
    return found


def _with_underscores(word: str) -> str:
    """The name of an argument as it is here; both forms are in use."""
    name, equals, value = word.partition("=")
    return f"--{name[2:].replace('-', '_')}{equals}{value}" if name.startswith("--") else word


def _drop_checkpoints(folder: Path) -> Path:
    for checkpoint in folder.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    return folder


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
