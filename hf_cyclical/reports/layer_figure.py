"""The figure with the sparsity of each layer."""

import math
from itertools import takewhile
from typing import TYPE_CHECKING

from .drawing import NothingToDrawError, new_figure, plain, title
from .report import LayerReport, PruningReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_ROWS = 60  # a column with more of them would be higher than a page
_MOST_COLUMNS = 4
_ROOMY = 24  # rows that can afford large letters


def draw_layers(report: PruningReport) -> "Figure":
    """A bar for each pruned layer, in the model's order, beside its name and the weights that it keeps.

    The bars of large models stand in several columns, to be read like those of a page.
    """
    layers = report.layers
    if not layers:
        raise NothingToDrawError("it has no layers, as the run did not end")
    columns = min(_MOST_COLUMNS, math.ceil(len(layers) / _ROWS))
    rows = math.ceil(len(layers) / columns)
    row_height, fontsize = (0.3, 9) if rows <= _ROOMY else (0.17, 7)
    names = _short_names(layers)
    # Inches: bars and counts, and the letters of the longest name; no less than the title needs.
    width = max(7.0, 5 + fontsize / 110 * max(map(len, names)))
    figure = new_figure(columns * width, 1.1 + row_height * rows)
    for i, axis in enumerate(figure.subplots(1, columns, squeeze=False)[0]):
        part = slice(i * rows, (i + 1) * rows)
        _draw_column(axis, layers[part], names[part], fontsize)
        axis.axvline(100 * report.sparsity, color="black", linestyle="--", linewidth=1)
        axis.set_ylim(rows - 0.5, -0.5)  # the first layer at the top, and rows of equal height in every column
    figure.supxlabel(f"sparsity (%); dashed: {100 * report.sparsity:.2f} of all these layers together", fontsize=10)
    figure.suptitle(title(report), fontsize=11)
    return figure


def _draw_column(axis: "Axes", layers: list[LayerReport], names: list[str], fontsize: int) -> None:
    places = range(len(layers))
    sparsities = [100 * (1 - layer.kept / layer.weights) for layer in layers]
    axis.barh(places, [100] * len(layers), height=0.7, color="white", edgecolor="0.7", linewidth=0.6)
    axis.barh(places, sparsities, height=0.7, color="lightsteelblue", edgecolor="black", linewidth=0.6)
    axis.set_yticks(places, names, fontsize=fontsize)
    axis.set_xlim(0, 100)
    axis.tick_params(axis="x", labelsize=8)
    axis.text(1.01, 1.01, "sparsity, weights kept", transform=axis.transAxes, fontsize=8)
    kept = [f"{s:.2f} %, {each.kept:,} of {each.weights:,}" for s, each in zip(sparsities, layers, strict=True)]
    beside = axis.secondary_yaxis("right")
    beside.set_yticks(places, kept, fontsize=fontsize)
    beside.tick_params(length=0)


def _short_names(layers: list[LayerReport]) -> list[str]:
    """The names without what they all begin and end with."""
    names = [layer.name for layer in layers]
    parents = (name.split(".")[:-2] for name in names)
    shared = len(list(takewhile(lambda parts: len(set(parts)) == 1, zip(*parents, strict=False))))
    end = ".weight" if all(name.endswith(".weight") for name in names) else ""
    return [plain(".".join(name.split(".")[shared:]).removesuffix(end), most=64) for name in names]
