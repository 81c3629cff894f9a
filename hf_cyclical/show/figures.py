"""The interactive figures, as plotly.js reads them: plain data from a report."""

import math
from collections.abc import Sequence
from typing import Any

from hf_cyclical.formats import PREFIX
from hf_cyclical.reports import LayerReport, PruningReport, drawn_in_percent, last_update

from .markup import plotted

MEASURES = {
    "Sparsity": "sparsity",
    "Empty rows": "empty",
    "Rows at the floor": "at_floor",
    "Regrown weights": "regrown",
}
_COLOURS = {"sparsity": "#b3261e", "rate": "#1b7837", "regrown": "#2166ac", "metric": "#762a83", "grid": "#e3e6ea"}
_TEXT = "#1f2328"
_MOST_LAYERS = 150  # of which each still has a line of text
_MOST_NUMBERS = 600  # that can be read in the cells


def run_figure(report: PruningReport) -> dict[str, Any]:
    """Accuracy, sparsity, learning rate and regrown weights over the updates, with the cycles marked."""
    end = last_update(report)
    made = [point for point in report.schedule if point[0] < end] or list(report.schedule[:1])
    panels = [
        ("sparsity (%)", [_steps(_sparsities(report), end, "sparsity", "sparsity", "%{y:.2f} %")]),
        ("learning rate", [_steps(made, end, "learning rate", "rate", "%{y:.4g}")]),
        ("regrown (%)", [_steps(_regrown(report), end, "regrown", "regrown", "%{y:.3f} %")]),
    ]
    if metric := report.metric:
        unit = " (%)" if drawn_in_percent(report, metric) else ""
        panels.insert(0, (f"<b>{plotted(metric)}{unit}</b>", _evaluations(report, metric)))
    return _stacked(report, panels)


def _sparsities(report: PruningReport) -> list[tuple[float, float]]:
    return [(0, 100 * report.start_sparsity), *((update, 100 * value) for update, value, _ in report.masks)]


def _regrown(report: PruningReport) -> list[tuple[float, float]]:
    return [(0, 0.0), *((update, 100 * value) for update, _, value in report.masks)]


def _steps(points: Sequence[Sequence[float]], end: float, name: str, colour: str, form: str) -> dict[str, Any]:
    """A value that holds until the next one, the last one until the end."""
    points = [*points, (end, points[-1][1])] if points else []
    line = {"shape": "hv", "color": _COLOURS[colour], "width": 2}
    return _curve(points, name, mode="lines", line=line, hovertemplate=f"{name} {form}<extra></extra>")


def _evaluations(report: PruningReport, metric: str) -> list[dict[str, Any]]:
    percent = drawn_in_percent(report, metric)
    scale, unit = (100, " %") if percent else (1, "")
    every = [(row["update"], scale * row[metric]) for row in report.evaluations if metric in row]
    ends = [(c.update, scale * c.metrics[metric]) for c in report.cycles if metric in c.metrics]
    told, curves = f"%{{y:.4g}}{unit}<extra></extra>", []
    if len(every) > len(ends) + 1:
        line = {"color": "#6e7781", "width": 1, "dash": "dot"}
        curves.append(_curve(every, "every evaluation", mode="lines", line=line, hovertemplate=f"evaluated {told}"))
    if ends:
        look = {"marker": {"size": 9, "color": _COLOURS["metric"]}, "line": {"color": _COLOURS["metric"], "width": 2}}
        texts = [f"{value:.2f}" if percent else f"{value:.4g}" for _, value in ends]
        shown = {
            "text": texts,
            "textposition": "bottom center",
            "textfont": {"color": _TEXT, "size": 12},
            "cliponaxis": False,
        }
        mode = "lines+markers+text" if len(ends) <= 12 else "lines+markers"
        curves.append(
            _curve(ends, "end of each cycle", mode=mode, hovertemplate=f"end of the cycle {told}", **look, **shown)
        )
    if metric in report.dense:
        before, level = ("before" if report.start_sparsity else "dense"), scale * report.dense[metric]
        line = {"color": _TEXT, "width": 1.5, "dash": "dash"}
        ends_of_line = [(0, level), (last_update(report), level)]
        curves.append(_curve(ends_of_line, before, mode="lines", line=line, hovertemplate=f"{before} {told}"))
    return curves


def _curve(points: Sequence[Sequence[float]], name: str, **look: Any) -> dict[str, Any]:
    x, y = [point[0] for point in points], [point[1] for point in points]
    return {"type": "scatter", "name": name, "x": list(map(_finite, x)), "y": list(map(_finite, y)), **look}


def _stacked(report: PruningReport, panels: list[tuple[str, list[dict[str, Any]]]]) -> dict[str, Any]:
    """Panels one above the other over the same updates."""
    data, layout = [], _layout(height=130 + 165 * len(panels))
    heights = [1.6 if name.startswith("<b>") else 1.0 for name, _ in panels]
    top, gap = 1.0, 0.045
    for i, (name, curves) in enumerate(panels):
        number, bottom = ("" if i == 0 else str(i + 1)), top - heights[i] / sum(heights)
        layout[f"yaxis{number}"] = _axis(name) | {"domain": [max(0.0, bottom + gap * (i < len(panels) - 1)), top]}
        layout[f"yaxis{number}"] |= {"anchor": f"x{number}", "range": _range(curves)}
        top = bottom
        layout[f"xaxis{number}"] = _axis("") | {"anchor": f"y{number}", "showticklabels": i == len(panels) - 1}
        layout[f"xaxis{number}"] |= {"range": [-0.015 * report.updates, 1.03 * report.updates]}
        if i:
            layout[f"xaxis{number}"]["matches"] = "x"
        data += [
            {**curve, "xaxis": f"x{number}", "yaxis": f"y{number}", "showlegend": len(curves) > 1} for curve in curves
        ]
    layout[f"xaxis{number}"]["title"] = {"text": "optimizer updates", "standoff": 8}
    layout |= {"hovermode": "x unified", "shapes": _cycle_lines(report), "annotations": _cycle_names(report)}
    layout["legend"] = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.035, "yanchor": "bottom"}
    return {"data": data, "layout": layout}


