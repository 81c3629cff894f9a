"""A report and a record to make cards of."""

import pytest
from support.card_reading import HASH

from hf_cyclical import CycleReport, PruningReport
from hf_cyclical.reports import LayerReport


@pytest.fixture
def report():
    cycles = [
        CycleReport(
            cycle=c, update=50 * c, epoch=2.0 * c, sparsity=0.9, regrown=0.01 * (c - 1), recovered=1007 * (c - 1),
            mask_distance=0.2 * (c - 1), learning_rate=0.01, at_target=True,
            metrics={"loss": 0.5, "accuracy": 0.7 + 0.05 * c},
        )
        for c in (1, 2)
    ]  # fmt: skip
    return PruningReport(
        config={"method": "cyclical", "target_sparsity": 0.9, "cycles": 2, "scope": "local", "exclude": None},
        updates=100,
        dense_updates=0,
        parameters=2500,
        masks=[[0, 0.0, 0.0], [40, 0.9, 0.0], [50, 0.45, 0.45], [90, 0.9, 0.01]],
        evaluations=[{"update": 0, "accuracy": 0.84}] + [{"update": c.update, **c.metrics} for c in cycles],
        dense={"loss": 0.4, "accuracy": 0.84},
        cycles=cycles,
        layers=[LayerReport("conv.weight", [10, 20, 10], 2000, 200, 2)],
        about={
            "model": "timm/resnet18.a1_in1k",
            "dataset": "uoft-cs/cifar10",
            "seed": 3,
            "processes": 2,
            "command": "accelerate launch scripts/prune.py --seed 3",
            "versions": {"torch": "2.9", "timm": "1.0"},
        },
    )


@pytest.fixture
def metadata():
    return {
        "achieved": {
            "prunable": 2000, "prunable_zeros": 1800, "sparsity": 0.9,
            "parameters": 2500, "zeros": 1850, "overall_sparsity": 0.72,
        },
        "tensors": [
            {"name": "conv.weight", "shape": [10, 20, 9], "weights": 1800, "zeros": 1500, "mask_sha256": HASH},
            {"name": "fc.weight", "shape": [20, 10], "weights": 200, "zeros": 200, "mask_sha256": HASH},
        ],
        "mask_sha256": HASH,
        "base_model": {"id": "timm/resnet18.a1_in1k", "revision": "0" * 40},
        "weights": {"file": "model.safetensors", "layout": "dense", "sha256": HASH, "bytes": 10_400},
    }  # fmt: skip
