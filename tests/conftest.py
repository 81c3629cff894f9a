import os

# Two cores that others use too: one thread a process is the fastest and the most repeatable.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("HF_HUB_OFFLINE", None)  # tests push to a server of their own, and reach no other

import functools
import gc

import pytest
from hypothesis import HealthCheck, settings
from support.little_memory import little_memory  # noqa: F401 - a fixture
from support.tiny import build_trainer

settings.register_profile("busy", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_collection_finish(session):
    """Every `train()` collects garbage: what was imported need not be looked at each time."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config):
    gc.unfreeze()


@pytest.fixture
def make_trainer(tmp_path):
    """A trainer on tiny data: `make_trainer(pruning={...}, max_steps=..., ...)`; no pruning makes a plain Trainer."""
    return functools.partial(build_trainer, tmp_path / "run")
