"""The report of a finished run as it is read to be published: complete, and without the paths of one machine."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

from hf_cyclical.core import PruningError
from hf_cyclical.formats import public_about
from hf_cyclical.methods import METHODS

from .report import REPORT_NAME, LayerReport, PruningReport, load_report

_ABOUT = {
    **dict.fromkeys(("model", "base_model", "model_revision", "dataset", "command", "diverged"), str | None),
    "versions": dict[str, str] | None,
    "mean_density": float | None,
}


def read_finished(run: Path) -> PruningReport:
    """The report in the folder of a finished run, with what it says about the run as others may read it.

    Raises:
        PruningError: If it is not a complete report, or that of a run that has not ended.
    """
    name = f"{REPORT_NAME} in {str(run)!r}"
    report = read_whole(run, name)
    method = report.config.get("method")
    if method not in list(METHODS):
        raise PruningError(f"{name} has the method {method!r}, which is unknown here: upgrade hf_cyclical")
    if not report.layers:
        raise PruningError(f"{name} is of a run that has not ended: finish it first")
    return dataclasses.replace(report, about=public_about(report.about))


def read_whole(path: Path, name: str) -> PruningReport:
    """A report of which every part is of its kind, also that of a run that has not ended.

    Args:
        path: The file, or the folder that holds it.
        name: What errors call it.
    """
    return _checked(lambda: load_report(path), name)


def whole_report(data: Any, name: str) -> PruningReport:
    """The same for what JSON gave."""
    return _checked(lambda: PruningReport.from_dict(data, name), name)


def _checked(read: Callable[[], PruningReport], name: str) -> PruningReport:
    try:
        report = read()
    except (AttributeError, KeyError, RecursionError, TypeError, UnicodeDecodeError) as error:
        raise PruningError(f"{name} is not a complete report: take another copy") from error
    if wrong := _wrong_part(report):
        raise PruningError(f"{name} is not a complete report, see its {wrong}: take another copy")
    return report


def _wrong_part(report: PruningReport) -> str | None:
    """The first part that is not of the kind that it should be."""
    for field in dataclasses.fields(report):
        if not _fits(getattr(report, field.name), field.type):
            return field.name
    if not all("update" in row and _is_update(row["update"]) for row in report.evaluations):
        return "evaluations"
    if not all(len(row) == 3 and _is_update(row[0]) for row in report.masks):
        return "masks"
    if not all(len(row) == 2 and _is_update(row[0]) for row in report.schedule):
        return "schedule"
    if not _is_update(report.updates):
        return "updates"
    if not all(_is_update(cycle.update) for cycle in report.cycles):
        return "cycles"
    if not all(_possible(layer) for layer in report.layers):
        return "layers"
    if not all(_possible(layer) for cycle in report.cycles for layer in cycle.layers):
        return "cycles"
    about = (key for key, kind in _ABOUT.items() if not _fits(report.about.get(key), kind))
    return next((f"about {key}" for key in about), None)


def _is_update(value: float) -> bool:
    """Whether a number can be that of an update: not Infinity or NaN, which Python's JSON has, nor beyond floats."""
    return abs(value) < 2**63


def _possible(layer: LayerReport) -> bool:
    """Whether the counts of a layer can be those of its weight."""
    counts = 0 <= layer.kept <= layer.weights > 0 and math.prod(layer.shape) == layer.weights
    return counts and 0 <= (layer.empty or 0) <= (layer.shape or [1])[0]


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is what an annotation says, all the way down."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin is UnionType:
        return any(_fits(value, each) for each in inner)
    if origin in (list, tuple):
        return isinstance(value, origin) and all(_fits(each, inner[0]) for each in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(each, inner[1]) for each in value.values())
    if dataclasses.is_dataclass(kind) and isinstance(value, kind):
        return all(_fits(getattr(value, field.name), field.type) for field in dataclasses.fields(value))
    return isinstance(value, int | float if kind is float else kind)
