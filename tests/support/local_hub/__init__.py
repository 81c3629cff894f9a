"""A Hub on this machine, for the unmodified clients: `LocalHub` serves, `run_client` and `ask` run code against it.

    def test_push(hub, tmp_path):
        hub.put("user/model", {"config.json": b"{}"}, private=True)
        code, out, err = run_client(hub, "from huggingface_hub import whoami; print(whoami()['name'])")
        assert ask(hub, function, tmp_path) == ...   # a function that imports what it needs
        assert not hub.received(b"secret")

It keeps everything in memory, knows models only, one user (`user`, a member of `org`) with two tokens, and the
transfer by LFS: clients are started with Xet disabled.
"""

from .clients import ask, client_environment, run_client
from .server import LocalHub
from .store import ORGANISATION, READER, USER, WRITER, Huge

__all__ = [
    "ORGANISATION", "READER", "USER", "WRITER", "Huge", "LocalHub", "ask", "client_environment", "run_client",
]  # fmt: skip
