"""Plots from a report alone."""

from pathlib import Path

from .report import PruningReport

FIGURE_NAME = "pruning_run.png"


def plot_run(report: PruningReport, path: str | Path) -> Path:
    """Figure 1 of the paper for this run: sparsity, learning rate, regrown weights and accuracy over the updates.

    Args:
        report: The run.
        path: The file to write; its ending sets the format (.png, .svg).
    """
    from matplotlib.figure import Figure  # an optional dependency; Figure itself needs no display

    metric = report.metric
    figure = Figure(figsize=(7, 7 if metric else 5.5), layout="constrained")
    axes = figure.subplots(4 if metric else 3, 1, sharex=True)
    for axis in axes:
        axis.grid(alpha=0.3)
        for cycle in report.cycles:
            axis.axvline(cycle.update, color="0.6", linewidth=0.8, linestyle=":")
    masks = [[0, report.start_sparsity, 0.0], *report.masks]
    masks.append([report.updates, *masks[-1][1:]])
    updates = [point[0] for point in masks]
    axes[0].step(updates, [point[1] for point in masks], where="post", color="tab:red")
    axes[0].set_ylabel("sparsity")
    axes[0].set_ylim(-0.03, 1.03)
    axes[1].step(*zip(*report.schedule, strict=True), where="post", color="tab:green")
    axes[1].set_ylabel("learning rate")
    axes[2].step(updates, [100 * point[2] for point in masks], where="post", color="tab:blue")
    axes[2].set_ylabel("regrown weights (%)")
    if metric:
        _plot_metric(axes[3], report, metric)
    axes[-1].set_xlabel("optimizer updates")
    figure.suptitle(_title(report), fontsize=11)
    figure.savefig(path, dpi=120)
    return Path(path)


def _plot_metric(axis, report: PruningReport, metric: str) -> None:
    scale = 100 if metric.endswith("accuracy") else 1
    points = [(e["update"], scale * e[metric]) for e in report.evaluations if metric in e]
    ends = [(c.update, scale * c.metrics[metric]) for c in report.cycles if metric in c.metrics]
    if len(points) > len(ends) + 1:
        axis.plot(*zip(*points, strict=True), color="tab:orange", linewidth=1, alpha=0.6)
    if ends:
        axis.plot(*zip(*ends, strict=True), color="tab:orange", marker="o", label="end of each cycle")
    if metric in report.dense:
        before = "before" if report.start_sparsity else "dense"
        axis.axhline(scale * report.dense[metric], color="0.3", linestyle="--", linewidth=1, label=before)
    axis.set_ylabel(f"{metric} (%)" if metric.endswith("accuracy") else metric)
    if ends or metric in report.dense:
        axis.legend(loc="lower right", fontsize=8)


def _title(report: PruningReport) -> str:
    # Of a folder the last part of its path says enough.
    about = " on ".join(Path(report.about[key]).name for key in ("model", "dataset") if key in report.about)
    goal = report.config["method"] + (f", sparsity {report.sparsity:.3f}" if report.layers else "")
    return f"{goal}: {about}" if about else goal
