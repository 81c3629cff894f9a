"""The server itself: connections in, answers out, and what a test asks of it."""

import json
import re
import secrets
import socket
import struct
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from urllib.parse import parse_qs, urlsplit

from .clients import Clients
from .record import Fault, Request
from .routes import Answer, Call, answer
from .store import ROLES, Huge, RefusedError, Store

PIECE = 2**20


class LocalHub:
    """A Hub on a port of this machine: `with LocalHub() as hub: ... hub.url`."""

    def __init__(self):
        self.lock = Lock()
        self.hanging: list[Fault] = []
        self.reset()
        hub = self

        class BoundHandler(Handler):
            local_hub = hub

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), BoundHandler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.clients = Clients()

    def __enter__(self):
        Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *error):
        self.clients.close()
        self.server.shutdown()
        self.server.server_close()

    def reset(self) -> None:
        """Forget the repositories, the requests and the faults."""
        for fault in self.hanging:
            fault.released.set()
        self.hanging.clear()
        self.store, self.requests, self.faults = Store(), [], []

    def put(self, repo: str, files: dict[str, bytes | Huge], revision: str = "main", private: bool = False) -> str:
        """Add files as they are, good or hostile, with no client and no checks; gives the commit."""
        with self.lock:
            return self.store.put(repo, files, revision, private)

    def files(self, repo: str, revision: str = "main") -> dict[str, bytes | Huge]:
        """What is stored, but for the `.gitattributes` that every repository begins with."""
        files = self.store.repos[repo].at(revision).files
        return {path: file.content for path, file in files.items() if path != ".gitattributes"}

    def received(self, secret: bytes) -> bool:
        """Whether any request held this, in its address, headers (but `Authorization`) or body."""
        return any(request.contains(secret) for request in self.requests)

    def asked(self, method: str, path_regex: str) -> list[Request]:
        return [r for r in self.requests if r.method == method and re.search(path_regex, r.path)]

    def fail(self, method: str, path_regex: str, status: int = 500, times: int | None = 1, **fields) -> Fault:
        """Answer the next matching requests with an error; `times=None` is for ever.

        `method` is a pattern too ("GET|HEAD"). `code` sets the header that the clients look at ("GatedRepo"), `message`
        what they print.
        """
        return self._fault(method, path_regex, times, status=status, **fields)

    def drop(self, method: str, path_regex: str, after_bytes: int = 0, times: int | None = 1) -> Fault:
        """Cut the connection once so many bytes of the upload came in, or, of a GET, so many went out."""
        return self._fault(method, path_regex, times, after_bytes=after_bytes)

    def lose_answer(self, method: str, path_regex: str, times: int | None = 1) -> Fault:
        """Do what is asked and cut the connection in place of an answer."""
        return self._fault(method, path_regex, times, lose_answer=True)

    def hang(self, method: str, path_regex: str, times: int | None = None) -> Fault:
        """Take the next matching requests, and never answer."""
        self.hanging.append(self._fault(method, path_regex, times, released=Event()))
        return self.hanging[-1]

    def meanwhile(self, method: str, path_regex: str, action: Callable[[], None]) -> Fault:
        """Have somebody else do something before the next matching request is looked at."""
        return self._fault(method, path_regex, 1, before=action)

    def _fault(self, method, path_regex, times, **fields) -> Fault:
        self.faults.append(Fault(re.compile(method), re.compile(path_regex), times, **fields))
        return self.faults[-1]


class DroppedError(Exception):
    """The connection is gone, by the client or by a fault."""


class Handler(BaseHTTPRequestHandler):
    local_hub: LocalHub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body in one packet

    def handle_call(self):
        hub = self.local_hub
        request = Request(self.command, self.path, {name.lower(): value for name, value in self.headers.items()})
        with hub.lock:
            hub.requests.append(request)
            fault = next((fault for fault in hub.faults if fault.meets(request)), None)
        cut = fault.after_bytes if fault else None
        try:
            self.read_body(request, None if self.command == "GET" else cut)
            if fault and fault.released:
                fault.released.wait(60)
                raise DroppedError
            if fault and fault.before:
                fault.before()
            if fault and fault.status:
                raise RefusedError(fault.status, fault.message, fault.code)
            with hub.lock:
                result = answer(self.understand(request))
            if fault and fault.lose_answer:
                raise DroppedError
            request.status = result.status
            self.send(result, cut)
        except RefusedError as error:
            request.status = error.status
            self.send(self.refusal(error))
        except (DroppedError, ConnectionError, TimeoutError):
            request.status = None
            self.drop()

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_call  # noqa: N815

    def read_body(self, request: Request, cut: int | None) -> None:
        """All of it before anything is answered: what is left unread would be taken for the next request."""
        body = bytearray()
        try:
            for piece in self.pieces():
                body += piece
                if cut is not None and len(body) >= cut:
                    break
            if cut is not None:
                raise DroppedError
        finally:
            request.body = bytes(body[:cut])
        request.complete = True

    def pieces(self):
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while size := int(self.rfile.readline().split(b";")[0] or b"0", 16):
                yield self.exactly(size)
                self.rfile.readline()
            self.rfile.readline()
            return
        left = int(self.headers.get("Content-Length") or 0)
        while left:
            piece = self.exactly(min(left, 2**16))
            left -= len(piece)
            yield piece

    def exactly(self, size: int) -> bytes:
        piece = self.rfile.read(size)
        if len(piece) < size:
            raise DroppedError
        return piece

    def understand(self, request: Request) -> Call:
        kind, _, token = self.headers.get("Authorization", "").partition(" ")
        if token and (kind != "Bearer" or token not in ROLES):
            raise RefusedError(401, "Invalid credentials in Authorization header")
        path, query = urlsplit(self.path)[2:4]
        role, hub = ROLES.get(token), self.local_hub
        asked_range = self.headers.get("Range")
        return Call(hub.store, self.command, path, parse_qs(query), request.body, role, hub.url, asked_range)

    def refusal(self, error: RefusedError) -> Answer:
        headers = {"X-Error-Message": error.message.replace("\n", " ").encode("ascii", "replace").decode()}
        headers |= {"X-Error-Code": error.code} if error.code else {}
        headers |= error.fields.pop("headers", {})
        return Answer({"error": error.message, **error.fields}, headers, error.status)

    def send(self, result: Answer, cut: int | None = None) -> None:
        body = result.body
        headers = {"X-Request-Id": secrets.token_hex(8), **result.headers}
        if not isinstance(body, bytes | Huge):
            body = json.dumps(body).encode()
            headers["Content-Type"] = "application/json; charset=utf-8"
        if result.status >= 400 and self.command in ("POST", "PUT"):
            headers["Connection"] = "close"
        self.send_response(result.status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            for start in range(0, len(body) if cut is None else cut, PIECE):
                self.wfile.write(body[start : min(start + PIECE, len(body) if cut is None else cut)])
        self.wfile.flush()
        if cut is not None:
            raise DroppedError

    def drop(self) -> None:
        """Reset the connection; after a GET only close it, or what was sent already could be lost too."""
        if self.command != "GET":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        self.close_connection = True

    def log_message(self, *args):
        pass
