"""The JVM of a fork server."""

from __future__ import annotations

import os
import select
import shlex
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

LOOK_SECONDS = 0.02
"""Between two looks at a JVM that starts or ends."""
MOST_IDLE_BYTES = 900 * 2**20
"""The most memory in RAM with which a JVM may wait for the next chunk."""


class Jvm:
    """Spark's JVM, started as by PySpark (4.1, launch_gateway), but without a thread, so that the server can fork.

    It ends when its standard input closes, as when the server dies.
    """

    def __init__(self, spark_home: str, conf: Mapping[str, str], env: Mapping[str, str], folder: Path) -> None:
        # Here the JVM writes its port and secret.
        self._info = folder / "gateway"
        command = [f"{spark_home}/bin/spark-submit"]
        for name, value in conf.items():
            command += ["--conf", f"{name}={value}"]
        self._stdout, stdout = os.pipe()
        self._stderr, stderr = os.pipe()
        # The descriptors that have come to their end.
        self._ended = set[int]()
        self.process = subprocess.Popen(
            [*command, *shlex.split(env.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))],
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            env={**env, "SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._info)},
        )
        for descriptor in (stdout, stderr):
            os.close(descriptor)
        for descriptor in (self._stdout, self._stderr):
            os.set_blocking(descriptor, False)
        self.pidfd = os.pidfd_open(self.process.pid)
        self.port, self.secret = 0, ""

    @property
    def outputs(self) -> set[int]:
        """The descriptors from which to read what it writes, until they end."""
        return {self._stdout, self._stderr} - self._ended

    @property
    def is_alive(self) -> bool:
        """Whether it runs. Does not reap it: a child reads its exit status from /proc."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return not poll.poll(0)

    def written(self) -> Iterator[tuple[int, bytes]]:
        """Yields what it has written: 0 for standard output or 1 for standard error, and a part of it."""
        for number, descriptor in enumerate((self._stdout, self._stderr)):
            while descriptor not in self._ended:
                try:
                    data = os.read(descriptor, 1 << 16)
                except BlockingIOError:
                    break
                if data:
                    yield number, data
                else:
                    self._ended.add(descriptor)

    def is_there(self, meanwhile: Callable[[], object]) -> bool:
        """Waits until it can be attached to; returns False if it ends instead. meanwhile: called again and again."""
        while not self._info.exists():
            meanwhile()
            if not self.is_alive:
                return False
            time.sleep(LOOK_SECONDS)
        with self._info.open("rb") as file:  # renamed into place, so it is whole
            self.port, length = struct.unpack("!ii", file.read(8))
            self.secret = file.read(length).decode()
        self._info.unlink()
        return True

    def leave(self) -> None:
        """Closes a child's copies of all descriptors: the JVM is the server's."""
        if self.process.stdin:
            self.process.stdin.close()
        for descriptor in (self._stdout, self._stderr, self.pidfd):
            os.close(descriptor)

    def end(self, seconds: float, meanwhile: Callable[[], object]) -> None:
        """Lets it end, and waits until it has removed its scratch folders; kills it after ``seconds``.

        meanwhile: called again and again.
        """
        with suppress(OSError):
            if self.process.stdin:
                self.process.stdin.close()
        until = time.monotonic() + seconds
        while self.is_alive and time.monotonic() < until:
            meanwhile()
            time.sleep(LOOK_SECONDS)
        with suppress(OSError):
            self.process.kill()
        self.process.wait()


class EndedBesides:
    """Stands for the JVM's Popen in a child of the server, which can't wait for a process of its parent."""

    def __init__(self, pid: int) -> None:
        self.pid, self.args, self.stdin = pid, "java", None

    def wait(self, timeout: float) -> int:
        """Returns its exit status. Raises TimeoutExpired."""
        until = time.monotonic() + timeout
        while True:
            # After the command, which may contain spaces: the state comes first, the exit status last (proc(5)).
            state, *_, status = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            if state == "Z":  # the server reaps it later
                return os.waitstatus_to_exitcode(int(status))
            if time.monotonic() >= until:
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(LOOK_SECONDS)
