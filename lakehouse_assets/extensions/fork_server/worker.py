"""A chunk's work in a child of the fork server: attached to its JVM, in a session of its own."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from lakehouse_assets.environment.interpreter import end_process, join_threads
from lakehouse_assets.environment.machine import resident_bytes
from lakehouse_assets.environment.output import use_unfailing_streams
from lakehouse_assets.environment.spark_setup import environment
from lakehouse_assets.extensions.fork_server.jvm import MOST_IDLE_BYTES, EndedBesides, Jvm
from lakehouse_assets.extensions.fork_server.leftovers import State, left
from lakehouse_assets.worker.session import build_session, end_jvm, stop_session

if TYPE_CHECKING:
    from lakehouse_assets.extensions.fork_server.server import Task

KEPT_BINDINGS = ("t", "j", "GATEWAY_SERVER")
"""py4j's own objects. All others are held for a Python process that ends with its chunk."""


def do(task: Task) -> None:
    """Does the work, reports what it left in the JVM, and ends the process."""
    started = time.monotonic()
    use_unfailing_streams()
    sys.argv = sys.argv[:1]  # without the server's arguments
    os.environ.update(environment())  # which PySpark reads as it attaches
    try:
        attached = Attached(task)
    except Exception:  # Java does not start, or not with these settings: a worker of its own reports why
        os.execv(sys.executable, [sys.executable, "-m", __name__, task.work])
    status = resolve_name(task.work)(attached.session, started)
    join_threads()
    if status == 0:  # after another status the server ends the JVM anyway
        os.write(task.report, json.dumps(attached.leave()).encode())
    os.close(task.report)
    end_process(status)


def alone(work: str) -> int:
    """Does the work in a process without a server, in a JVM of its own."""
    started = time.monotonic()
    use_unfailing_streams()
    os.environ.update(environment())
    status: int = resolve_name(work)(build_session, started)
    stop_session()
    end_jvm()
    return status


class Attached:
    """This process's connection to the server's JVM. Raises any kind of exception without a JVM, or if it refuses."""

    def __init__(self, task: Task) -> None:
        if task.jvm is None:
            raise ConnectionError("the JVM did not start")
        self._java = gateway = _connected(task.jvm)
        # PySpark did not start this JVM, so it has set None; jvm_exit() and leave() need the process.
        gateway.proc = EndedBesides(task.jvm.process.pid)
        self._sessions = gateway.jvm.org.apache.spark.sql.classic.SparkSession
        self._base = self._sessions.builder().getOrCreate()
        java_context = gateway.jvm.JavaSparkContext(self._base.sparkContext())
        self._context = SparkContext(gateway=gateway, jsc=java_context)
        # Workers of UDFs have the JVM's environment (the variables that task.key names), and what is added here.
        # PySpark shares such workers only between equal environments. So FORK_SERVER_CHUNK, which differs for each
        # chunk, keeps a chunk from getting another's workers.
        own = {name: value for name, value in os.environ.items() if name not in task.key}
        self._context.environment.update(own, FORK_SERVER_CHUNK=str(os.getpid()))
        # The JVM's state before the step, for leave() to compare with.
        self._before: State | None = None

    def session(self, _: Mapping[str, str]) -> SparkSession:
        """Returns a new session: this process's only one, and the JVM's default until leave().

        Ignores the settings that it is given: the JVM was started with the same, which are part of the server's key.
        """
        self._own = self._base.newSession()
        self._threads = {*threading.enumerate()}
        self._before = State.of(self._java.jvm, self._base)
        return SparkSession(self._context, self._own)

    def leave(self) -> list[str]:
        """Returns what the step left in the JVM; cleans up what can be cleaned up."""
        if self._before is None:  # the work has asked for no session
            return []
        try:
            found = left(self._before, self._java.jvm, self._base)
            if not self._threads.issuperset(threading.enumerate()):
                found.append("a thread that still runs")
            self._close_catalogs()
            self._sessions.setDefaultSession(self._base)
            # Hadoop keeps each file system with the credentials that it was first opened with: the next chunk may have
            # others.
            self._java.jvm.org.apache.hadoop.fs.FileSystem.closeAll()
            if resident_bytes(self._java.proc.pid) > MOST_IDLE_BYTES:
                self._java.jvm.java.lang.System.gc()  # which gives memory back within a second
            shutil.rmtree(self._context._temp_dir, ignore_errors=True)
            bindings = JavaObject("GATEWAY_SERVER", self._java._gateway_client).getGateway().getBindings()
            kept = self._java.jvm.java.util.ArrayList()
            for name in KEPT_BINDINGS:
                kept.add(name)
            bindings.keySet().retainAll(kept)
        except Exception as error:  # whatever the step did to the JVM
            return [f"a JVM that does not answer ({error!r})"]
        self._java._gateway_client.is_connected = False  # else py4j prints that it can't free its objects
        return found

    def _close_catalogs(self) -> None:
        """Closes the connections to catalogs that the session has opened."""
        manager = self._own.sessionState().catalogManager()
        for name in manager.listCatalogs(self._java.jvm.scala.Option.empty()).mkString("\n").splitlines():
            with suppress(Py4JError):  # such as Spark's own, which has none
                manager.catalog(name).icebergCatalog().close()


def _connected(jvm: Jvm) -> Any:
    os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"] = str(jvm.port), jvm.secret
    try:
        return launch_gateway()  # type: ignore[no-untyped-call]
    finally:
        for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"):
            del os.environ[name]  # a step's own processes must not find this JVM


if __name__ == "__main__":
    sys.exit(alone(sys.argv[1]))
