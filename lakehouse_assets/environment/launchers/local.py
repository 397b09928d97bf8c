"""Runs workers as subprocesses of the op, each a process group with its JVM."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import dagster as dg
from dagster_pipes import PipesDefaultMessageWriter

from lakehouse_assets.environment.launchers.base import Attempt, Ended, Handle, Launcher, PolledReader
from lakehouse_assets.environment.launchers.worker_environment import PARENT_PIPE, worker_environment
from lakehouse_assets.environment.machine import java_home, scratch
from lakehouse_assets.environment.settings import read_home

# SIGTERM lets Spark remove its scratch folders; SIGKILL follows. Both together take well below the 10 s after which a
# terminated run's workers must be gone.
GRACE_SECONDS = 3.0
REAP_SECONDS = 3.0


class PolledFileReader(PolledReader):
    """Reads messages from a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    @contextmanager
    def read_messages(self, handler: dg.PipesMessageHandler) -> Iterator[Mapping[str, Any]]:
        """Creates the file, and yields its path for the worker. Deletes the file at the end.

        Without an exception, reads the last messages first.
        """
        self.handler = handler
        self._path.touch()
        try:
            yield {PipesDefaultMessageWriter.FILE_PATH_KEY: str(self._path)}
            self.read()
        finally:
            self._path.unlink(missing_ok=True)

    def read(self) -> None:
        """Passes new complete lines to the session."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                self.pass_on(line)

    def no_messages_debug_text(self) -> str:
        """Returns the file's path, for Dagster's hint."""
        return f"The worker should have written to the file {self._path}."


class LocalLauncher(Launcher):
    """Runs workers as subprocesses, each started by ``command``.

    Their output goes live into the run's compute logs, temporary files into ``<home>/tmp``.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command

    def pipes(self, attempt: Attempt) -> tuple[dg.PipesFileContextInjector, PolledFileReader]:
        """Returns the two ends of a new session, files in ``<home>/tmp``."""
        session = f"{scratch(read_home())}/lakehouse-pipes-{uuid4()}"
        return dg.PipesFileContextInjector(f"{session}-context"), PolledFileReader(Path(f"{session}-messages"))

    def submit(self, attempt: Attempt, environment: Mapping[str, str]) -> Handle:
        """Starts a worker. Raises SetupError if there is no suitable Java."""
        java_home()  # raises before anything starts
        process = subprocess.Popen(
            self._command,
            env={**worker_environment(attempt.packages, environment), PARENT_PIPE: "stdin"},
            # The worker ends itself when this pipe closes: that is how it notices that this process has died.
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        return Handle(str(process.pid), process, datetime.now(UTC))

    def poll(self, handles: Sequence[Handle]) -> dict[str, Ended]:
        """Returns the ended workers, and kills the rest of their process groups."""
        return {handle.id: end_of(handle.state.returncode) for handle in handles if _ended(handle)}

    def cancel(self, handles: Sequence[Handle]) -> None:
        """Ends the process groups by SIGTERM, and by SIGKILL after GRACE_SECONDS.

        Returns when all have ended, REAP_SECONDS after SIGKILL at the latest.
        """
        for number, seconds in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, REAP_SECONDS)):
            for handle in handles:
                _signal_group(handle, number)
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline and any(_group_alive(h) for h in handles):
                time.sleep(0.05)
        for handle in handles:
            if handle.state.stdin:
                with suppress(OSError):
                    handle.state.stdin.close()

    def link(self, handle: Handle) -> str:
        """Returns a phrase instead of a URL."""
        return f"local process {handle.id}"


def _ended(handle: Handle) -> bool:
    """Whether the worker has ended; if so, kills the rest of its process group.

    The group has the step's processes and a killed worker's JVM, but no children in another session or group.
    """
    if handle.state.returncode is None:
        with suppress(ChildProcessError):
            # WNOWAIT: until the worker is reaped, no other process can get its id, which is also the group's. So the
            # signal can't meet another group.
            if not os.waitid(os.P_PID, handle.state.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return False
            _signal_group(handle, signal.SIGKILL)
    return handle.state.poll() is not None


def end_of(code: int) -> Ended:
    """Explains a worker's exit status; below 0, the signal that ended it."""
    if code == -signal.SIGKILL:
        return Ended("was killed (SIGKILL) by a person, or by the system because memory ran out (see `dmesg`)")
    if code < 0:
        return Ended(f"was ended by {signal.Signals(-code).name}")
    if code == os.EX_TEMPFAIL:  # see worker/pipes.py
        return Ended(f"lost its network connection, or S3 did not respond (exit status {code})", transient=True)
    return Ended(f"exited with status {code}")


def _signal_group(handle: Handle, number: int) -> bool:
    """Sends a signal to the worker's group; returns whether it has a process. The number 0 only asks."""
    with suppress(ProcessLookupError):
        os.killpg(int(handle.id), number)
        return True
    return False


def _group_alive(handle: Handle) -> bool:
    handle.state.poll()  # a zombie leader would keep the group alive
    return _signal_group(handle, 0)
