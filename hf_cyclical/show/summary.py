"""The head of the page and its tables, from what a job has told."""

from pathlib import Path

from hf_cyclical.reports import PruningReport, final_metrics
from hf_cyclical.reports import show as shown

from .job import FINISHED, RUNNING, Job, Snapshot
from .markup import note, table, text
from .predictions import DENSE, PRUNED, Predictions

_STATES = {FINISHED: "finished", RUNNING: "running", "stopped": "stopped before its end"}


def head(job: Job, now: Snapshot) -> str:
    """Name, state and the figures that one looks for first."""
    report = now.report
    state = f"<span class='state {now.state}'>{_STATES[now.state]}</span>"
    title = f"<h1>{text(_title(job, report), most=120)} {state}</h1>"
    place = f"<p class='place'>{text(_progress(now))} <code>{text(job.folder)}</code></p>"
    if report is None:
        return title + place + note(now.problem or "There is nothing to see yet.")
    return title + place + f"<div class='figures'>{''.join(_figure(*each) for each in _figures(now, report))}</div>"


def _title(job: Job, report: PruningReport | None) -> str:
    if report is None:
        return job.folder.resolve().name
    parts = [Path(str(report.about[key])).name for key in ("model", "dataset") if report.about.get(key)]
    return " on ".join(parts) or job.folder.resolve().name


def _progress(now: Snapshot) -> str:
    if now.report is None:
        return "In"
    updates = f"{now.updates:,} of {now.report.updates:,} updates"
    newest = " in the newest checkpoint" if now.state == RUNNING else ""
    return f"{now.report.config.get('method')}, {updates}{newest}, in"


def _figure(name: str, value: str, more: str) -> str:
    return f"<div><b>{text(value)}</b><span>{text(name)}</span><small>{text(more)}</small></div>"


def _figures(now: Snapshot, report: PruningReport) -> list[tuple[str, str, str]]:
    """A name, a value and a remark for each."""
    figures, metric = [], report.metric
    last = report.cycles[-1] if report.cycles else None
    when = f", cycle {last.cycle}" if last and not report.layers else ""
    if metric:
        found = final_metrics(report) or (last.metrics if last else {})
        before = "before" if report.start_sparsity else "dense"
        dense = f"{before} {shown(report.dense[metric], metric)}" if metric in report.dense else ""
        figures.append((f"{metric}{when}", shown(found.get(metric), metric), dense))
    target = report.config.get("target_sparsity")
    goal = f"target {shown(target)}" if isinstance(target, float) else ""
    sparsity = report.sparsity if report.layers else _last_sparsity(report)
    figures.append(("sparsity", shown(sparsity), goal))
    layers = report.layers or (last.layers if last else ())
    if layers:
        kept, weights = sum(layer.kept for layer in layers), sum(layer.weights for layer in layers)
        figures.append((f"weights kept{when}", f"{kept:,}", f"of {weights:,} prunable ones"))
    planned = report.config.get("cycles")
    of = f"of {planned:,}" if isinstance(planned, int) else ""
    figures.append(("cycles ended", f"{len(report.cycles):,}", of))
    if last and last.empty_rows is not None:
        figures.append((f"empty rows{when}", f"{last.empty_rows:,}", f"{last.floor_rows or 0:,} more at the floor"))
    return figures


def _last_sparsity(report: PruningReport) -> float:
    return report.masks[-1][1] if report.masks else report.start_sparsity


def cycle_table(report: PruningReport | None) -> str:
    """A row for each cycle, the dense model first."""
    if report is None:
        return ""
    metric = report.metric
    head = ["", *([metric] if metric else []), "sparsity", "regrown", "recovered", "mask distance", "empty rows"]
    rows = [[*head, "at the floor", "learning rate"]]
    if metric and metric in report.dense:
        before = "before" if report.start_sparsity else "dense"
        rows.append([before, shown(report.dense[metric], metric), shown(report.start_sparsity), *[""] * 6])
    for c in report.cycles:
        measured = [shown(c.metrics.get(metric), metric)] if metric else []
        masks = [shown(c.sparsity), shown(c.regrown), f"{c.recovered:,}", f"{c.mask_distance:.3f}"]
        counts = ["-" if count is None else f"{count:,}" for count in (c.empty_rows, c.floor_rows)]
        rows.append([f"cycle {c.cycle}", *measured, *masks, *counts, f"{c.learning_rate:.4g}"])
    empty = "" if report.cycles else note("No cycle has ended yet.")
    return table(rows, "cycles") + empty


def time_table(found: Predictions) -> str:
    """A row for each model and engine."""
    first = DENSE if (DENSE, "torch") in found.milliseconds else PRUNED
    reference = found.milliseconds[first, "torch"]
    rows = [["model", "engine", "milliseconds", f"times as fast as {first} in torch"]]
    for (model, engine), milliseconds in found.milliseconds.items():
        rows.append([model, engine, f"{milliseconds:.3g}", f"{reference / milliseconds:.2f}"])
    return table(rows, "times") + "".join(map(note, found.notes))
