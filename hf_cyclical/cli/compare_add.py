"""`hf-cyclical compare --add`: finished runs of other folders and machines, for one table."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from accelerate import PartialState

from hf_cyclical.core import PruningError
from hf_cyclical.paper import (
    EXPERIMENTS,
    Cell,
    Comparison,
    Results,
    Setting,
    check_dense,
    check_folder,
    claimed,
    dense_losses,
    load_results,
    make_folder,
    read_folder,
    report_path,
    write_report,
)

from .compare_arguments import by_argument
from .compare_words import check_runs, meaning_of


def add(paths: Sequence[Path], output_dir: str, experiment: str | None = None, *, by_cycle: bool) -> str:
    """Take the runs of files of results into the folder of their experiment, and give the table of all.

    A run that is in the folder stays as it is.

    Args:
        paths: The files.
        output_dir: The folder.
        experiment: Whose folder that is; of files of other experiments, runs that are set alike are taken. That of the
            first file if not given.
        by_cycle: Whether the table has every cycle.

    Raises:
        PruningError: If a file is of another experiment or setting, or of runs from another dense model. Nothing is
            added then.
    """
    folder, files = Path(output_dir), {path: load_results(path) for path in paths}
    first = next(iter(files.values()))[0]
    setting = dataclasses.replace(first, experiment=experiment or first.experiment)
    for path, (other, _) in files.items():
        alike = dataclasses.replace(other, experiment=setting.experiment) if experiment else other
        if found := setting.difference(alike):
            name, here, there = found
            raise PruningError(
                f"{path} is of another setting than {paths[0]}: {name} is {there!r}, not {here!r}: leave it out"
            )
    check_folder(folder, setting)
    taken = {path: _rows_of(setting, folder, *file, path) for path, file in files.items()}
    with claimed(folder, "table", wait=True):
        there = read_folder(folder, setting)
        new: Results = {}
        for path, results in taken.items():
            check_dense(there | new, dense_losses(results), str(path))
            new |= {cell: report for cell, report in results.items() if cell not in there | new}
        comparison = _comparison(setting, folder, (*there, *new))
        if PartialState().is_main_process:
            make_folder(folder, setting)
            for cell, report in new.items():
                write_report(report_path(folder, cell), report)
        PartialState().wait_for_everyone()
        return f"{comparison.show(by_cycle=by_cycle)}\n\nRuns added to {folder}: {len(new)}"


def _comparison(setting: Setting, folder: Path, cells: Sequence[Cell]) -> Comparison:
    more = by_argument(setting.arguments, EXPERIMENTS[setting.experiment])
    return Comparison(setting, folder, tuple(cells), more, trains_dense=False)


def _rows_of(setting: Setting, folder: Path, other: Setting, results: Results, path: Path) -> Results:
    """The runs of a file as rows of the experiment of `setting`: its own, or those of another that are set alike."""
    made = _comparison(other, folder, tuple(results))
    check_runs(made, results, path)
    if other.experiment == setting.experiment:
        return results
    mine, theirs = EXPERIMENTS[setting.experiment], EXPERIMENTS[other.experiment]
    if (mine.preset, mine.dense) != (theirs.preset, theirs.dense):
        raise PruningError(
            f"{path} is of {other.experiment}, whose runs start from another dense model than those of "
            f"{setting.experiment}: leave it out"
        )
    asked = _comparison(setting, folder, ())
    meanings = {cell: meaning_of(made.settings(cell, setting.model)) for cell in results}
    found: Results = {}
    for label in (variant.label for variant in mine.variants):
        for cell, report in results.items():
            row = dataclasses.replace(cell, label=label)
            if meaning_of(asked.settings(row, setting.model)) == meanings[cell]:
                found[row] = report
    if not found:
        raise PruningError(f"{path} has no run that is also one of {setting.experiment}: leave it out")
    return found
