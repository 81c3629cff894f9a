"""Run a table of the paper: methods x sparsities x seeds, from the same dense weights and with the same epochs.

python scripts/compare.py                                  # every method on handwritten digits, no download
python scripts/compare.py --preset list                    # the experiments
python scripts/compare.py --preset cifar10-resnet20 --scale 0.1 --model_name_or_path FOLDER --seeds 1 2 3
python scripts/compare.py --preset digits-schedules --sparsities 0.95
python scripts/compare.py --updates 10000 --augment shift --weight_decay 1e-4 --delta_t 50 --sparsities 0.98
accelerate launch --multi_gpu --num_processes 8 scripts/compare.py --preset imagenet-resnet50
python scripts/compare.py --show FOLDER/results.json       # the table of runs that are done

The same command goes on where it was interrupted; with more seeds, methods or sparsities it runs what is missing.
Started several times at once, on several GPUs or machines with one disk, the commands share the runs among them.
Every other argument is one of scripts/prune.py, for all runs to which it applies.
"""

import argparse
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
from hf_cyclical.cli import INTERRUPTED, Run, by_argument, fail, parse, parse_arguments
from hf_cyclical.config import PruningConfig
from hf_cyclical.core import any_process, leave_group
from hf_cyclical.data import ImageData, load_image_data
from hf_cyclical.formats import without_secrets, write_text
from hf_cyclical.methods import applies
from hf_cyclical.paper import (
    EXPERIMENTS,
    PRESETS,
    RESULTS_NAME,
    Cell,
    Experiment,
    Setting,
    check_folder,
    claimed,
    epochs_of,
    load_results,
    make_folder,
    plot_comparison,
    read_reports,
    report_path,
    save_results,
    table,
)
from hf_cyclical.reports import REPORT_NAME

DENSE_SEED = 0  # of the dense model that all runs of an experiment start from
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
            updates=options.updates,
        )
        self.variants = {variant.label: variant for variant in self.experiment.variants}
        self.cells = [Cell(v, s, seed) for seed in options.seeds for s in options.sparsities for v in options.methods]

    def arguments(self, cell: Cell, model: str) -> list[str]:
        """The command line of scripts/prune.py for a cell."""
        variant = self.variants[cell.label]
        method = variant.settings["method"]
        settings: dict[str, list[Any]] = {name: [value] for name, value in variant.settings.items()}
        epochs = f"{self.options.scale * epochs_of(self.experiment, variant):g}"
        settings |= {"max_steps": [self.options.updates]} if self.options.updates else {"pruning_epochs": [epochs]}
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
    options, more = parse(argv, description=__doc__)
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


def _drop_checkpoints(folder: Path) -> Path:
    for checkpoint in folder.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    return folder


if __name__ == "__main__":
    code = main(sys.argv[1:])
    leave_group()
    sys.exit(code)
