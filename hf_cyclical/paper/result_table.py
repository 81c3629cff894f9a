"""The results of an experiment as a table, the paper's beside them."""

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import mean

from hf_cyclical.reports import PruningReport, final_metrics, table_of

from .choice import chosen, incomplete
from .experiments import EXPERIMENTS, Experiment
from .published import ACCURACY, ACCURACY_BY_CYCLE, MASK_DISTANCE
from .results import Results, Setting
from .rival_table import first_lines, rival_rows, spread, table_4

_WIDEST = 7  # columns of a table; one that has more is turned round


def table(setting: Setting, results: Results, by_cycle: bool = False) -> str:
    """The results as Markdown with a caption, the paper's beside them where it has any.

    Tables of ablations show the end of each cycle; with `by_cycle` so does any other, of the runs that come to the
    target more than once.
    """
    if not results:
        return "No cell is finished yet."
    if by_cycle:
        results = {cell: r for cell, r in results.items() if len(r.cycles) > 1 and all(c.at_target for c in r.cycles)}
        if not results:
            return "No finished cell has more than one cycle to the target."
    experiment = EXPERIMENTS[setting.experiment]
    if experiment.rivals and not by_cycle:
        rows = rival_rows(_labels(experiment, results), results)
        shown = f"{table_of(rows)}{_diverged(results)}"
        return f"{caption(setting, results)}\n\n{first_lines(results)}\n\n{shown}\n\n{table_4()}"
    by_cycle = by_cycle or experiment.by_cycle
    rows = (_cycle_rows if by_cycle else _final_rows)(setting.experiment, results)
    if len(rows[0]) > _WIDEST:
        rows = [list(row) for row in zip(*rows, strict=True)]
    below = _diverged(results) + (_choice(results) if experiment.chooses else "")
    return f"{caption(setting, results, by_cycle)}\n\n{table_of(rows)}{below}"


def _diverged(results: Results) -> str:
    """What stands below a table in which runs are missing."""
    found = [f"{cell}: {report.about['diverged']}" for cell, report in results.items() if "diverged" in report.about]
    return "\n\nDiverged, and not counted:\n" + "\n".join(f"- {line}" for line in found) if found else ""


def _choice(results: Results) -> str:
    """What stands below the table of a choice."""
    missing = f"\n\nNot all is tried yet of {', '.join(incomplete(results))}." if incomplete(results) else ""
    return f"{missing}\n\nBest on the images held out: {json.dumps(chosen(results))}"


def caption(setting: Setting, results: Results, by_cycle: bool = False) -> str:
    """What the numbers of a table are."""
    seeds = sorted({cell.seed for cell in results})
    epochs = sorted({_epochs(report) for report in results.values() if "diverged" not in report.about})
    dense = [100 * r.dense["accuracy"] for r in results.values() if "accuracy" in r.dense]
    start = f"; dense {mean(dense):.2f} %" if dense else ""
    spread = f"mean ± standard deviation of {len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"
    sparsities = {cell.sparsity for cell in results}
    at = f" at sparsity {min(sparsities):g}" if by_cycle and len(sparsities) == 1 else ""
    more = f", with {' '.join(setting.arguments)}" if setting.arguments else ""
    more += f", on {setting.processes} processes" if setting.processes > 1 else ""
    part = "" if setting.scale == 1 else f" ({setting.scale:g} of the experiment's)"
    budget = f"{' / '.join(f'{e:g}' for e in epochs) or 'no'} epochs{part}"
    if setting.updates is not None:
        budget = f"{setting.updates:,} updates"
    return (
        f"Accuracy (%){at} of {Path(setting.model).name} on {Path(setting.dataset).name}, {spread}; "
        f"experiment {setting.experiment}, {budget}{start}{more}."
    )


def _final_rows(name: str, results: Results) -> list[list[str]]:
    experiment = EXPERIMENTS[name]
    labels = _labels(experiment, results)
    rows = [["sparsity", *labels]]
    seeds = len({cell.seed for cell in results})
    for s in sorted({cell.sparsity for cell in results}):
        found = [[r for cell, r in results.items() if (cell.label, cell.sparsity) == (label, s)] for label in labels]
        rows.append([f"{s:g}", *(spread(_percent(_accuracy(r) for r in reports), seeds) for reports in found)])
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
            accuracies = [spread(_percent(c.metrics.get("accuracy") for c in end), seeds) for end in ends]
            distances = [f"{mean(c.mask_distance for c in end):.2f}" if end else "" for end in ends]
            regrown = [f"{100 * mean(c.regrown for c in end):.2f}" if end else "" for end in ends]
            rows.append([shown, "accuracy", *accuracies])
            paper = s in experiment.sparsities
            rows += _paper_row(ACCURACY_BY_CYCLE, name, label, "accuracy", cycles) if paper else []
            rows.append([shown, "mask distance", *distances])
            rows += _paper_row(MASK_DISTANCE, name, label, "mask distance", cycles) if paper else []
            rows.append([shown, "regrown (%)", *regrown])
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


def _percent(fractions: Iterable[float | None]) -> list[float]:
    return [100 * value for value in fractions if value is not None]
