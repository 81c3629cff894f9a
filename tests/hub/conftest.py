import pytest
from support.local_hub import LocalHub
from support.local_hub.samples import CARD, WEIGHTS
from support.pushing import finished_run, pushing_clients


@pytest.fixture(scope="session")
def hub_process():
    with LocalHub() as hub:
        yield hub


@pytest.fixture
def hub(hub_process):
    """An empty Hub. It stays on one port, which the preloaded clients know, and forgets between the tests."""
    hub_process.reset()
    return hub_process


@pytest.fixture
def run():
    """A finished run, to be left as it is."""
    return finished_run()


@pytest.fixture
def clients(hub):
    """Clients with hf_cyclical imported beforehand."""
    return pushing_clients(hub)


@pytest.fixture
def folder(tmp_path):
    """What is worth a repository."""
    (tmp_path / "plots").mkdir()
    (tmp_path / "README.md").write_text(CARD)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "plots" / "figure.svg").write_text("<svg/>")
    (tmp_path / "model.safetensors").write_bytes(WEIGHTS)
    return tmp_path
