"""Reports of any size, made by hand."""

from dataclasses import replace

from hf_cyclical import CycleReport, PruningReport
from hf_cyclical.reports import LayerReport


def made(layers=8, cycles=4, name="stage.{}.conv.weight", **changes):
    """A report of any size."""
    rows = [
        CycleReport(
            cycle=c, update=10 * c, epoch=float(c), sparsity=0.9, regrown=0.01 * c, recovered=c, mask_distance=0.1,
            learning_rate=0.1, at_target=True, metrics={"accuracy": 0.5 + 0.02 * c},
        )
        for c in range(1, cycles + 1)
    ]  # fmt: skip
    values = {
        "config": {"method": "cyclical"},
        "updates": 10 * cycles,
        "dense_updates": 0,
        "parameters": 10**6,
        "schedule": [[t, 0.1] for t in range(10 * cycles)],
        "masks": [[t, 0.9, 0.01] for t in range(10 * cycles)],
        "evaluations": [{"update": c.update, **c.metrics} for c in rows],
        "cycles": rows,
        "layers": [LayerReport(name.format(i), [100, 10], 1000, 100 + i, 0) for i in range(layers)],
    }
    return PruningReport(**(values | changes))


def without_metrics(report):
    return replace(report, dense={}, evaluations=[], cycles=[replace(c, metrics={}) for c in report.cycles])


def with_metric(report, name):
    """The report with its accuracies under another name."""

    def renamed(values):
        return {name if key == "accuracy" else key: value for key, value in values.items()}

    return replace(
        report,
        dense=renamed(report.dense),
        evaluations=[renamed(row) for row in report.evaluations],
        cycles=[replace(c, metrics=renamed(c.metrics)) for c in report.cycles],
    )
