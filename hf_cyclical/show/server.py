"""Serves the page on this machine. Nobody else is called, by the server or by the page."""

import os
import socket
import threading
import webbrowser
from collections.abc import Callable
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from hf_cyclical.core import PruningError
from hf_cyclical.formats import CONFIG, MAX_BYTES, MAX_CONFIG_BYTES, PROCESSORS, WEIGHTS
from hf_cyclical.models import find_files

from .job import Job

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# The page may talk to its own server only, whatever is in a card; Gradio's own scripts need the two exceptions.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; worker-src 'self' blob:; object-src 'none'; "
    "base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
_LOCAL_NAMES = ["127.0.0.1", "localhost", "[::1]"]
_MOST_IMAGE_BYTES = "20mb"


def serve(
    job: Job,
    *,
    dense: str | None = None,
    host: str = "127.0.0.1",
    port: int = 7860,
    browser: bool = True,
    tell: Callable[[str], object] = print,
) -> None:
    """Serve the page of a job until the process is interrupted.

    Args:
        job: The job.
        dense: A folder or Hub id of the dense model to compare with.
        host: The address to listen at.
        port: The port; 0 takes any that is free.
        browser: Whether to open the page in the user's browser.
        tell: Is called with the address once the page is there.

    Raises:
        PruningError: If there is no such dense model, if the port is taken, or if the address is not of this machine.
    """
    import uvicorn  # of an extra, as all that Gradio needs

    if dense is not None:
        find_files(dense, None, {**dict.fromkeys((CONFIG, *PROCESSORS), MAX_CONFIG_BYTES), WEIGHTS: MAX_BYTES})
    listener = _bound(host, port)
    port = listener.getsockname()[1]
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104 - compared, not bound
    address = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}"

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            tell(address)
            if browser:
                threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    config = uvicorn.Config(make_app(job, dense, host, port), log_level="warning", timeout_graceful_shutdown=1)
    Server(config).run([listener])


def make_app(job: Job, dense: str | None, host: str, port: int) -> "FastAPI":
    """The page as an application."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before it is imported, which it would tell its makers
    import gradio as gr
    from fastapi import FastAPI
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    from .page import Page, style

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(OwnPagesOnly)
    if _is_loopback(host):
        # A page of the web whose name is made to lead here does not get in.
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*_LOCAL_NAMES, host], www_redirect=False)
    fonts: dict[str, Any] = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}
    return gr.mount_gradio_app(
        app,
        Page(job, dense).build(),
        path="/",
        server_name=host,
        server_port=port,
        footer_links=[],
        run_history=False,
        max_file_size=_MOST_IMAGE_BYTES,
        ssr_mode=False,
        enable_monitoring=False,
        mcp_server=False,
        pwa=False,
        theme=gr.themes.Default(primary_hue="blue", neutral_hue="slate", **fonts),
        css=style(),
    )


class OwnPagesOnly:
    """Tells browsers that the page loads from its own server only."""

    def __init__(self, app: "ASGIApp") -> None:
        self.app = app

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        async def send_with_policy(message: "Message") -> None:
            if message["type"] == "http.response.start":
                more = [(b"content-security-policy", _POLICY.encode()), (b"referrer-policy", b"no-referrer")]
                message["headers"] = [*message["headers"], *more]
            await send(message)

        await self.app(scope, receive, send_with_policy)


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
    except OSError as error:
        raise PruningError(f"port {port} of {host} cannot be used, choose another --port: {error.strerror}") from error
    return listener


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
