"""`hf-cyclical compare --add`: finished runs of other folders and machines, for one table."""

import math
from collections.abc import Sequence
from pathlib import Path

from accelerate import PartialState

from hf_cyclical.core import PruningError
from hf_cyclical.paper import (
    EXPERIMENTS,
    Cell,
    Comparison,
    Results,
    check_folder,
    claimed,
    load_results,
    make_folder,
    read_folder,
    report_path,
    write_report,
)

from .compare_arguments import by_argument
from .compare_words import check_runs

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
            more = by_argument(setting.arguments, EXPERIMENTS[setting.experiment])
            check_runs(Comparison(setting, folder, tuple(results), more, trains_dense=False), results, path)
            _check_dense(there | new, results, path)
            new |= {cell: report for cell, report in results.items() if cell not in there | new}
        comparison = Comparison(setting, folder, (*there, *new), {}, trains_dense=False)
        if PartialState().is_main_process:
            make_folder(folder, setting)
            for cell, report in new.items():
                write_report(report_path(folder, cell), report)
        PartialState().wait_for_everyone()
        return f"{comparison.show(by_cycle=by_cycle)}\n\nRuns added to {folder}: {len(new)}"


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
