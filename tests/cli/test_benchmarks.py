"""scripts/benchmark.py still runs, with a few tiny updates; what it measures is not tested."""

import argparse
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        del sys.modules[name]


@pytest.mark.usefixtures("scripts")
def test_precision(monkeypatch):
    from benchmarks import precision

    for name, value in {"BATCH": 4, "UPDATES": 4, "WARM_UP": 1, "ROUNDS": 2}.items():
        monkeypatch.setattr(precision, name, value)
    rows = precision.precision(argparse.Namespace())
    assert [row.what for row in rows] == list(precision.VARIANTS)
    assert all(row.ratio > 0 for row in rows)
