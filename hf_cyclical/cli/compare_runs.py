"""The runs of `hf-cyclical compare`, one after the other, and the bar over all of them."""

import dataclasses
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

from hf_cyclical.core import DivergedError, PruningError, any_process, leave_group
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
    check_dense,
    check_folder,
    claimed,
    drop_checkpoints,
    make_folder,
    read_folder,
    report_path,
)
from hf_cyclical.reports import PruningReport, versions

from .command_line import INTERRUPTED
from .compare_cost import DENSE_UPDATES, UpdateClock
from .compare_words import check_runs, words_of
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
    if "dense_epochs" in more:
        _check_dense_epochs(" ".join(more["dense_epochs"]), setting.model, trains_dense)
    return Comparison(setting, Path(options.output_dir), tuple(cells), more, trains_dense)


def _check_dense_epochs(epochs: str, model: str, trains_dense: bool) -> None:
    if not trains_dense:
        raise PruningError(
            f"dense_epochs {epochs} is for a dense model that is trained here, not {model}: leave it out"
        )
    if not float(epochs) > 0:  # the arguments were parsed
        raise PruningError(f"dense_epochs {epochs} must be above 0: give the epochs of the dense model's training")


def _compare(comparison: Comparison, options: Namespace) -> int:
    folder, setting = comparison.folder, comparison.setting
    check_folder(folder, setting)
    check_runs(comparison, read_folder(folder, setting), folder)
    pending, data, before = comparison.pending(), None, None
    while pending and pending != before:  # as long as others are not at all of them; a choice goes by what is found
        before = pending
        data = data or _data(comparison, pending[0])
        updates = _check(comparison, pending, data)
        with claimed(folder, "folder", wait=True):
            check_folder(folder, setting)  # which another command may have made meanwhile
            _on_main(lambda: make_folder(folder, setting))
        model = _dense_model(comparison, data) if comparison.trains_dense else setting.model
        if model is None or not _run_all(comparison, pending, updates, model, data, options.keep_models):
            return INTERRUPTED
        PartialState().wait_for_everyone()
        pending = comparison.pending()
    with claimed(folder, "table", wait=True):
        _on_main(lambda: _tell(comparison, options.by_cycle))
    return 0


def _data(comparison: Comparison, cell: Cell) -> ImageData:
    args = parse_arguments(words_of(comparison.settings(cell, comparison.setting.model)))
    check_image_model(args.model.model_name_or_path, from_scratch=args.model.from_scratch)
    return load_image_data(args.data, seed=DENSE_SEED)


def _check(comparison: Comparison, cells: list[Cell], data: ImageData) -> dict[Cell, int]:
    """Updates of every cell; what is wrong with one is said before the first is run."""
    updates: dict[str, int] = {}
    with TemporaryDirectory() as folder:
        for cell in cells:
            words = words_of(comparison.settings(cell, comparison.setting.model))
            args = parse_arguments([*words, *_QUIET, "--output_dir", folder])
            if cell.label not in updates:
                try:
                    run = Run.build(args, data, to_be_trained=comparison.trains_dense)
                    updates[cell.label] = run.trainer.plan().T
                except PruningError as error:
                    raise PruningError(f"{cell}: {error}") from error
    return {cell: updates[cell.label] for cell in cells}


def _dense_model(comparison: Comparison, data: ImageData) -> str | None:
    """The folder of the dense model, trained now if it is not there; None if that was interrupted."""
    folder = comparison.dense_folder
    with claimed(comparison.folder, folder.name, wait=True):
        if not (folder / "config.json").exists():
            work = folder.with_name(f"{folder.name}-unfinished")
            with _progress_bar() as bar:
                run = train(words_of(comparison.dense_settings()), work, data, _Progress(bar, "dense model"))
            if run is None:
                return None
            if run.diverged:
                raise PruningError(f"dense model: {run.diverged}")
            run.save(command="")
            _on_main(lambda: drop_checkpoints(work).rename(folder))
    return str(folder)


def _run_all(
    comparison: Comparison, cells: list[Cell], updates: dict[Cell, int], model: str, data: ImageData, keep_models: bool
) -> bool:
    """Run the cells that no other command has; False if there was a signal to stop."""
    with _progress_bar(sum(updates.values())) as bar:
        for i, cell in enumerate(cells):
            with claimed(comparison.folder, cell.name) as free:
                done = report_path(comparison.folder, cell).exists()
                if any_process(done or not free, PartialState().device):  # another command was at it, or is
                    bar.total -= updates[cell]
                    bar.refresh()
                    continue
                progress = _Progress(bar, f"{i + 1}/{len(cells)} {cell}")
                if not _run(comparison, cell, model, data, progress, keep_models):
                    return False
    return True


