"""A small HTTP proxy in front of a REST catalog or of S3: answers to commits get lost or forged, all fails for a while.
It passes everything on unchanged (so signatures hold); what it breaks, it breaks on the wire."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from threading import Event, Lock
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from tests.support.http_server import Handler, http_server

# https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
SLOW_DOWN = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>SlowDown</Code>'
    b"<Message>Please reduce your request rate.</Message><RequestId>0</RequestId><HostId>0</HostId></Error>"
)
ACCESS_DENIED = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>AccessDenied</Code>'
    b"<Message>Access Denied</Message><RequestId>0</RequestId><HostId>0</HostId></Error>"
)
XML = {"Content-Type": "application/xml"}
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
# Of one connection only, so no business of the other's.
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}


class Fault(StrEnum):
    """What happens to a commit. All but REFUSED reach the catalog first, and land."""

    DROPPED = "connection closed without an answer"
    GARBLED = "200 with half an answer"
    UNKNOWN = "500"
    TIMEOUT = "504"
    CONFLICT = "409, as from a gateway that sent the request twice"
    REFUSED = "503 before it reached the catalog"


class Weather(StrEnum):
    """What happens to every request while it lasts; none reaches the server."""

    SLOW_DOWN = "503 SlowDown, in S3's words"
    SILENT = "no answer, and the connection stays open"
    CUT = "connection closed without an answer"


@dataclass
class Trouble:
    """Bad weather for some time, once.

    begins: whether it begins with a request, by its method and path. seconds: how long it lasts from then on.
    hits: how many requests met it.
    """

    weather: Weather
    begins: Callable[[str, str], bool] = lambda method, path: True
    seconds: float = inf
    hits: int = 0
    _ends: float | None = None  # on time.monotonic()
    _lock: Lock = field(default_factory=Lock)

    def meets(self, method: str, path: str) -> bool:
        with self._lock:
            if self._ends is None and self.begins(method, path):
                self._ends = time.monotonic() + self.seconds
            met = self._ends is not None and time.monotonic() < self._ends
            self.hits += met
        return met

    @property
    def left(self) -> float:
        """Seconds until it is over."""
        return max(0.0, (self._ends or 0.0) - time.monotonic())


@dataclass
class Proxy:
    """uri: where clients connect. faults: one is taken for each commit, in order; then commits go through. trouble:
    what all requests may meet. heard: is told of each request that goes through, by its method, path, headers and body.
    refuses: the requests that nobody may make. adds: headers that no client sent. over: set when the proxy ends."""

    uri: str = ""
    heard: Callable[[str, str, Mapping[str, str], bytes], None] = lambda *request: None
    refuses: Callable[[str, str], bool] = lambda method, path: False
    adds: Mapping[str, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    commits: int = 0
    trouble: Trouble | None = None
    over: Event = field(default_factory=Event)


@contextmanager
def proxy(target: str, **fields: Any) -> Iterator[Proxy]:
    """A proxy on a free loopback port in front of ``target``. fields: Proxy's."""
    state = Proxy(**fields)

    class Forward(_Forward):
        upstream = urlsplit(target).netloc
        proxy = state

    with http_server(Forward) as state.uri:
        try:
            yield state
        finally:
            state.over.set()


class Forwarding(Handler):
    """Base of handlers that pass a request on as it is. upstream: host and port of whom it is for."""

    upstream: str

    def body(self) -> bytes:
        """As it is on the wire: where it comes in chunks, their sizes and trailers with it."""
        if self.headers.get("Transfer-Encoding") != "chunked":
            return super().body()
        read = []
        while size := int((line := self.rfile.readline()).partition(b";")[0], 16):
            read += [line, self.rfile.read(size + 2)]
        while True:
            read.append(line)
            if line == b"\r\n":
                return b"".join(read)
            line = self.rfile.readline()

    def forward(self, body: bytes, adds: Mapping[str, str] = NO_HEADERS) -> tuple[int, bytes, dict[str, str]]:
        """The upstream's status, answer and headers. adds: headers that no client sent."""
        connection = http.client.HTTPConnection(self.upstream, timeout=60)
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in [*self.headers.items(), *adds.items()]:
            connection.putheader(name, value)
        connection.endheaders(body)
        response = connection.getresponse()
        answer = response.read()
        connection.close()
        headers = {name: value for name, value in response.getheaders() if name.lower() not in HOP_BY_HOP}
        if self.command == "HEAD":
            headers["Content-Length"] = response.getheader("Content-Length", "0")
        return response.status, answer, headers


class _Forward(Forwarding):
    proxy: Proxy

    def _handle(self) -> None:
        body = self.body()
        trouble = self.proxy.trouble
        if trouble and trouble.meets(self.command, self.path):
            self._suffer(trouble)
        elif self.proxy.refuses(self.command, self.path):
            self.answer(403, ACCESS_DENIED, XML)
        elif self.command == "POST" and "/tables/" in self.path:
            self.proxy.commits += 1
            self._commit(body, self.proxy.faults.pop(0) if self.proxy.faults else None)
        else:
            self.answer(*self._forward(body))

    do_GET = do_POST = do_HEAD = do_DELETE = do_PUT = _handle

    def _suffer(self, trouble: Trouble) -> None:
        if trouble.weather is Weather.SLOW_DOWN:
            self.answer(503, SLOW_DOWN, XML)
            return
        if trouble.weather is Weather.SILENT:
            self.proxy.over.wait(min(trouble.left, 3600.0))
        self.close_connection = True

    def _commit(self, body: bytes, fault: Fault | None) -> None:
        if fault is Fault.REFUSED:
            self.answer(503, b"", {})
            return
        status, answer, headers = self._forward(body)
        match fault:
            case Fault.DROPPED:
                self.close_connection = True
            case Fault.GARBLED:
                self.answer(200, answer[: len(answer) // 2], headers)
            case Fault.UNKNOWN:
                self.answer(500, b"", {})
            case Fault.TIMEOUT:
                self.answer(504, b"", {})
            case Fault.CONFLICT:
                self.answer(409, b"", {})
            case _:
                self.answer(status, answer, headers)

    def _forward(self, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        self.proxy.heard(self.command, self.path, dict(self.headers.items()), body)
        return self.forward(body, self.proxy.adds)
