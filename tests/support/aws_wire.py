"""A wire between a test and moto: it counts calls, breaks them, and checks the versions of tables as AWS's Glue does.
What is broken, and who is killed at which call, is the test's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from threading import RLock
from typing import Any
from urllib.parse import urlsplit

import boto3

from tests.support.http_server import http_server
from tests.support.proxy import Forwarding
from tests.support.servers import ACCESS_KEY, REGION, SECRET_KEY


class Break(StrEnum):
    """The ways in which a call is broken."""

    DENIED = "refused, and not done"
    LOST = "done, and the answer lost"
    LATE = "not answered, and done when deliver() is called"
    DOWN = "500, and not done"


@dataclass
class Wire:
    """The wire, and what it does to calls."""

    target: str
    uri: str = ""
    """Where clients connect."""
    calls: list[str] = field(default_factory=list)
    """What was asked, such as ``UpdateTable`` or ``PUT /plain/key``."""
    breaks: Callable[[str], Break | None] = lambda call: None
    """Says how a call is broken, by its name; None: it goes through."""
    before: Callable[[int], object] = lambda number: None
    """Called before each call, with its number from 1 on."""
    after: Callable[[int], object] = lambda number: None
    """Called behind each call, before its answer."""
    late: list[Callable[[], object]] = field(default_factory=list)
    lock: Any = field(default_factory=RLock)

    def deliver(self) -> None:
        """Has the late calls done."""
        while self.late:
            self.late.pop(0)()

    def client(self, service: str) -> Any:
        """A client past the wire."""
        return client(service, self.target)

    def is_stale(self, request: dict[str, Any]) -> bool:
        """Whether an UpdateTable is of a version of the table that is not there any more, as AWS's Glue finds it."""
        there = self.client("glue").get_table(DatabaseName=request["DatabaseName"], Name=request["TableInput"]["Name"])
        return "VersionId" in request and request["VersionId"] != there["Table"]["VersionId"]


@cache
def client(service: str, uri: str) -> Any:
    """The tests' own client of what is there."""
    return boto3.Session(ACCESS_KEY, SECRET_KEY, region_name=REGION).client(service, endpoint_url=uri)


@contextmanager
def aws_wire(target: str) -> Iterator[Wire]:
    """A wire on a free loopback port in front of ``target``."""
    state = Wire(target)

    class Handler(_Broken):
        upstream = urlsplit(target).netloc
        wire = state

    with http_server(Handler) as state.uri:
        yield state


class _Broken(Forwarding):
    wire: Wire

    def _handle(self) -> None:
        body = self.body()
        glue = self.headers.get("X-Amz-Target", "").removeprefix("AWSGlue.")
        call = glue or f"{self.command} {self.path}"
        with self.wire.lock:
            self.wire.calls.append(call)
            number = len(self.wire.calls)
        self.wire.before(number)
        broken = self.wire.breaks(call)
        if broken is Break.DENIED:
            self._refuse(400 if glue else 403, "AccessDeniedException")
        elif broken is Break.DOWN:
            self.answer(500, b"", {})
        elif broken is Break.LATE:
            self.wire.late.append(lambda: self._done(glue, body))
            self.close_connection = True
        else:
            answer = self._done(glue, body)
            self.wire.after(number)
            if broken is Break.LOST:
                self.close_connection = True
            elif answer is None:
                self._refuse(400, "ConcurrentModificationException")
            else:
                self.answer(*answer)

    do_GET = do_POST = do_HEAD = do_DELETE = do_PUT = _handle

    def _done(self, glue: str, body: bytes) -> tuple[int, bytes, dict[str, str]] | None:
        if not glue:
            return self.forward(body)
        with self.wire.lock:  # moto's Glue is not atomic
            if glue == "UpdateTable" and self.wire.is_stale(json.loads(body)):
                return None
            return self.forward(body)

    def _refuse(self, status: int, code: str) -> None:
        self.answer(status, json.dumps({"__type": code, "message": "by the test"}).encode(), {})
