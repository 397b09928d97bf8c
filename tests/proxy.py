"""A small HTTP proxy in front of a REST catalog that loses or forges the answer to a commit.
It passes everything on unchanged (so signatures hold); what it breaks, it breaks on the wire."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urlsplit


class Fault(StrEnum):
    """What happens to a commit. All but REFUSED reach the catalog first, and land."""

    DROPPED = "connection closed without an answer"
    GARBLED = "200 with half an answer"
    UNKNOWN = "500"
    TIMEOUT = "504"
    CONFLICT = "409, as from a gateway that sent the request twice"
    REFUSED = "503 before it reached the catalog"


@dataclass
class Proxy:
    """uri: where clients connect. faults: one is taken for each commit, in order; then commits go through."""

    uri: str = ""
    faults: list[Fault] = field(default_factory=list)
    commits: int = 0


@contextmanager
def proxy(target: str) -> Iterator[Proxy]:
    """A proxy on a free loopback port in front of ``target``."""
    state = Proxy()

    class Handler(_Forward):
        upstream = urlsplit(target).netloc
        proxy = state

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.uri = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Forward(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    upstream: str
    proxy: Proxy

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = None
        if self.command == "POST" and "/tables/" in self.path:
            self.proxy.commits += 1
            fault = self.proxy.faults.pop(0) if self.proxy.faults else None
        if fault is Fault.REFUSED:
            self._answer(503, b"")
            return
        status, answer = self._forward(body)
        match fault:
            case Fault.DROPPED:
                self.close_connection = True
            case Fault.GARBLED:
                self._answer(200, answer[: len(answer) // 2])
            case Fault.UNKNOWN:
                self._answer(500, b"")
            case Fault.TIMEOUT:
                self._answer(504, b"")
            case Fault.CONFLICT:
                self._answer(409, b"")
            case _:
                self._answer(status, answer)

    do_GET = do_POST = do_HEAD = do_DELETE = do_PUT = _handle

    def _forward(self, body: bytes) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.upstream, timeout=60)
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        response = connection.getresponse()
        answer = response.read()
        connection.close()
        return response.status, answer

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""
