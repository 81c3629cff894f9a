"""Figures from a report alone.

`draw_...` makes a figure and `plot_...` also writes it; the path's ending sets the format (.png, .svg). They are to be
read in black and white: lines that share a panel differ in style or marker, and no colour is lighter than a mid grey.
"""

import math
from collections.abc import Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING

from .drawing import NothingToDrawError, name_metric, new_figure, save, title
from .layer_figure import draw_layers
from .report import PruningReport
from .tables import in_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "FIGURE_NAME",
    "draw_recovery",
    "draw_regrown",
    "draw_run",
    "drawn_in_percent",
    "last_update",
    "plot_layers",
    "plot_recovery",
    "plot_regrown",
    "plot_run",
]

FIGURE_NAME = "pruning_run.png"
_COLOURS = {"sparsity": "tab:red", "learning rate": "tab:green", "regrown": "tab:blue", "metric": "tab:purple"}
_MOST_CYCLE_LABELS = 12


def plot_run(report: PruningReport, path: str | Path) -> Path:
    """Figure 1 of the paper for this run: sparsity, learning rate, regrown weights and accuracy over the updates.

    Args:
        report: The run.
        path: The file to write; its ending sets the format (.png, .svg).
    """
    return save(draw_run(report), path)


def plot_regrown(report: PruningReport, path: str | Path) -> Path:
    """Figure (a) of the paper's appendix: sparsity, regrown weights and learning rate over the updates."""
    return save(draw_regrown(report), path)


def plot_recovery(report: PruningReport, path: str | Path) -> Path:
    """Figure (b) of the paper's appendix: regrown weights and accuracy at the end of each cycle."""
    return save(draw_recovery(report), path)


def plot_layers(report: PruningReport, path: str | Path) -> Path:
    """The sparsity of each pruned layer, in the model's order, and the number of weights that it keeps."""
    return save(draw_layers(report), path)


def draw_run(report: PruningReport) -> "Figure":
    """See `plot_run`."""
    metric = report.metric
    figure, axes = _panels(report, 4 if metric else 3)
    _sparsity(axes[0], report)
    _learning_rate(axes[1], report)
    _regrown(axes[2], report)
    if metric:
        _evaluations(axes[3], report, metric)
    return figure


def draw_regrown(report: PruningReport) -> "Figure":
    """See `plot_regrown`."""
    if not report.masks:
        raise NothingToDrawError("no masks were chosen in this run")
    figure, axes = _panels(report, 3)
    _sparsity(axes[0], report)
    _regrown(axes[1], report)
    _learning_rate(axes[2], report)
    return figure


def draw_recovery(report: PruningReport) -> "Figure":
    """See `plot_recovery`."""
    metric = report.metric
    if metric is None:
        raise NothingToDrawError("nothing was evaluated in this run")
    cycles = [c for c in report.cycles if math.isfinite(c.metrics.get(metric, math.nan))]
    if len(cycles) < 2:
        raise NothingToDrawError(f"cycles with {metric}: {len(cycles)}, and comparing them needs two")
    figure = new_figure(6, 4.5)
    axis = figure.subplots()
    percent = drawn_in_percent(report, metric)
    x, y = [100 * c.regrown for c in cycles], [(100 if percent else 1) * c.metrics[metric] for c in cycles]
    axis.plot(x, y, color=_COLOURS["metric"])
    # A dot above a ring: neither hides the other where two cycles end in the same place.
    dot, ring = {"markersize": 6, "zorder": 4}, {"markersize": 10, "zorder": 3, "markerfacecolor": "white"}
    for at_target, look in ((True, dot), (False, ring)):
        points = [(a, b) for a, b, c in zip(x, y, cycles, strict=True) if c.at_target == at_target]
        if points:
            label = "end of each cycle, by its number" if at_target else "the same, not yet at the target sparsity"
            style = {"linestyle": "none", "marker": "o", "color": _COLOURS["metric"], "label": label}
            axis.plot(*zip(*points, strict=True), **style, **look)
    _number_points(axis, x, y, [c.cycle for c in cycles])
    axis.margins(0.12)
    if not any(x):
        axis.set_xlim(-0.1, 1)
    axis.set_xlabel("regrown weights (% of the prunable)")
    name_metric(axis, metric, percent=percent)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    figure.suptitle(title(report), fontsize=11)
    return figure


def _panels(report: PruningReport, rows: int) -> "tuple[Figure, Sequence[Axes]]":
    """Panels over the updates, with the cycles marked."""
    if not report.schedule:
        raise NothingToDrawError("it has no updates")
    figure = new_figure(7, 1 + 1.5 * rows)
    axes = figure.subplots(rows, 1, sharex=True)
    for axis in axes:
        axis.grid(alpha=0.3)
    _mark_cycles(axes, report)
    figure.align_ylabels(axes)
    axes[-1].set_xlabel("optimizer updates")
    axes[-1].set_xlim(-0.02 * report.updates, 1.02 * report.updates)
    figure.suptitle(title(report), fontsize=11)
    return figure, axes


