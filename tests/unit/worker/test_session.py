"""How a worker's JVM ends: quietly, whatever Python still tells it. The JVM is a socket here that resets at each word.
Sessions on a real JVM are in tests/integration/."""

from __future__ import annotations

import gc
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from py4j.clientserver import (
    SHUTDOWN_FINALIZER_WORKER,
    ClientServer,
    FinalizerWorker,
    JavaParameters,
    PythonParameters,
)
from py4j.java_gateway import JavaObject
from pyspark import SparkContext

from lakehouse_assets.worker.session import end_jvm

RESET = struct.pack("ii", 1, 0)


@pytest.fixture
def dying() -> Iterator[ClientServer]:
    """py4j's side of a JVM that is about to end: it still takes connections, and answers nothing any more."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_reset_all, args=[server], daemon=True).start()
        port = server.getsockname()[1]
        gateway = ClientServer(JavaParameters(port=port), PythonParameters(eager_load=False))
        gateway.proc = subprocess.Popen(["cat"], stdin=subprocess.PIPE)  # ends with its input, as the JVM does
        yield gateway
        gateway.proc.kill()


def _reset_all(server: socket.socket) -> None:
    with suppress(OSError):  # the server is closed
        while True:
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


def test_objects_that_python_lets_go_of_while_the_jvm_ends_are_no_traceback(
    dying: ClientServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", dying)
    held = [JavaObject(f"o{n}", dying._gateway_client) for n in range(3)]
    end_jvm()
    held.clear()
    gc.collect()
    dying._gateway_client.finalizer_deque.appendleft(SHUTDOWN_FINALIZER_WORKER)
    for thread in threading.enumerate():  # those of other tests' JVMs stay
        if isinstance(thread, FinalizerWorker) and thread.deque is dying._gateway_client.finalizer_deque:
            thread.join()
    assert dying.proc.returncode == 0
    assert not caplog.records
