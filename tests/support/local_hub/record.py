"""What reached the server, and the faults that wait for it."""

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import Event
from urllib.parse import unquote


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes = b""
    status: int | None = None  # None: the connection was dropped
    complete: bool = False

    def __repr__(self):
        return f"{self.method} {self.path} {len(self.body)} B -> {self.status or 'dropped'}"

    def contains(self, secret: bytes) -> bool:
        """Whether it was sent, plainly or as base64 or JSON hide it; a token's own header does not count."""
        headers = [f"{name}: {value}" for name, value in self.headers.items() if name != "authorization"]
        texts = [self.path, unquote(self.path), *headers]
        return any(secret in part for part in [*(text.encode() for text in texts), *_readings(self.body)])


def _readings(body: bytes) -> Iterator[bytes]:
    yield body
    if not body.lstrip().startswith(b"{"):
        return
    for line in [body, *body.splitlines()]:  # one JSON text, or one on each line
        try:
            data = json.loads(line)
        except ValueError:
            continue
        for text in _strings(data):
            yield text.encode()
            try:
                yield base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError):
                continue


def _strings(data) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict):
        for key, value in data.items():
            yield key
            yield from _strings(value)
    elif isinstance(data, list):
        for value in data:
            yield from _strings(value)


@dataclass
class Fault:
    """Meets the next requests that match; `hits` tells how many it met."""

    method: re.Pattern
    path: re.Pattern
    times: int | None
    status: int | None = None
    after_bytes: int | None = None
    lose_answer: bool = False
    released: Event | None = None  # a request hangs until then
    before: Callable[[], None] | None = None  # what somebody else does meanwhile
    message: str = "Injected fault"
    code: str = ""
    hits: int = 0
    requests: list[Request] = field(default_factory=list)

    def meets(self, request: Request) -> bool:
        wanted = self.method.fullmatch(request.method) and self.path.search(request.path)
        if not wanted or (self.times is not None and self.hits >= self.times):
            return False
        self.hits += 1
        self.requests.append(request)
        return True
