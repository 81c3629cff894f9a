"""Results of an experiment: a report for every cell, the folder that holds them, and their table."""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from .core import PruningError
from .experiments import EXPERIMENTS, Experiment
from .files import write_text
from .paper_results import ACCURACY, ACCURACY_BY_CYCLE, MASK_DISTANCE
from .report import PruningReport, final_metrics, load_report

SCHEMA = 1
EXPERIMENT_NAME = "experiment.json"
RESULTS_NAME = "results.json"


@dataclass(frozen=True)
class Cell:
    """One run of an experiment."""

    label: str
    sparsity: float
    seed: int

    @property
    def name(self) -> str:
        """As a file's name."""
        return f"{self.label.replace(', ', '-').replace(' ', '_')}-{self.sparsity:g}-seed{self.seed}"


@dataclass(frozen=True)
class Setting:
    """What all cells of a folder share, and what a table's caption tells.

    Attributes:
        experiment: Its name.
        scale: Fraction of the paper's epochs.
        model: The model that was pruned.
        dataset: The data.
        arguments: What else the command line asked for.
    """

    experiment: str
    scale: float
    model: str
    dataset: str
    arguments: list[str]
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


Results = dict[Cell, PruningReport]


def read_json(path: Path) -> Any:
    """A JSON file of ours, or one line on what is wrong with it."""
    try:
        return json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise PruningError(f"{path} cannot be read ({error}): take another copy") from None


def open_folder(folder: Path, setting: Setting) -> None:
    """Make the folder of an experiment, or check that what is there is of the same one."""
    path = folder / EXPERIMENT_NAME
    if path.exists():
        there, here = dataclasses.asdict(Setting.from_dict(read_json(path), path)), dataclasses.asdict(setting)
        for name, value in here.items():
            if there[name] != value:
                raise PruningError(
                    f"{folder} holds another experiment: {name} is {there[name]!r} there, {value!r} here: "
                    "name another output_dir"
                )
        return
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise PruningError(f"{folder} is there and holds something else: name another output_dir")
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(dataclasses.asdict(setting)) + "\n")


def report_path(folder: Path, cell: Cell) -> Path:
    """Where the report of a cell is."""
    return folder / "reports" / f"{cell.name}.json"


def read_reports(folder: Path, cells: Iterable[Cell]) -> Results:
    """The reports of the cells that are finished."""
    found = {cell: report_path(folder, cell) for cell in cells}
    results = {cell: load_report(path) for cell, path in found.items() if path.exists()}
    for cell, report in results.items():
        there = (report.config.get("target_sparsity"), report.about.get("seed"))
        if there != (cell.sparsity, cell.seed):
            raise PruningError(
                f"{found[cell]} is of sparsity and seed {there}, not {(cell.sparsity, cell.seed)}: "
                "another file has its name, move it away"
            )
    return results


def save_results(path: Path, setting: Setting, results: Results) -> None:
    """All reports in one small file, without their curves."""
    rows = [
        {**dataclasses.asdict(cell), "report": report.to_dict() | {"schedule": [], "masks": report.masks[-1:]}}
        for cell, report in results.items()
    ]
    write_text(path, json.dumps({"setting": dataclasses.asdict(setting), "cells": rows}) + "\n")


def load_results(path: Path) -> tuple[Setting, Results]:
    """The inverse of `save_results`."""
    data = read_json(path)
    try:
        setting = Setting.from_dict(data["setting"], path)
        cells = {
            Cell(row["label"], row["sparsity"], row["seed"]): PruningReport.from_dict(row["report"])
            for row in data["cells"]
        }
    except (KeyError, TypeError) as error:
        raise PruningError(f"{path} is not a file of results ({error}): name one that compare.py wrote") from None
    return setting, cells


def table(setting: Setting, results: Results) -> str:
    """The results as Markdown with a caption, the paper's beside them where it has any."""
    experiment = EXPERIMENTS[setting.experiment]
    if not results:
        return "No cell is finished yet."
    rows = _cycle_rows if experiment.by_cycle else _final_rows
    return f"{caption(setting, results)}\n\n{markdown(rows(setting.experiment, results))}"


