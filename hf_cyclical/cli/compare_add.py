"""`hf-cyclical compare --add`: finished runs of other folders and machines, for one table."""

import math
import shlex
from collections.abc import Sequence
from pathlib import Path

from accelerate import PartialState

from hf_cyclical.core import PruningError
from hf_cyclical.formats import last_part
from hf_cyclical.paper import (
    EXPERIMENTS,
    Cell,
    Comparison,
    Results,
    Setting,
    check_folder,
    check_report,
    claimed,
    load_results,
    make_folder,
    read_folder,
    report_path,
    write_report,
)

from .compare_arguments import by_argument
from .compare_runs import words_of

_EQUAL = 1e-3  # by how much losses of one dense model may differ between processors, relatively


def add(paths: Sequence[Path], output_dir: str, *, by_cycle: bool) -> str:
    """Take the runs of files of results into the folder of their experiment, and give the table of all.

    A run that is in the folder stays as it is.

    Raises:
        PruningError: If a file is of another experiment or setting, or of runs from another dense model. Nothing is
            added then.
    """
    folder, files = Path(output_dir), {path: load_results(path) for path in paths}
    setting = next(iter(files.values()))[0]
    for path, (other, _) in files.items():
        if found := setting.difference(other):
            name, first, here = found
            raise PruningError(
                f"{path} is of another setting than {paths[0]}: {name} is {here!r}, not {first!r}: leave it out"
            )
    check_folder(folder, setting)
    with claimed(folder, "table", wait=True):
        there = read_folder(folder, setting)
        new: Results = {}
        for path, (_, results) in files.items():
            _check_runs(setting, results, path)
            _check_dense(there | new, results, path)
            new |= {cell: report for cell, report in results.items() if cell not in there | new}
        comparison = Comparison(setting, folder, (*there, *new), {}, trains_dense=False)
        if PartialState().is_main_process:
            make_folder(folder, setting)
            for cell, report in new.items():
                write_report(report_path(folder, cell), report)
        PartialState().wait_for_everyone()
        return f"{comparison.show(by_cycle=by_cycle)}\n\nRuns added to {folder}: {len(new)}"


def _check_runs(setting: Setting, results: Results, path: Path) -> None:
    """Refuse reports that are of other runs than their rows say, or of rows that had other settings then."""
    more = by_argument(setting.arguments, EXPERIMENTS[setting.experiment])
    comparison = Comparison(setting, Path(), tuple(results), more, trains_dense=False)
    for cell, report in results.items():
        check_report(cell, report, f"{cell} in {path}", "take another copy")
        made = _arguments(report.about.get("command"))
        asked = _arguments(shlex.join(words_of(comparison.settings(cell, setting.model))))
        for name in {**asked, **made} if made else ():
            if asked.get(name) != made.get(name):
                there, here = (" ".join(of.get(name, ["not given"])) for of in (made, asked))
                raise PruningError(f"{cell} in {path} had other settings: {name} is {there} there, {here} here: run it")


def _arguments(command: str | None) -> dict[str, list[str]]:
    """A command's arguments by their names, with the last parts of paths; not the model, which may be anywhere."""
    found: dict[str, list[str]] = {}
    for word in shlex.split(command or ""):
        if word.startswith("--"):
            found[word[2:]] = []
        elif found:
            found[next(reversed(found))].append(last_part(word))
    found.pop("model_name_or_path", None)
    return found


def _check_dense(there: Results, results: Results, path: Path) -> None:
    """Refuse runs that started from another dense model."""
    losses: list[tuple[Cell, float]] = [
        (cell, report.dense["loss"]) for cell, report in [*there.items(), *results.items()] if "loss" in report.dense
    ]
    for cell, loss in losses:
        if not math.isclose(loss, losses[0][1], rel_tol=_EQUAL):
            raise PruningError(
                f"{path} starts from another dense model than {losses[0][0]}: the loss of {cell} is {loss:g} there, "
                f"{losses[0][1]:g} here: copy the dense model's folder before you start runs on another machine"
            )