def _mark_cycles(axes: "Sequence[Axes]", report: PruningReport) -> None:
    """A line where each cycle ends, and its number above the first panel."""
    ends = [0, *([report.dense_updates] if report.dense_updates else []), *(c.update for c in report.cycles)]
    for axis, end in product(axes, ends[1:]):
        axis.axvline(end, color="0.5", linewidth=0.8, linestyle=":")
    step = math.ceil(len(report.cycles) / _MOST_CYCLE_LABELS)
    names = [(f"cycle {c.cycle}" if len(report.cycles) <= 6 else str(c.cycle)) for c in report.cycles]
    names = [name if i % step == 0 else "" for i, name in enumerate(names)]
    if report.dense_updates:
        names.insert(0, "dense" if report.dense_updates > 0.08 * report.updates else "")
    for name, (start, end) in zip(names, pairwise(ends), strict=True):
        place = {"transform": axes[0].get_xaxis_transform(), "ha": "center", "va": "bottom"}
        axes[0].text((start + end) / 2, 1.02, name, fontsize=8, **place)


def _sparsity(axis: "Axes", report: PruningReport) -> None:
    _steps(axis, [[0, report.start_sparsity], *(point[:2] for point in report.masks)], report, "sparsity")
    axis.set_ylabel("sparsity")
    axis.set_ylim(-0.03, 1.03)


def _regrown(axis: "Axes", report: PruningReport) -> None:
    points = [[0, 0.0], *([update, 100 * regrown] for update, _, regrown in report.masks)]
    _steps(axis, points, report, "regrown")
    axis.set_ylabel("regrown (%)")
    if not any(y for _, y in points):
        axis.set_ylim(-0.05, 1)


def _learning_rate(axis: "Axes", report: PruningReport) -> None:
    last = last_update(report)
    made = [point for point in report.schedule if point[0] < last]
    _steps(axis, made or report.schedule[:1], report, "learning rate")
    axis.set_ylabel("learning rate")


def _steps(axis: "Axes", points: list[list[float]], report: PruningReport, what: str) -> None:
    """A value that holds until the next one, the last one until the run's end."""
    x, y = zip(*points, [last_update(report), points[-1][1]], strict=True)
    axis.step(x, y, where="post", color=_COLOURS[what])


def last_update(report: PruningReport) -> float:
    """Where the run ended: before the plan's end if it was stopped, as far as the report knows."""
    cycles, masks = [c.update for c in report.cycles], [point[0] + 1 for point in report.masks]
    known = max([*cycles[-1:], *masks[-1:], *(row["update"] for row in report.evaluations)], default=0)
    stopped = known and report.updates not in cycles
    return known if stopped else report.updates


def _evaluations(axis: "Axes", report: PruningReport, metric: str) -> None:
    percent, colour = drawn_in_percent(report, metric), _COLOURS["metric"]
    scale = 100 if percent else 1
    points = [(e["update"], scale * e[metric]) for e in report.evaluations if metric in e]
    ends = [(c.update, scale * c.metrics[metric]) for c in report.cycles if metric in c.metrics]
    if len(points) > len(ends) + 1:
        axis.plot(*zip(*points, strict=True), color="0.4", linewidth=1, linestyle=":", label="every evaluation")
    if ends:
        axis.plot(*zip(*ends, strict=True), color=colour, marker="o", label="end of each cycle")
    if metric in report.dense:
        before = "before" if report.start_sparsity else "dense"
        axis.axhline(scale * report.dense[metric], color="0.3", linestyle="--", linewidth=1, label=before)
    name_metric(axis, metric, percent=percent)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=8)


def _number_points(axis: "Axes", x: list[float], y: list[float], numbers: list[int]) -> None:
    """Points that nearly coincide share a label, at the first of them; labels keep off the line where they can."""
    wide, high = (max(x) - min(x)) or 1, (max(y) - min(y)) or 1
    places = [(a / wide, b / high) for a, b in zip(x, y, strict=True)]
    groups: dict[int, list[int]] = {}
    for i, (a, b) in enumerate(places):
        near = (j for j in groups if abs(places[j][0] - a) <= 0.04 and abs(places[j][1] - b) <= 0.05)
        groups.setdefault(next(near, i), []).append(numbers[i])
    box = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
    for i, members in groups.items():
        right, up = _free_corner(places[i], [*places[max(i - 1, 0) : i], *places[i + 1 : i + 2]])
        sides = {"ha": "left" if right > 0 else "right", "va": "bottom" if up > 0 else "top"}
        where = {"xytext": (7 * right, 5 * up), "textcoords": "offset points", "zorder": 5, "bbox": box}
        axis.annotate(", ".join(map(str, members)), (x[i], y[i]), **where, **sides)


def _free_corner(point: tuple[float, float], others: list[tuple[float, float]]) -> tuple[int, int]:
    """The corner of a point, as (right, up), that is farthest from the directions of the other ones."""
    away = [(a - point[0], b - point[1]) for a, b in others]
    corners = [(-1, 1), (1, 1), (1, -1), (-1, -1)]
    return min(corners, key=lambda c: max((c[0] * a + c[1] * b) / (math.hypot(a, b) or 1) for a, b in away))


def drawn_in_percent(report: PruningReport, metric: str) -> bool:
    """Whether a figure shows a metric in percent: only if no value of the whole report is in percent already."""
    rows = [report.dense, *(c.metrics for c in report.cycles), *report.evaluations]
    return in_percent(metric, [row[metric] for row in rows if metric in row])
