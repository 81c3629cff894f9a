"""Results of an experiment: a report for every cell, and the folder that holds them."""

import dataclasses
import json
import math
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate import PartialState
from filelock import FileLock, Timeout

from hf_cyclical.config import PruningConfig
from hf_cyclical.core import PruningError, any_process
from hf_cyclical.formats import hide_paths, public_about, write_text
from hf_cyclical.reports import PruningReport, read_whole, whole_report

from .experiments import EXPERIMENTS

SCHEMA = 1
EXPERIMENT_NAME = "experiment.json"
RESULTS_NAME = "results.json"

_OPEN = dict.fromkeys(PruningConfig().to_dict())  # what a published result leaves out of its settings
_EQUAL = 1e-3  # by how much losses of one dense model may differ between processors, relatively
_LOCKS = ".locks"
_PAUSE = 2.0  # seconds between two looks at what another command has


@dataclass(frozen=True)
class Cell:
    """One run of an experiment."""

    label: str
    sparsity: float
    seed: int

    def __str__(self) -> str:
        return f"{self.label} {self.sparsity:g} seed {self.seed}"

    @property
    def name(self) -> str:
        """As a file's name."""
        return f"{_file_name(self.label)}-{self.sparsity:g}-seed{self.seed}"


def _file_name(label: str) -> str:
    return label.replace(", ", "-").replace(" ", "_")


@dataclass(frozen=True)
class Setting:
    """What all cells of a folder share, and what a table's caption tells.

    Attributes:
        experiment: Its name.
        scale: Fraction of the paper's epochs.
        model: The model that was pruned.
        dataset: The data.
        arguments: What else the command line asked for.
        processes: How many share each run, each with its own batch.
        updates: Of pruning in each run, where they were asked for in place of a fraction of the paper's epochs.
    """

    experiment: str
    scale: float
    model: str
    dataset: str
    arguments: list[str]
    processes: int = 1
    updates: int | None = None
    schema: int = SCHEMA

    @classmethod
    def from_dict(cls, data: dict[str, Any], source: object) -> "Setting":
        """The inverse of `dataclasses.asdict`; `source` is named where it fails."""
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            found = data.get("schema") if isinstance(data, dict) else None
            raise PruningError(f"{source} has schema {found!r}, this version reads {SCHEMA}: upgrade hf_cyclical")
        try:
            setting = cls(**data)
        except TypeError as error:
            raise PruningError(f"{source} is not whole ({error}): take another copy") from None
        if setting.experiment not in EXPERIMENTS:
            raise PruningError(f"{source} is of the experiment {setting.experiment!r}, which is unknown here: upgrade")
        return setting

    @property
    def public(self) -> "Setting":
        """The same without folders of this machine, as results are published."""
        shown = {name: hide_paths(getattr(self, name)) for name in ("model", "dataset", "arguments")}
        return dataclasses.replace(self, **shown)

    def difference(self, other: "Setting") -> tuple[str, Any, Any] | None:
        """The first thing that differs, and both values; a path is equal to what is published of it."""
        forms = (self, self.public), (other, other.public)
        for name in dataclasses.asdict(self):
            mine, others = ([getattr(form, name) for form in of] for of in forms)
            if mine[0] != others[0] and mine[1] != others[0] and mine[0] != others[1]:
                return name, mine[0], others[0]
        return None


Results = dict[Cell, PruningReport]


def read_json(path: Path) -> Any:
    """A JSON file of ours, or one line on what is wrong with it."""
    try:
        return json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise PruningError(f"{path} cannot be read ({error}): take another copy") from None


def check_folder(folder: Path, setting: Setting) -> None:
    """Refuse a folder that holds another experiment, or something else."""
    path = folder / EXPERIMENT_NAME
    # Before we look for the experiment: another process may be making it. What it has on the way there is hidden.
    others = folder.exists() and (
        not folder.is_dir() or any(not file.name.startswith(".") for file in folder.iterdir())
    )
    if path.exists():
        if found := Setting.from_dict(read_json(path), path).difference(setting):
            name, there, here = found
            raise PruningError(
                f"{folder} holds another experiment: {name} is {there!r} there, {here!r} here: name another output_dir"
            )
    elif others:
        raise PruningError(f"{folder} is there and holds something else: name another output_dir")