def caption(setting: Setting, results: Results) -> str:
    """What the numbers of a table are."""
    experiment = EXPERIMENTS[setting.experiment]
    seeds = sorted({cell.seed for cell in results})
    epochs = sorted({_epochs(report) for report in results.values()})
    dense = [100 * r.dense["accuracy"] for r in results.values() if "accuracy" in r.dense]
    start = f"; dense {mean(dense):.2f} %" if dense else ""
    spread = f"mean ± standard deviation of {len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"
    sparsities = {cell.sparsity for cell in results}
    at = f" at sparsity {min(sparsities):g}" if experiment.by_cycle and len(sparsities) == 1 else ""
    more = f", with {' '.join(setting.arguments)}" if setting.arguments else ""
    return (
        f"Accuracy (%){at} of {Path(setting.model).name} on {Path(setting.dataset).name}, {spread}; "
        f"{' / '.join(f'{e:g}' for e in epochs)} epochs ({setting.scale:g} of the paper's){start}{more}."
    )


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text as a table, the first one its head."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])


def _final_rows(name: str, results: Results) -> list[list[str]]:
    experiment = EXPERIMENTS[name]
    labels = _labels(experiment, results)
    rows = [["sparsity", *labels]]
    seeds = len({cell.seed for cell in results})
    for s in sorted({cell.sparsity for cell in results}):
        found = [[r for cell, r in results.items() if (cell.label, cell.sparsity) == (label, s)] for label in labels]
        rows.append([f"{s:g}", *(spread([_accuracy(r) for r in reports], seeds) for reports in found)])
        paper = ACCURACY.get(name, {})
        if paper and s in experiment.sparsities:
            i = experiment.sparsities.index(s)
            rows.append([f"{s:g}, paper", *(paper[label][i] if label in paper else "" for label in labels)])
    return rows


def _cycle_rows(name: str, results: Results) -> list[list[str]]:
    experiment = EXPERIMENTS[name]
    cycles = max(len(report.cycles) for report in results.values())
    seeds = len({cell.seed for cell in results})
    sparsities = sorted({cell.sparsity for cell in results})
    rows = [["", "", *(f"cycle {i + 1}" for i in range(cycles))]]
    for s in sparsities:
        for label in _labels(experiment, results):
            reports = [r for cell, r in results.items() if (cell.label, cell.sparsity) == (label, s)]
            ends = [[r.cycles[i] for r in reports if i < len(r.cycles)] for i in range(cycles)]
            shown = label if len(sparsities) == 1 else f"{label}, {s:g}"
            accuracies = [spread([c.metrics.get("accuracy") for c in end], seeds) for end in ends]
            distances = [f"{mean(c.mask_distance for c in end):.2f}" if end else "" for end in ends]
            rows.append([shown, "accuracy", *accuracies])
            rows += _paper_row(ACCURACY_BY_CYCLE, name, label, "accuracy", cycles)
            rows.append([shown, "mask distance", *distances])
            rows += _paper_row(MASK_DISTANCE, name, label, "mask distance", cycles)
    return rows


def _paper_row(tables: dict[str, dict[str, list[str]]], name: str, label: str, what: str, n: int) -> list[list[str]]:
    numbers = tables.get(name, {}).get(label)
    return [[f"{label}, paper", what, *(numbers + [""] * n)[:n]]] if numbers else []


def _labels(experiment: Experiment, results: Results) -> list[str]:
    present = {cell.label for cell in results}
    return [variant.label for variant in experiment.variants if variant.label in present]


def _accuracy(report: PruningReport) -> float | None:
    return final_metrics(report).get("accuracy")


def _epochs(report: PruningReport) -> float:
    """Epochs of pruning, the dense start not counted."""
    last = report.cycles[-1]
    return round(last.epoch * (1 - report.dense_updates / last.update), 2)


def spread(values: Sequence[float | None], expected: int) -> str:
    """Fractions as percent: mean and standard deviation, and how many there are if not as many as expected."""
    numbers = [100 * value for value in values if value is not None]
    if not numbers:
        return ""
    some = f" ({len(numbers)})" if len(numbers) < expected else ""
    return (f"{mean(numbers):.2f} ± {stdev(numbers):.2f}" if len(numbers) > 1 else f"{numbers[0]:.2f}") + some
