import datasets
import pytest


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    """No network, no waiting, and a cache that goes away."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0)
    datasets.disable_progress_bars()
