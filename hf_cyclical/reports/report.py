"""PruningReport: what happened in a run, as one value. JSON, tables and plots are renderings of it."""

import dataclasses
import importlib.metadata
import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hf_cyclical.core import PruningError
from hf_cyclical.formats import write_text

from .density import dense_between, mean_density
from .frozen import frozen, tupled
from .tables import align, is_rate, show

SCHEMA = 1
REPORT_NAME = "pruning_report.json"
_MOST_POINTS = 2000  # of a curve: enough for any plot, whatever the length of the run


@dataclass(frozen=True)
class LayerReport:
    """One pruned layer at the end of a cycle or of the run.

    Attributes:
        name: Of its weight.
        shape: Of its weight.
        weights: How many it has.
        kept: How many of them stay.
        regrown: How many of these were pruned at any earlier update.
        empty: How many rows of its weight (a convolution's filters) have none left; None in reports of old versions.
        at_floor: How many of them have just what the floor of the rows keeps; None in reports of old versions.
    """

    name: str
    shape: tuple[int, ...]
    weights: int
    kept: int
    regrown: int
    empty: int | None = None
    at_floor: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tupled(self.shape))


@dataclass(frozen=True)
class CycleReport:
    """One cycle at its end.

    Attributes:
        cycle: Its number, from 1.
        update: Optimizer updates made by then.
        epoch: Epochs made by then.
        sparsity: Fraction of the prunable weights that are zero.
        regrown: Fraction of the prunable weights that were pruned at any earlier update and are kept now.
        recovered: Weights that went from pruned to kept inside this cycle.
        mask_distance: Jaccard distance to the masks at the end of the first cycle.
        learning_rate: Of the cycle's last update.
        at_target: Whether the sparsity is the target and not a stage on the way to it.
        metrics: The evaluation, without prefix; empty if there was none.
        empty_rows: Rows of all pruned weights, filters and outputs, that have no weight left.
        floor_rows: Rows that have just what the floor of the rows keeps.
        largest: The largest magnitude of all pruned weights.
        classes: Outputs of the classifier that have a weight; None if it is not pruned.
        layers: The pruned layers as they were then.

    The last five are None, or empty, in reports of old versions.
    """

    cycle: int
    update: int
    epoch: float
    sparsity: float
    regrown: float
    recovered: int
    mask_distance: float
    learning_rate: float
    at_target: bool
    metrics: dict[str, float] = field(default_factory=dict)
    empty_rows: int | None = None
    floor_rows: int | None = None
    largest: float | None = None
    classes: int | None = None
    layers: tuple[LayerReport, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "metrics", frozen(self.metrics))
        object.__setattr__(self, "layers", tupled(self.layers))


