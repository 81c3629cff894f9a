"""Experiments without their runs: reports and settings made by hand."""

from pathlib import Path

from hf_cyclical.paper import EXPERIMENTS, PRESETS, Cell, Comparison, Setting
from hf_cyclical.reports import CycleReport, LayerReport, PruningReport


def report(accuracies, distances=None, seed=1, s=0.9):
    cycles = [
        CycleReport(i, 100 * i, 10.0 * i, s, 0.1, 5, d, 0.01, True, {"accuracy": a})
        for i, (a, d) in enumerate(zip(accuracies, distances or [0.0] * len(accuracies), strict=True), start=1)
    ]
    evaluations = [{"update": c.update, **c.metrics} for c in cycles]
    layers = [LayerReport("conv", [10, 10], 100, round(100 * (1 - s)), 1)]
    return PruningReport(
        {"method": "cyclical"}, cycles[-1].update, 0, 120, cycles=cycles, evaluations=evaluations, layers=layers,
        dense={"accuracy": 0.92}, about={"seed": seed},
    )  # fmt: skip


def setting(name, **more):
    return Setting(
        name, **{"scale": 1.0, "model": "cifar_resnet20", "dataset": "uoft-cs/cifar10", "arguments": []} | more
    )


def intervals(name, **budget):
    """How many updates lie between two choices of masks, by row."""
    comparison = Comparison(setting(name, **budget), Path("out"), (), {}, trains_dense=False)
    found = {}
    for variant in EXPERIMENTS[name].variants:
        values = PRESETS[EXPERIMENTS[name].preset].settings | variant.settings
        given = comparison.settings(Cell(variant.label, 0.98, 1), "model").get("delta_t", [values["delta_t"]])
        found[variant.label] = given[0] if given[0] == "auto" else int(given[0])
    return found