def _run(
    comparison: Comparison, cell: Cell, model: str, data: ImageData, progress: TrainerCallback, keep_model: bool
) -> bool:
    """Run a cell, or resume it; False if there was a signal to stop."""
    words, work = words_of(comparison.settings(cell, model)), comparison.folder / "cells" / cell.name
    command = shlex.join(["hf-cyclical", "prune", *words])
    timed = comparison.experiment.rivals and comparison.setting.processes == 1
    clock, before = UpdateClock(), _dense_seconds(comparison, model, data) if timed else None
    if timed and before is None:
        return False
    try:
        run = train(words, work, data, progress, clock, _SameDense(comparison, cell))
    except PruningError as error:
        raise PruningError(f"{cell}: {error}") from error
    if run is None:
        return False
    if run.diverged:  # the others are run all the same
        _on_main(lambda: comparison.store_report(cell, _of_diverged(run, command), work))
        return not any_process(run.stop.asked, run.args.training.device)
    run.save(command)
    cost, stopped = {}, False
    if before and clock.mean:
        after = _dense_seconds(comparison, model, data)
        stopped = after is None
        cost = {"seconds per update": clock.mean, "dense seconds per update": (before + (after or before)) / 2}
    _on_main(lambda: comparison.store(cell, work, keep_model=keep_model, more=cost))
    return not stopped and not any_process(run.stop.asked, run.args.training.device)  # asked for in its last moments


def _of_diverged(run: Run, command: str) -> PruningReport:
    """The report of a run whose weights became NaN or infinite, which says so."""
    args = run.args.training
    known = {"seed": args.seed, "processes": args.world_size, "versions": versions()}
    return dataclasses.replace(run.trainer.report, about=known | run.about(command) | {"diverged": run.diverged})


def _dense_seconds(comparison: Comparison, model: str, data: ImageData) -> float | None:
    """The time of an update of dense training, over a few; None if that was interrupted."""
    clock = UpdateClock()
    with TemporaryDirectory() as folder:
        run = train(words_of(comparison.timing_settings(model, DENSE_UPDATES)), Path(folder), data, clock)
    return clock.mean if run else None


def train(words: list[str], work: Path, data: ImageData, *callbacks: TrainerCallback) -> Run | None:
    """Train as the words of `hf-cyclical prune` say, or resume; None if it was interrupted."""
    args = parse_arguments([*words, *_QUIET, "--output_dir", str(work), "--resume", "auto"])
    run = Run.build(args, data, callbacks)
    run.trainer.remove_callback(PrinterCallback)
    try:
        run.trainer.train(resume_from_checkpoint=args.training.resume_from_checkpoint)
    except DivergedError as error:
        if run.trainer.report is None:  # of the weights that it starts from
            raise
        run.diverged = str(error)
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


class _SameDense(TrainerCallback):
    """Refuses a run before its first update if the folder has runs from another dense model."""

    def __init__(self, comparison: Comparison, cell: Cell) -> None:
        self.comparison, self.cell = comparison, cell

    def on_evaluate(
        self, args: Any, state: transformers.TrainerState, control: Any, metrics: dict[str, float], **kwargs: Any
    ) -> None:
        if state.global_step == 0:
            there = read_folder(self.comparison.folder, self.comparison.setting)
            check_dense(there, {self.cell: metrics["eval_loss"]}, str(self.comparison.folder))


def _tell(comparison: Comparison, by_cycle: bool) -> None:
    lines = [
        f"{comparison.show(by_cycle=by_cycle)}\n",
        f"The reports and what is made of them are in {comparison.folder}",
    ]
    if missing := len(comparison.pending()):
        lines += [f"Runs that another command is at: {missing}. Once they are done, the same command shows them too."]
    sys.stdout.write("\n".join(lines) + "\n")


def _on_main(work: Callable[[], object]) -> None:
    if PartialState().is_main_process:
        work()
    PartialState().wait_for_everyone()


def _progress_bar(total: int | None = None) -> tqdm:
    return tqdm(total=total, unit=" updates", smoothing=0.05, disable=not PartialState().is_main_process)