@dataclass(frozen=True)
class PruningReport:
    """A run: its settings, its cycles, its curves. What happens next makes a new report: `with_cycle` and so on.

    Attributes:
        config: The PruningConfig.
        updates: Optimizer updates of the whole run, and `dense_updates` of them before the first cycle.
        parameters: Weights of the model in all, prunable or not.
        start_sparsity: Fraction of the prunable weights that were zero before the run.
        about: What the caller adds: model, dataset, arguments, versions.
        schedule: The learning rate, as (update, value) wherever it matters for a curve.
        masks: Every choice of masks (thinned in very long runs) as (update, sparsity, regrown).
        evaluations: Every evaluation as {"update": ..., metric: value}.
        dense: Metrics of the model before the first cycle.
        cycles: One CycleReport for each cycle.
        layers: One LayerReport for each pruned layer.
        chosen_update: The update whose weights the model has at the end, if not the last (load_best_model_at_end).
    """

    config: dict[str, Any]
    updates: int
    dense_updates: int
    parameters: int
    start_sparsity: float = 0.0
    schedule: tuple[tuple[float, ...], ...] = ()
    masks: tuple[tuple[float, ...], ...] = ()
    evaluations: tuple[dict[str, float], ...] = ()
    dense: dict[str, float] = field(default_factory=dict)
    cycles: tuple[CycleReport, ...] = ()
    layers: tuple[LayerReport, ...] = ()
    chosen_update: int | None = None
    about: dict[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        for name in ("schedule", "masks", "evaluations", "cycles", "layers"):
            object.__setattr__(self, name, tupled(getattr(self, name)))
        for name in ("config", "dense", "about"):
            object.__setattr__(self, name, frozen(getattr(self, name)))
        if isinstance(self.evaluations, tuple):
            object.__setattr__(self, "evaluations", tuple(map(frozen, self.evaluations)))

    @property
    def sparsity(self) -> float:
        """Fraction of the prunable weights that are zero at the end."""
        return self.pruned / sum(layer.weights for layer in self.layers)

    @property
    def overall_sparsity(self) -> float:
        """Fraction of all the model's weights that are zero by pruning, the ones that are never pruned included."""
        return self.pruned / self.parameters

    @property
    def pruned(self) -> int:
        """Number of pruned weights at the end."""
        return sum(layer.weights - layer.kept for layer in self.layers)

    @property
    def mean_density(self) -> float:
        """Fraction of the prunable weights that the masks keep, in the mean over all updates: a cost of training.

        It is what hardware that skips zeros would pay for the passes of the model, dense training being 1; so updates
        between which a method has dense weights count as dense. Reports that are published without all choices of masks
        have it in `about`.
        """
        if (known := self.about.get("mean_density")) is not None:
            return known
        return mean_density(self.config, self.start_sparsity, self.masks, self.updates)

    @property
    def initial(self) -> dict[str, float]:
        """Metrics of the model before a dense start; empty if there was none, or no evaluation before it."""
        rows = [row for row in self.evaluations if self.dense_updates and not row["update"]]
        return {name: value for name, value in rows[0].items() if name != "update"} if rows else {}

    @property
    def empty(self) -> float | None:
        """Fraction of the filters of all convolutions that have no weight left; None if it is not known."""
        convolutions = [layer for layer in self.layers if len(layer.shape) > 2]
        counts = [layer.empty for layer in convolutions if layer.empty is not None]
        known = counts and len(counts) == len(convolutions)
        return sum(counts) / sum(layer.shape[0] for layer in convolutions) if known else None

    @property
    def metric(self) -> str | None:
        """The metric that tables and plots show: an accuracy, else another rate, else the first that is no loss."""
        names = [name for row in [self.dense, *(c.metrics for c in self.cycles), *self.evaluations] for name in row]
        kinds = {name: (not name.endswith("accuracy"), not is_rate(name), name.endswith("loss")) for name in names}
        order = {name: kind for name, kind in kinds.items() if name != "update"}
        return min(order, key=lambda name: order[name], default=None)

    def with_masks(self, update: int, sparsity: float, regrown: float) -> "PruningReport":
        """The report after a choice of masks."""
        masks = (*self.masks, (update, sparsity, regrown))
        thinned = (*masks[:-1:2], masks[-1]) if len(masks) > _MOST_POINTS else masks
        return replace(self, masks=thinned)

    def with_cycle(self, cycle: CycleReport) -> "PruningReport":
        """The report after a cycle."""
        return replace(self, cycles=(*self.cycles, cycle))

    def with_evaluation(self, update: int, values: dict[str, float]) -> "PruningReport":
        """The report after an evaluation, which completes the row of the cycle that ends at this update.

        Of several sets of images that are evaluated at one update the metrics are one row.
        """
        there = self.evaluations[-1] if self.evaluations and self.evaluations[-1]["update"] == update else {}
        before = self.evaluations[:-1] if there else self.evaluations
        report = replace(self, evaluations=(*before, {"update": update, **there, **values}))
        if update <= self.dense_updates:
            return replace(report, dense={**(self.dense if there else {}), **values})
        cycles = (replace(c, metrics={**c.metrics, **values}) if c.update == update else c for c in self.cycles)
        return replace(report, cycles=tuple(cycles))

    def save(self, folder: str | Path) -> Path:
        """Write the report into `folder`, and return the file's path."""
        path = Path(folder) / REPORT_NAME
        write_text(path, json.dumps(self.to_dict(), indent=1) + "\n")
        return path

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return _listed(dataclasses.asdict(self))

    @classmethod
    def from_dict(cls, data: dict[str, Any], source: str = "the report") -> "PruningReport":
        """The inverse of `to_dict`; `source` is what errors call it."""
        if data.get("schema") != SCHEMA:
            raise PruningError(
                f"{source} has schema {data.get('schema')!r}, this version of hf_cyclical reads {SCHEMA}: upgrade it"
            )
        cycles = tuple(CycleReport(**{**cycle, "layers": _layers(cycle.get("layers", ()))}) for cycle in data["cycles"])
        return cls(**{**data, "cycles": cycles, "layers": _layers(data["layers"])})

    def table(self) -> str:
        """The cycles as text, one row each, the dense model first, and before it the one that a dense start had."""
        metric = self.metric
        head = ["", *([metric] if metric else []), "sparsity", "regrown", "mask distance", "recovered"]
        rows = []
        if metric and self.initial:
            rows.append(["initial", show(self.initial.get(metric), metric), show(self.start_sparsity), "", "", ""])
        if metric and self.dense:
            name, sparsity = ("start", self.start_sparsity) if self.start_sparsity else ("dense", 0.0)
            rows.append([name, show(self.dense.get(metric), metric), show(sparsity), "", "", ""])
        for c in self.cycles:
            shown = [show(c.metrics.get(metric), metric)] if metric else []
            measures = [show(c.sparsity), show(c.regrown), f"{c.mask_distance:.3f}", f"{c.recovered:,}"]
            rows.append([f"cycle {c.cycle}", *shown, *measures])
        return align([head, *rows])

    def summary(self) -> str:
        """The table, and what the model has become."""
        kept = sum(layer.kept for layer in self.layers)
        chosen = f" (best: update {self.chosen_update:,})" if self.chosen_update else ""
        density = f"{'Training used' if dense_between(self.config) else 'The masks kept'} {show(self.mean_density)}"
        empty = f"\n{show(self.empty)} of the convolutions' filters have no weight left." if self.empty else ""
        return (
            f"{self.table()}\n\n{self.pruned:,} of {self.pruned + kept:,} prunable weights are zero{chosen}: sparsity "
            f"{self.sparsity:.4f} over the prunable weights, {self.overall_sparsity:.4f} over all {self.parameters:,}."
            f"\n{density} of them in the mean over all updates.{empty}"
        )


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _listed(each) for name, each in value.items()}
    return [_listed(each) for each in value] if isinstance(value, list | tuple) else value


