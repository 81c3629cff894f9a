"""The figure of a comparison: accuracy over sparsity."""

from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING

from hf_cyclical.reports import PruningReport, final_metrics, name_metric, new_figure, save

if TYPE_CHECKING:
    from .results import Cell


_MARKERS, _LINES = "os^DvxP", ("-", "--", "-.", ":")  # neighbours differ in both, and 28 lines in either


def plot_comparison(results: "Mapping[Cell, PruningReport]", path: str | Path) -> Path:
    """Accuracy over sparsity, a line for each method, with the standard deviation over seeds."""
    figure = new_figure(7, 4.5)
    axis = figure.subplots()
    labels = list(dict.fromkeys(cell.label for cell in results))
    sparsities = sorted({cell.sparsity for cell in results})
    for label, marker, line in zip(labels, cycle(_MARKERS), cycle(_LINES), strict=False):
        points = []
        for i, s in enumerate(sparsities):
            found = [r for cell, r in results.items() if (cell.label, cell.sparsity) == (label, s)]
            values = [100 * m["accuracy"] for m in map(final_metrics, found) if "accuracy" in m]
            if values:
                points.append((i, mean(values), stdev(values) if len(values) > 1 else 0.0))
        if points:
            x, y, error = zip(*points, strict=True)
            style = {"marker": marker, "linestyle": line, "markerfacecolor": "none", "linewidth": 1.2, "capsize": 3}
            axis.errorbar(x, y, error, **style, label=label)
    axis.set_xticks(range(len(sparsities)), [f"{s:g}" for s in sparsities])
    axis.set_xlabel("sparsity")
    name_metric(axis, "accuracy")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    return save(figure, path)
