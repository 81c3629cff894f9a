"""What all figures share: how they are made, titled and written."""

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from hf_cyclical.core import PruningError
from hf_cyclical.formats import optional, replacing

from .report import PruningReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class NothingToDrawError(PruningError):
    """The report has no data for the figure; the message says which."""


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of this size in inches; it needs no display."""
    return _matplotlib("matplotlib.figure").Figure(figsize=(width, height), layout="constrained")


def save(figure: "Figure", path: str | Path) -> Path:
    """Write a figure, as a whole or not at all; the path's ending sets the format, and no date is written."""
    path = Path(path)
    ending = path.suffix.lower().removeprefix(".") or "png"
    with _matplotlib("matplotlib").rc_context({"svg.hashsalt": "hf_cyclical"}), replacing(path) as new:
        figure.savefig(new, format=ending, dpi=120, metadata={"Date": None} if ending == "svg" else None)
    return path


def plain(text: str, most: int) -> str:
    """Text as it is drawn: no formulas between dollars, nothing that XML cannot hold, and of long text both ends."""
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    if len(text) > most:
        text = f"{text[: most // 2 - 1]}…{text[-(most // 2) :]}"
    return text.replace("$", r"\$")


def title(report: PruningReport) -> str:
    """Method, sparsity, model and data set in a line."""
    # Of a folder the last part of its path says enough.
    about = " on ".join(Path(report.about[key]).name for key in ("model", "dataset") if report.about.get(key))
    goal = str(report.config.get("method")) + (f", sparsity {report.sparsity:.3f}" if report.layers else "")
    return plain(f"{goal}: {about}" if about else goal, most=80)


def _matplotlib(module: str) -> ModuleType:
    return optional(module, "matplotlib")


def name_metric(axis: "Axes", metric: str, *, percent: bool = True) -> None:
    """Label the axis of a metric that has been drawn; none in percent is above 100 %, but a dot there stays whole."""
    name = plain(metric, most=24)
    if percent:
        name = f"{name} (%)"
        axis.set_ylim(top=min(axis.get_ylim()[1], 101))
    axis.set_ylabel(name)
