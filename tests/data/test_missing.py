"""A data set that is not there is said at once."""

import http.server
import threading

import datasets
import pytest
from huggingface_hub import constants
from support.made_data import load

from hf_cyclical.core import PruningError


@pytest.fixture
def online(monkeypatch):
    """The Hub may be asked, and nobody may wait before asking again."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("waited to try again"))

    def at(url):
        monkeypatch.setattr(constants, "ENDPOINT", url)
        monkeypatch.setattr(datasets.config, "HF_ENDPOINT", url)

    return at


@pytest.fixture
def empty_hub():
    """A Hub without any data set; yields its address and what it was asked for."""
    asked = []

    class Nothing(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_HEAD(self):
            self.do_GET()

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Nothing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("streaming", [False, True])
def test_on_the_hub(online, empty_hub, streaming):
    url, asked = empty_hub
    online(url)
    with pytest.raises(PruningError, match="'org/nothing' is neither a folder here nor on the Hub: check the spelling"):
        load("org/nothing", streaming=streaming)
    assert [path for path in asked if "nothing" in path] == ["/api/datasets/org/nothing"]


@pytest.mark.parametrize("streaming", [False, True])
def test_with_the_hub_out_of_reach(online, streaming):
    online("http://127.0.0.1:9")
    with pytest.raises(
        PruningError, match="'org/nothing' is not a folder, and the Hub cannot be reached: check the name"
    ):
        load("org/nothing", streaming=streaming)
    assert not constants.HF_HUB_OFFLINE
    assert not datasets.config.HF_HUB_OFFLINE
