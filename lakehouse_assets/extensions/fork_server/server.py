"""The fork server: a process that keeps a JVM and forks a worker for each chunk.

It has one thread of Python, as only such a process forks safely, and imports no module of users: a child does, so that
each chunk runs the code of its time. The launcher starts it with the descriptors of its connection and of its folder's
lock.
"""

from __future__ import annotations

import gc
import json
import os
import select
import shlex
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from socket import socket as Connection
from typing import Any

from lakehouse_assets.environment.machine import (
    available_bytes,
    children_of,
    memory_bytes,
    resident_bytes,
    signal_at_parents_end,
)
from lakehouse_assets.environment.spark_setup import environment, quoted
from lakehouse_assets.extensions.fork_server import channel
from lakehouse_assets.extensions.fork_server.folders import ANSWER_SECONDS, About, Folder
from lakehouse_assets.extensions.fork_server.jvm import MOST_IDLE_BYTES, Jvm
from lakehouse_assets.wire.code import WORKER, reached_code

LIBRARIES = (
    *("pyspark.sql", "pyspark.sql.functions", "pyspark.sql.types", "pyspark.sql.udf", "pyspark.sql.classic.dataframe"),
    *("pyspark.sql.classic.column", "pyspark.cloudpickle", "pyspark.accumulators", "pyspark.java_gateway"),
    *("pyiceberg.catalog.sql", "pyiceberg.io.pyarrow", "pyiceberg.table"),
    *("lakehouse_assets.worker.stage", "lakehouse_assets.worker.fork_rewrite"),
    *("lakehouse_assets.environment.catalog_in_spark", "lakehouse_assets.extensions.fork_server.worker"),
)
"""What a worker imports at each chunk."""
APP_NAME = "lakehouse worker"
MOST_CHUNKS = 200
"""Of one JVM, so that nothing that grows slowly gets large."""
LEAST_AVAILABLE = 1 / 8
"""The share of the memory below which an idle server ends."""
FREE_HEAP = "-XX:MaxHeapFreeRatio=40"
"""Of the heap that a full collection keeps, the percentage that may be free."""
LOOK_SECONDS = 5.0
"""How often an idle server looks whether it should end."""
JVM_ENDING_SECONDS = 2.5
"""The longest wait for a JVM to end by itself; less than the launcher's patience."""
OUT_OF_MEMORY = "out-of-memory"
"""The file that the JVM makes in the server's folder when its memory runs out."""


@dataclass(frozen=True)
class Lease:
    """A launcher's connection. While it is open, the server works on its chunk."""

    connection: Connection
    request: Mapping[str, Any]
    outputs: tuple[int, ...]
    """The descriptors that take the worker's standard output and standard error."""

    def close(self) -> None:
        """Closes the run's outputs, too: their reader waits until all writers have."""
        self.connection.close()
        for descriptor in self.outputs:
            os.close(descriptor)


@dataclass(frozen=True)
class Task:
    """What a child of the server does."""

    report: int
    """Where the child writes why its JVM must not be used again: a list as JSON."""
    jvm: Jvm | None
    key: Mapping[str, str]
    """The server's. The JVM has the environment variables that it names."""
    work: str
    """A function as lease() describes it."""


class LetGo(Exception):
    """The launcher is gone, or the server was told to end."""