def _layers(rows: Any) -> tuple[LayerReport, ...]:
    return tuple(LayerReport(**row) for row in rows)


def final_metrics(report: PruningReport) -> dict[str, float]:
    """The evaluation of the weights that the model has at the end; empty if those were not evaluated."""
    if report.chosen_update is None and (not report.cycles or _last_choice(report) >= report.cycles[-1].update):
        return {}  # stopped inside a cycle: what the one before measured is of other weights
    update = report.chosen_update or report.cycles[-1].update
    rows = [row for row in report.evaluations if row["update"] == update]
    rows += [c.metrics for c in report.cycles if c.update == update]
    found = finite(rows[0]) if rows else {}
    return {name: value for name, value in found.items() if name != "update"}


def _last_choice(report: PruningReport) -> float:
    return math.inf if "diverged" in report.about else report.masks[-1][0] if report.masks else -1


def finite(values: dict[str, float]) -> dict[str, float]:
    """The values that are finite, as JSON has no others."""
    return {name: value for name, value in values.items() if math.isfinite(value)}


def versions() -> dict[str, str]:
    """The versions of what a result depends on."""
    packages = ("hf_cyclical", "torch", "transformers", "accelerate", "timm")
    return {package: importlib.metadata.version(package) for package in packages}


def load_report(path: str | Path) -> PruningReport:
    """Read a report: the file, or the folder of a run that holds it."""
    path = Path(path, REPORT_NAME) if Path(path).is_dir() else Path(path)
    try:
        data = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise PruningError(f"{path} is not a complete report ({error}): take another copy") from None
    return PruningReport.from_dict(data, str(path))
