"""The runs of `hf-cyclical compare`, one after the other, and the bar over all of them."""

import shlex
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import transformers
from accelerate import PartialState
from tqdm import tqdm
from transformers import PrinterCallback, TrainerCallback

from hf_cyclical.core import any_process, leave_group
from hf_cyclical.data import ImageData, load_image_data
from hf_cyclical.formats import without_secrets
from hf_cyclical.models import check_image_model
from hf_cyclical.paper import (
    DENSE_SEED,
    EXPERIMENTS,
    PRESETS,
    Cell,
    Comparison,
    Setting,
    Values,
    check_folder,
    claimed,
    drop_checkpoints,
    make_folder,
    read_reports,
    report_path,
)

from .command_line import INTERRUPTED
from .parsing import parse_arguments
from .run import Run

_QUIET = ["--disable_tqdm", "True", "--report_to", "none", "--logging_strategy", "no"]


def compare(options: Namespace, words: list[str], more: dict[str, list[str]]) -> int:
    """Run what is missing, and print the table; `more` are the `words` by argument. Gives the exit code."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        code = _compare(_comparison(options, words, more), options)
    except KeyboardInterrupt:  # between two runs
        code = INTERRUPTED
    if code == INTERRUPTED and PartialState().is_main_process:
        sys.stderr.write("\nStopped. What is finished is kept; the same command resumes.\n")
    leave_group()
    return code


def _comparison(options: Namespace, words: list[str], more: dict[str, list[str]]) -> Comparison:
    preset = PRESETS[EXPERIMENTS[options.experiment].preset].settings
    setting = Setting(
        experiment=options.experiment,
        scale=options.scale,
        model=options.model_name_or_path or preset["model_name_or_path"],
        dataset=more.get("dataset_name", [preset["dataset_name"]])[0],
        arguments=without_secrets(words),
        processes=PartialState().num_processes,
        updates=options.updates,
    )
    cells = (Cell(v, s, seed) for seed in options.seeds for s in options.sparsities for v in options.methods)
    trains_dense = options.model_name_or_path is None and "dense_epochs" in preset
    return Comparison(setting, Path(options.output_dir), tuple(cells), more, trains_dense)


def _compare(comparison: Comparison, options: Namespace) -> int:
    folder, setting = comparison.folder, comparison.setting
    check_folder(folder, setting)
    if pending := comparison.pending():
        first = parse_arguments(_words(comparison.settings(pending[0], setting.model)))
        check_image_model(first.model.model_name_or_path, from_scratch=first.model.from_scratch)
        data = load_image_data(first.data, seed=DENSE_SEED)
        updates = _check(comparison, pending, data)
        with claimed(folder, "folder", wait=True):
            check_folder(folder, setting)  # which another command may have made meanwhile
            _on_main(lambda: make_folder(folder, setting))
        model = _dense_model(comparison, data) if comparison.trains_dense else setting.model
        if model is None or not _run_all(comparison, pending, updates, model, data, options.keep_models):
            return INTERRUPTED
    with claimed(folder, "table", wait=True):
        _on_main(lambda: _tell(comparison, pending, options.by_cycle))
    return 0


def _check(comparison: Comparison, cells: list[Cell], data: ImageData) -> dict[Cell, int]:
    """Updates of every cell; what is wrong with one is said before the first is run."""
    updates: dict[str, int] = {}
    with TemporaryDirectory() as folder:
        for cell in cells:
            words = _words(comparison.settings(cell, comparison.setting.model))
            args = parse_arguments([*words, *_QUIET, "--output_dir", folder])
            if cell.label not in updates:
                run = Run.build(args, data, to_be_trained=comparison.trains_dense)
                updates[cell.label] = run.trainer.plan().T
    return {cell: updates[cell.label] for cell in cells}


def _dense_model(comparison: Comparison, data: ImageData) -> str | None:
    """The folder of the dense model, trained now if it is not there; None if that was interrupted."""
    folder = comparison.dense_folder
    with claimed(comparison.folder, folder.name, wait=True):
        if not (folder / "config.json").exists():
            work = folder.with_name(f"{folder.name}-unfinished")
            with _progress_bar() as bar:
                run = train(_words(comparison.dense_settings()), work, data, _Progress(bar, "dense model"))
            if run is None:
                return None
            run.save(command="")
            _on_main(lambda: drop_checkpoints(work).rename(folder))
    return str(folder)


def _run_all(
    comparison: Comparison, cells: list[Cell], updates: dict[Cell, int], model: str, data: ImageData, keep_models: bool
) -> bool:
    """Run the cells that no other command has; False if there was a signal to stop."""
    with _progress_bar(sum(updates.values())) as bar:
        for cell in cells:
            with claimed(comparison.folder, cell.name) as free:
                done = report_path(comparison.folder, cell).exists()
                if any_process(done or not free, PartialState().device):  # another command was at it, or is
                    bar.total -= updates[cell]
                    bar.refresh()
                elif not _run(comparison, cell, model, data, bar, keep_models):
                    return False
    return True


def _run(comparison: Comparison, cell: Cell, model: str, data: ImageData, bar: tqdm, keep_model: bool) -> bool:
    """Run a cell, or resume it; False if there was a signal to stop."""
    words, work = _words(comparison.settings(cell, model)), comparison.folder / "cells" / cell.name
    at = f"{comparison.cells.index(cell) + 1}/{len(comparison.cells)}"
    progress = _Progress(bar, f"{at} {cell.label} {cell.sparsity:g} seed {cell.seed}")
    run = train(words, work, data, progress)
    if run is None:
        return False
    run.save(shlex.join(["hf-cyclical", "prune", *words]))
    _on_main(lambda: comparison.store(cell, work, keep_model=keep_model))
    return not any_process(run.stop.asked, run.args.training.device)  # asked for in its last moments


def train(words: list[str], work: Path, data: ImageData, progress: TrainerCallback) -> Run | None:
    """Train as the words of `hf-cyclical prune` say, or resume; None if it was interrupted."""
    args = parse_arguments([*words, *_QUIET, "--output_dir", str(work), "--resume", "auto"])
    run = Run.build(args, data, [progress])
    run.trainer.remove_callback(PrinterCallback)
    run.trainer.train(resume_from_checkpoint=args.training.resume_from_checkpoint)
    return None if run.stop.stopped else run


class _Progress(TrainerCallback):
    """One bar over the updates of all cells: its estimate of the time left is that of the complete experiment."""

    def __init__(self, bar: tqdm, text: str) -> None:
        self.bar, self.text = bar, text

    def on_train_begin(self, args: Any, state: transformers.TrainerState, *rest: Any, **kwargs: Any) -> None:
        self.bar.total = self.bar.total or state.max_steps
        self.bar.set_description_str(self.text)
        self.bar.update(state.global_step)

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.bar.update()


def _tell(comparison: Comparison, pending: list[Cell], by_cycle: bool) -> None:
    lines = [
        f"{comparison.show(by_cycle=by_cycle)}\n",
        f"The reports and what is made of them are in {comparison.folder}",
    ]
    if missing := len(pending) - len(read_reports(comparison.folder, pending)):
        lines += [f"Runs that another command is at: {missing}. Once they are done, the same command shows them too."]
    sys.stdout.write("\n".join(lines) + "\n")


def _words(values: Values) -> list[str]:
    return [word for name, given in values.items() for word in (f"--{name}", *map(str, given))]


def _on_main(work: Callable[[], object]) -> None:
    if PartialState().is_main_process:
        work()
    PartialState().wait_for_everyone()


def _progress_bar(total: int | None = None) -> tqdm:
    return tqdm(total=total, unit=" updates", smoothing=0.05, disable=not PartialState().is_main_process)