class ForkServer:
    """A server in its folder. lock: the descriptor of the folder's lock. key: the parts of its Key."""

    def __init__(self, folder: Folder, lock: int, key: Mapping[str, str]) -> None:
        self._folder, self._lock = folder, lock
        self._about = About(key, os.getpid(), began=time.time())
        self._jvm: Jvm | None = None
        # How long to wait for the next chunk, in seconds; the last request says it.
        self._idle = 0.0
        self._lease: Lease | None = None
        self._listener: Connection | None = None
        self._imported: dict[str, tuple[int, ...]] = {}
        # A signal writes to this pipe, which wakes _look(); the handler itself has nothing to do.
        self._told, self._tell = os.pipe()
        os.set_blocking(self._tell, False)
        signal.set_wakeup_fd(self._tell)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def serve(self, lease: Lease) -> Task | None:
        """Serves until nobody wants this server any more. Returns a task in each worker that it forks."""
        task: Task | None = None
        try:
            self._lease, self._idle = lease, lease.request["idle"]
            self._start(lease.request["conf"])
            while self._lease and not task:
                task = self._fork(self._lease)
                if not task:
                    self._lease = self._next()
        except LetGo:
            pass
        except Exception:
            if self._lease:
                self._write(self._lease.outputs[1], traceback.format_exc().encode())
        finally:
            if not task:
                self._end()
        return task

    def _start(self, conf: Mapping[str, str]) -> None:
        """Starts the JVM, and imports what workers need meanwhile. Raises LetGo.

        If that fails, each worker starts a JVM of its own, and reports why it can't.
        """
        began = time.time_ns()
        options = "spark.driver.defaultJavaOptions"
        mark = shlex.quote(str(self._folder.path / OUT_OF_MEMORY))
        more = {
            "spark.app.name": APP_NAME,
            options: f"{conf[options]} {FREE_HEAP} {quoted(f'-XX:OnOutOfMemoryError=touch {mark}')}",
        }
        own = environment()
        inherited = {name: value for name, value in os.environ.items() if name in self._about.key}
        try:
            self._jvm = Jvm(own["SPARK_HOME"], {**conf, **more}, inherited | own, self._folder.path)
            self._note(jvm=self._jvm.process.pid)
            for name in LIBRARIES:
                import_module(name)
                self._look(0)
            reached_code(WORKER)  # each chunk compares the hash of its code; this keeps what it parses of ours
            is_there = self._jvm.is_there(lambda: self._look(0))
        except (OSError, ImportError):
            is_there = False
        # NumPy's and PyArrow's own threads (OpenBLAS, jemalloc) stop before a fork, and start again after it.
        if self._jvm and (not is_there or threading.active_count() > 1):
            self._jvm.end(JVM_ENDING_SECONDS, self._pump)
            self._jvm = None
        self._imported = _imported(before=began)
        gc.collect()
        gc.freeze()  # else a child's collector writes to the pages of all that is imported, which copies them

    def _fork(self, lease: Lease) -> Task | None:
        """Forks a worker, and returns its task there; returns None in the server when the worker has ended.

        Raises LetGo.
        """
        self._note(idle_since=None)
        report, writing = os.pipe()
        if (pid := os.fork()) == 0:
            os.close(report)
            try:
                self._become_worker(lease)
            except BaseException:  # such as a working folder that is gone; this is not the server any more
                traceback.print_exc()
                os._exit(1)
            return Task(writing, self._jvm, self._about.key, lease.request["work"])
        os.close(writing)
        child = os.pidfd_open(pid)
        while not self._look(None, child):
            pass
        os.close(child)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        # Not read to its end: a process that the step has left may hold the other end.
        os.set_blocking(report, False)
        try:
            left = json.loads(os.read(report, 1 << 16))
        except (BlockingIOError, ValueError):
            left = None
        os.close(report)
        self._end_of_chunk(lease, code, left)
        return None

    def _end_of_chunk(self, lease: Lease, code: int, left: list[str] | None) -> None:
        """Tells the launcher once all that the chunk has started has ended: nothing of it may go on writing."""
        self._note(chunks=self._about.chunks + 1)
        if left:
            text = f"the next chunk starts a new JVM, because this one's step left {', '.join(left)} in it\n"
            self._write(lease.outputs[1], text.encode())
        # None: the worker ended without a report, so what it left is unknown.
        if left == [] and not self._must_end(code):
            self._end_steps_processes()
            with suppress(OSError):  # a full disk, or a home that is gone: it can't wait for another
                self._listener = self._folder.listening()
                self._note(idle_since=time.time())
        if self._listener is None:
            self._end_jvm()
        self._pump()
        with suppress(OSError):
            channel.send(lease.connection, {"end": code})
        lease.close()
        self._lease = None

    def _next(self) -> Lease | None:
        """Waits for the next launcher; returns None when it is time to end. Raises LetGo."""
        until = time.monotonic() + self._idle
        while self._listener:
            if self._look(min(LOOK_SECONDS, self._idle), self._listener.fileno()):
                if lease := self._accepted(self._listener):
                    return lease
            elif time.monotonic() > until or self._is_too_large() or not self._folder.is_idle:
                return None
        return None

    def _is_too_large(self) -> bool:
        assert self._jvm
        return resident_bytes(self._jvm.process.pid) > MOST_IDLE_BYTES or _is_memory_short()

    def _accepted(self, listener: Connection) -> Lease | None:
        """Returns the lease of a launcher; None if it only asks the server to end, is refused, or is gone."""
        connection, _ = listener.accept()
        connection.settimeout(ANSWER_SECONDS)
        outputs: list[int] = []
        try:
            if channel.credentials(connection)[1] == os.getuid():
                request, outputs = channel.receive(connection)
                changed = next((file for file, was in self._imported.items() if _stat(file) != was), None)
                if request.get("end") or changed:
                    self._let_go_of_socket()
                    channel.send(connection, {"refused": changed or "asked to end"})
                else:
                    channel.send(connection, {"accepted": os.getpid()})
                    channel.receive(connection)  # a launcher that has given up meanwhile does not confirm
                    self._let_go_of_socket()
                    connection.settimeout(None)
                    self._idle = request["idle"]
                    return Lease(connection, request, tuple(outputs))
        except (OSError, ValueError):
            pass
        connection.close()
        for descriptor in outputs:
            os.close(descriptor)
        return None

    def _let_go_of_socket(self) -> None:
        if self._listener:
            with suppress(OSError):
                self._folder.socket.unlink()
            self._listener.close()
            self._listener = None

    def _look(self, seconds: float | None, wanted: int | None = None) -> bool:
        """Waits for the descriptor ``wanted`` or any other event; returns whether ``wanted`` is ready.

        Passes on the JVM's output. seconds: the longest wait, None for no limit.

        Raises LetGo if the launcher is gone, the server is told to end, or an idle server's JVM has ended.
        """
        poll = select.poll()
        for descriptor in self._ends():
            poll.register(descriptor, select.POLLIN | select.POLLRDHUP)
        for descriptor in self._jvm.outputs if self._jvm else ():
            poll.register(descriptor, select.POLLIN)
        if wanted is not None:
            poll.register(wanted, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(None if seconds is None else seconds * 1000)}
        self._pump()
        if not ready.isdisjoint(self._ends()):
            raise LetGo
        return wanted in ready

    def _ends(self) -> Iterator[int]:
        """Yields the descriptors that become readable when it is time to end."""
        yield self._told
        if self._lease:
            yield self._lease.connection.fileno()
        elif self._jvm:
            yield self._jvm.pidfd

    def _pump(self) -> None:
        """Passes on what the JVM has written; drops it if nobody leases the server."""
        if self._jvm:
            for number, data in self._jvm.written():
                if self._lease:
                    self._write(self._lease.outputs[number], data)

    def _write(self, descriptor: int, data: bytes) -> None:
        """Writes all data; gives up if it is time to end, or the disk is full, or the reader is gone."""
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        for end in self._ends():
            poll.register(end, select.POLLIN | select.POLLRDHUP)
        with suppress(OSError):
            while data and all(ready == descriptor for ready, _ in poll.poll()):
                data = data[os.write(descriptor, data[: select.PIPE_BUF]) :]  # so much never blocks

    def _must_end(self, code: int) -> bool:
        """Whether the JVM must serve no other chunk. code: the worker's exit status."""
        return (
            code != 0
            or self._jvm is None
            or not self._jvm.is_alive
            or (self._folder.path / OUT_OF_MEMORY).exists()
            or self._about.chunks >= MOST_CHUNKS
            or _is_memory_short()
        )

    def _end_steps_processes(self) -> None:
        """Kills what the step and the JVM have started, such as the Python workers of UDFs."""
        own = {os.getpid(), self._jvm.process.pid if self._jvm else 0}
        _signal(set(_group()) - own, signal.SIGKILL)
        for child in children_of(self._jvm.process.pid) if self._jvm else ():
            with suppress(OSError):  # PySpark's daemon leads a group, in which its workers are
                os.killpg(child, signal.SIGKILL)

    def _end_jvm(self) -> None:
        """Ends the JVM and all that was started."""
        others = set(_group()) - {os.getpid()}
        if self._jvm:
            _signal(others, signal.SIGTERM)
            self._jvm.end(JVM_ENDING_SECONDS, self._pump)
        _signal(set(_group()) - {os.getpid()}, signal.SIGKILL)

    def _end(self) -> None:
        """Ends all processes of the server, this one too, and removes the folder."""
        self._let_go_of_socket()
        self._end_jvm()
        self._folder.remove()
        if self._lease:
            with suppress(OSError):
                channel.send(self._lease.connection, {"end": -signal.SIGTERM})
        os.killpg(os.getpgrp(), signal.SIGKILL)  # a process that was just started, and this one

    def _become_worker(self, lease: Lease) -> None:
        """Makes this child what a new process would be. It dies with the server, as its jobs must."""
        signal_at_parents_end(self._about.pid, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, descriptor in enumerate(lease.outputs, 1):
            os.dup2(descriptor, number)
        lease.close()
        for descriptor in (self._told, self._tell, self._lock):
            os.close(descriptor)
        if self._jvm:
            self._jvm.leave()
        os.environ.clear()
        os.environ.update(lease.request["env"])
        os.chdir(lease.request["cwd"])
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed()  # else each chunk gets the same numbers; Python's own are seeded at each fork

    def _note(self, **changes: Any) -> None:
        """Changes fields of About, in the server's folder too."""
        self._about = replace(self._about, **changes)
        with suppress(OSError):  # a full disk
            self._folder.tell(self._about)


def _group() -> Iterator[int]:
    """Yields the processes of this one's group."""
    for process in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        with suppress(OSError):
            if os.getpgid(process) == os.getpgrp():
                yield process


def _signal(processes: Iterable[int], number: int) -> None:
    for process in processes:
        with suppress(OSError):
            os.kill(process, number)


def _imported(before: int) -> dict[str, tuple[int, ...]]:
    """Returns the files of all imported modules, and the folders that packages are installed in, each with its stat.

    before: nanoseconds since the epoch. Of a file that changed later, it is unknown which state was imported: its stat
    is empty here, so that it counts as changed.
    """
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    files |= {folder for folder in sys.path if folder.endswith("-packages")}
    stats = {file: _stat(file) for file in files if file}
    return {file: stat if stat and stat[-1] < before else () for file, stat in stats.items()}


def _stat(file: str) -> tuple[int, ...]:
    """Returns what changes when a file does; empty if there is none. The last number is the time of the change."""
    with suppress(OSError):
        found = os.stat(file)
        return found.st_mtime_ns, found.st_size, found.st_ino, found.st_ctime_ns
    return ()


def _is_memory_short() -> bool:
    return available_bytes() < LEAST_AVAILABLE * memory_bytes()


def main(connection: int, lock: int, folder: str) -> Task | None:
    """Serves a first request and more. Returns a task in each worker."""
    os.set_inheritable(lock, False)
    first = Connection(fileno=connection)
    first.set_inheritable(False)
    request, outputs = channel.receive(first)
    server = ForkServer(Folder(Path(folder)), lock, request["key"])
    return server.serve(Lease(first, request, tuple(outputs)))


if __name__ == "__main__":
    found = main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    if found:  # in a worker; here its errors show none of the server's frames
        import_module("lakehouse_assets.extensions.fork_server.worker").do(found)