def make_folder(folder: Path, setting: Setting) -> None:
    """Make the folder of an experiment, if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / EXPERIMENT_NAME).exists():
        write_text(folder / EXPERIMENT_NAME, json.dumps(dataclasses.asdict(setting)) + "\n")


@contextmanager
def claimed(folder: Path, name: str, *, wait: bool = False) -> Iterator[bool]:
    """Keep a part of the folder from other commands that run in it; False if one of them has it, unless we `wait`.

    Ends with the process, however that ends. All processes of this command must ask.
    """
    lock = FileLock(folder / _LOCKS / name)
    taken = _take(lock)
    if wait and not taken and PartialState().is_main_process:
        sys.stderr.write(f"waiting for another command, which is at {name}\n")
    while wait and not taken:
        time.sleep(_PAUSE)
        taken = _take(lock)
    try:
        yield taken
    finally:
        lock.release()


def _take(lock: FileLock) -> bool:
    """Take the lock on the main process, without waiting; the others learn how it went."""
    taken, state = False, PartialState()
    if state.is_main_process:
        Path(lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
            taken = True
        except Timeout:
            pass
    return any_process(taken, state.device)


def report_path(folder: Path, cell: Cell) -> Path:
    """Where the report of a cell is."""
    return folder / "reports" / f"{cell.name}.json"


def write_report(path: Path, report: PruningReport) -> None:
    """Put a report where finished ones are."""
    path.parent.mkdir(exist_ok=True)
    write_text(path, json.dumps(report.to_dict(), indent=1) + "\n")


def read_reports(folder: Path, cells: Iterable[Cell]) -> Results:
    """The reports of the cells that are finished."""
    found = {cell: report_path(folder, cell) for cell in cells}
    results = {cell: read_whole(path, str(path)) for cell, path in found.items() if path.exists()}
    for cell, report in results.items():
        check_report(cell, report, f"{found[cell]}", "another file has its name, move it away")
    return results


def read_folder(folder: Path, setting: Setting) -> Results:
    """The reports of all cells that are finished in the folder, whichever command ran them."""
    labels = {_file_name(variant.label): variant.label for variant in EXPERIMENTS[setting.experiment].variants}
    names = [re.fullmatch(r"(.+)-([0-9.e-]+)-seed(\d+)", path.stem) for path in (folder / "reports").glob("*.json")]
    cells = {Cell(labels[m[1]], float(m[2]), int(m[3])) for m in names if m and m[1] in labels}
    order = list(labels.values())
    return read_reports(folder, sorted(cells, key=lambda c: (c.seed, c.sparsity, order.index(c.label))))


def check_report(cell: Cell, report: PruningReport, source: str, remedy: str) -> None:
    """Refuse a report that is of another run."""
    there = (report.config.get("target_sparsity"), report.about.get("seed"))
    if there != (cell.sparsity, cell.seed):
        raise PruningError(f"{source} is of sparsity and seed {there}, not {(cell.sparsity, cell.seed)}: {remedy}")


def dense_losses(results: Results) -> dict[Cell, float]:
    """The loss of the dense model that each run started from; without runs that trained one of their own."""
    return {c: r.dense["loss"] for c, r in results.items() if "loss" in r.dense and not r.dense_updates}


def check_dense(there: Results, losses: Mapping[Cell, float], source: str) -> None:
    """Refuse runs whose dense model has another loss than that of the runs that are there."""
    known = [*dense_losses(there).items(), *losses.items()]
    for cell, loss in known:
        if not math.isclose(loss, known[0][1], rel_tol=_EQUAL):
            raise PruningError(
                f"{source} starts from another dense model than {known[0][0]}: the loss of {cell} is {loss:g} there, "
                f"{known[0][1]:g} here: copy the dense model's folder before you start runs on another machine"
            )


def save_results(path: Path, setting: Setting, results: Results) -> None:
    """All reports in one small file, to be published: with the layers at the end alone, and without the curves.

    It has no settings that were left open, and no paths of this machine.
    """
    rows = []
    for cell, full in results.items():
        about = public_about(full.about) | {"mean_density": full.mean_density}
        report = dataclasses.replace(full, cycles=[dataclasses.replace(cycle, layers=()) for cycle in full.cycles])
        config = {name: value for name, value in report.config.items() if value is not None}
        small = report.to_dict() | {"schedule": [], "masks": report.masks[-1:], "about": about, "config": config}
        rows.append({**dataclasses.asdict(cell), "report": small})
    content = {"setting": dataclasses.asdict(setting.public), "cells": rows}
    write_text(path, json.dumps(content, separators=(",", ":")) + "\n")


def load_results(path: Path) -> tuple[Setting, Results]:
    """The inverse of `save_results`."""
    data = read_json(path)
    wrong = f"{path} is not a file of results: name one that hf-cyclical compare wrote"
    if not isinstance(data, dict) or not isinstance(data.get("cells"), list):
        raise PruningError(wrong)
    setting = Setting.from_dict(data.get("setting"), path)
    known = {variant.label for variant in EXPERIMENTS[setting.experiment].variants}
    results: Results = {}
    for row in data["cells"]:
        try:
            cell = Cell(row["label"], float(row["sparsity"]), int(row["seed"]))
            report = {**row["report"], "config": _OPEN | row["report"]["config"]}
        except (KeyError, TypeError, ValueError):
            raise PruningError(wrong) from None
        if cell.label not in known:
            raise PruningError(f"{path} has the row {cell.label!r}, which {setting.experiment} lacks here: upgrade")
        results[cell] = whole_report(report, f"{cell.name} in {path}")
    return setting, results
