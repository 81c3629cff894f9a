"""The choice of a method's learning rate and share, on images that are held out: a search by coordinates.

First some rates are tried with the method's own share, and further ones while the best is the lowest or highest of
them; then the other shares with the best rate. What is tried next follows from the results alone, so that a search can
be interrupted, and made by several commands.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from hf_cyclical.formats import write_text
from hf_cyclical.reports import final_metrics

from .results import Cell, Results, Setting
from .rivals import FIRST_RATES, RATES, SHARES, own_share

CHOSEN_NAME = "chosen.json"


class Candidate(NamedTuple):
    """One of the settings of a method that are tried."""

    method: str
    rate: float
    share: str

    @classmethod
    def of(cls, label: str) -> "Candidate":
        """The inverse of `label`."""
        method, rate, share = label.split(", ")
        return cls(method, float(rate.removeprefix("lr ")), share)

    @property
    def label(self) -> str:
        """Its name in the table."""
        return f"{self.method}, lr {self.rate:g}, {self.share}"


def wanted(cells: Iterable[Cell], results: Results) -> list[Cell]:
    """Of the runs that are asked for, those that the search tries next and that are not finished."""
    cells = list(cells)
    open_labels = {cell.label for cell in cells if cell not in results}
    scores = {label: score for label, score in _scores(results).items() if label not in open_labels}
    found: list[Cell] = []
    for method in dict.fromkeys(Candidate.of(cell.label).method for cell in cells):
        next_ones = {candidate.label for candidate in _untried(method, scores)}
        found += [cell for cell in cells if cell.label in next_ones and cell not in results]
    return found


def chosen(results: Results) -> dict[str, dict[str, Any]]:
    """Of each method whose search is complete, the best settings by the mean accuracy over sparsities and seeds."""
    scores = _scores(results)
    best = {}
    for method in dict.fromkeys(Candidate.of(label).method for label in scores):
        if not _untried(method, scores):
            _, rate, share = _best(method, scores)
            best[method] = {"learning_rate": rate, "share": share}
    return best


def save_chosen(folder: Path, setting: Setting, results: Results) -> None:
    """Leave what was chosen, and what was tried for it, in the folder, as `rivals` reads it."""
    tried = {label: round(score, 6) for label, score in _scores(results).items()}
    content = {
        "experiment": setting.experiment,
        "updates": sorted({report.updates for report in results.values()}),
        "sparsities": sorted({cell.sparsity for cell in results}),
        "seeds": sorted({cell.seed for cell in results}),
        "arguments": setting.arguments,
        "chosen": chosen(results),
        "accuracy on the images held out": tried,
    }
    write_text(folder / CHOSEN_NAME, json.dumps(content, indent=1) + "\n")


def incomplete(results: Results) -> list[str]:
    """Methods of which something was tried, but not all."""
    methods = dict.fromkeys(Candidate.of(cell.label).method for cell in results)
    return [method for method in methods if method not in chosen(results)]


def _untried(method: str, scores: Mapping[str, float]) -> list[Candidate]:
    """What is still to be tried: rates, and once the best has neighbours that are worse, shares."""
    rates = [Candidate(method, rate, own_share(method)) for rate in RATES]
    missing = [c for c in rates if c.rate in FIRST_RATES and c.label not in scores]
    if missing:
        return missing
    tried = [c for c in rates if c.label in scores]
    best = max(tried, key=lambda candidate: scores[candidate.label])
    i = rates.index(best)
    return [c for c in rates[max(i - 1, 0) : i + 2] if c not in tried] or [
        c for share in SHARES if (c := best._replace(share=share)).label not in scores
    ]


def _best(method: str, scores: Mapping[str, float]) -> Candidate:
    tried = [Candidate.of(label) for label in scores]
    return max((c for c in tried if c.method == method), key=lambda candidate: scores[candidate.label])


def _scores(results: Results) -> dict[str, float]:
    """The mean accuracy of every label of which all runs are there; a run that has diverged counts as 0."""
    found: dict[str, list[float]] = {}
    for cell, report in results.items():
        found.setdefault(cell.label, []).append(final_metrics(report).get("accuracy", 0.0))
    most: dict[str, int] = {}  # of each method
    for label, values in found.items():
        method = Candidate.of(label).method
        most[method] = max(most.get(method, 0), len(values))
    return {label: mean(values) for label, values in found.items() if len(values) == most[Candidate.of(label).method]}