def _range(curves: list[dict[str, Any]]) -> list[float] | None:
    """With room for what is written below the points."""
    values = [value for curve in curves for value in curve["y"] if value is not None]
    if not values:
        return None
    low, high = min(values), max(values)
    space = (high - low) or abs(high) or 1.0
    return [low - (0.25 if any("text" in curve for curve in curves) else 0.06) * space, high + 0.1 * space]


def _cycle_lines(report: PruningReport) -> list[dict[str, Any]]:
    ends = [*([report.dense_updates] if report.dense_updates else []), *(cycle.update for cycle in report.cycles)]
    line = {"color": "#8c959f", "width": 1, "dash": "dot"}
    place = {"type": "line", "xref": "x", "yref": "paper", "y0": 0, "y1": 1, "line": line}
    return [{**place, "x0": end, "x1": end} for end in ends]


def _cycle_names(report: PruningReport) -> list[dict[str, Any]]:
    if len(report.cycles) > 12:
        return []
    names, start = [], report.dense_updates
    place = {"yref": "paper", "y": 1, "yanchor": "bottom", "showarrow": False, "font": {"size": 12, "color": _TEXT}}
    if start > 0.08 * report.updates:
        names.append({**place, "x": start / 2, "text": "dense"})
    for cycle in report.cycles:
        names.append({**place, "x": (start + cycle.update) / 2, "text": f"cycle {cycle.cycle}"})
        start = cycle.update
    return names


def layer_figure(report: PruningReport, measure: str) -> dict[str, Any] | None:
    """A cell for each layer and cycle; None if the report has no layers.

    Args:
        report: The run. If it has only the layers of its end, as those of old versions, there is one column.
        measure: One of `MEASURES`.
    """
    columns = [(f"cycle {cycle.cycle}", cycle.layers) for cycle in report.cycles if cycle.layers]
    if report.layers and (not columns or report.layers != columns[-1][1]):
        columns.append(("end", report.layers))
    if not columns:
        return None
    names = [layer.name for layer in columns[-1][1]][:_MOST_LAYERS]
    by_name = [{layer.name: layer for layer in layers} for _, layers in columns]
    cells = [[_measured(layers.get(name), MEASURES[measure]) for layers in by_name] for name in names]
    percent = MEASURES[measure] in ("sparsity", "regrown")
    written = [[_cell(value, percent) for value in row] for row in cells]
    named = [plotted(name.removesuffix(".weight").removeprefix(PREFIX)) for name in names]
    few = len(names) * len(columns) <= _MOST_NUMBERS
    heat = {
        "type": "heatmap", "x": [name for name, _ in columns], "y": named, "z": cells, "text": written, "xgap": 2,
        "ygap": 2, "colorscale": _scale(percent), "zmin": 0, "zmax": 100 if measure == "Sparsity" else _top(cells),
        "texttemplate": "%{text}" if few else "", "textfont": {"color": _TEXT, "size": 13}, "hoverongaps": False,
        "hovertemplate": "%{y}, %{x}: %{text}<extra></extra>",
        "colorbar": {"title": {"text": "%" if percent else "rows"}, "thickness": 14, "outlinewidth": 0},
    }  # fmt: skip
    layout = _layout(height=90 + 28 * len(names))
    layout["yaxis"] = {"autorange": "reversed", "automargin": True, "ticks": "", "type": "category"}
    layout["xaxis"] = {"side": "top", "automargin": True, "ticks": "", "type": "category"}
    return {"data": [heat], "layout": layout}


def _measured(layer: LayerReport | None, field: str) -> float | None:
    if layer is None:
        return None
    if field == "sparsity":
        return 100 * (1 - layer.kept / layer.weights)
    return 100 * layer.regrown / layer.weights if field == "regrown" else getattr(layer, field)


def _cell(value: float | None, percent: bool) -> str:
    if value is None:
        return "not known"
    return f"{value:.2f} %" if percent else f"{value:,}"


def _top(cells: list[list[float | None]]) -> float:
    return max([1e-9, *(value for row in cells for value in row if value is not None)])


def _scale(percent: bool) -> list[list[Any]]:
    """From white to a blue or an orange on which dark letters can be read."""
    return [[0, "#f6f8fa"], [1, "#74a9d8" if percent else "#f2a65a"]]


def _axis(title: str) -> dict[str, Any]:
    named = {"title": {"text": title, "standoff": 8}} if title else {}
    return named | {"automargin": True, "gridcolor": _COLOURS["grid"], "zeroline": False, "linecolor": "#8c959f"}


def _layout(height: int) -> dict[str, Any]:
    return {
        "height": height,
        "autosize": True,
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "font": {"color": _TEXT, "size": 13, "family": "system-ui, sans-serif"},
        "margin": {"l": 70, "r": 24, "t": 64, "b": 48},
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
