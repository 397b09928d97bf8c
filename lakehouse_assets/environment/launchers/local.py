"""Runs workers as subprocesses of the op, each a process group with its JVM.

Slots and retries are the poll loop's business.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import dagster as dg
from dagster_pipes import PipesDefaultMessageWriter

from lakehouse_assets.environment.launchers.base import Attempt, Ended, Handle, Launcher, PolledReader
from lakehouse_assets.environment.machine import java_home, project_folders, scratch
from lakehouse_assets.environment.settings import read_home

# SIGTERM lets Spark remove its scratch folders; what still runs then gets SIGKILL. Both together take well below the
# 10 s in which a terminated run's worker must be gone.
GRACE_SECONDS = 3.0
REAP_SECONDS = 3.0


class PolledFileReader(PolledReader):
    """A reader of Pipes messages from a file, which is there as long as the session."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    @contextmanager
    def read_messages(self, handler: dg.PipesMessageHandler) -> Iterator[Mapping[str, Any]]:
        """Creates the file, and yields its path for the worker.

        At the end what is left in it is read, except after an exception, and the file is deleted in any case.
        """
        self.handler = handler
        self._path.touch()
        try:
            yield {PipesDefaultMessageWriter.FILE_PATH_KEY: str(self._path)}
            self.read()
        finally:
            self._path.unlink(missing_ok=True)

    def read(self) -> None:
        """Passes every complete line that was written since the last call to the session."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                self.pass_on(line)

    def no_messages_debug_text(self) -> str:
        """Returns Dagster's hint for a worker that sent no message: the file it should have written to."""
        return f"The worker should have written to the file {self._path}."


class LocalLauncher(Launcher):
    """Runs workers as subprocesses on this machine, each started by ``command``.

    Their output goes where the op's own goes, live: into the run's compute logs. Their temporary files and those of
    their Pipes sessions lie in ``<home>/tmp``.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command

    def pipes(self, attempt: Attempt) -> tuple[dg.PipesFileContextInjector, PolledFileReader]:
        """Returns the two ends of a new session, each a file in ``<home>/tmp`` with a random name."""
        session = f"{scratch(read_home())}/lakehouse-pipes-{uuid4()}"
        return dg.PipesFileContextInjector(f"{session}-context"), PolledFileReader(Path(f"{session}-messages"))

    def submit(self, attempt: Attempt, environment: Mapping[str, str]) -> Handle:
        """Starts the command in a session of its own. Raises SetupError first where there is no suitable Java."""
        java_home()  # without Java it raises, before anything is started
        ours = {"LAKEHOUSE_PARENT_PIPE": "stdin", "PYTHONUNBUFFERED": "1", "TMPDIR": str(scratch(read_home()))}
        # Dagster may have put the code location's folder on this process's path alone.
        path = project_folders(map(find_spec, attempt.packages))
        if path:
            ours["PYTHONPATH"] = os.pathsep.join([*path, *filter(None, [os.environ.get("PYTHONPATH")])])
        process = subprocess.Popen(
            self._command,
            env={**os.environ, **environment, **ours},
            # The worker ends when this pipe closes: only a death of this process can close it from here.
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        return Handle(str(process.pid), process, datetime.now(UTC))

    def poll(self, handles: Sequence[Handle]) -> dict[str, Ended]:
        """Returns the workers that have ended, and kills what is left of their process groups."""
        return {handle.id: _end(handle.state.returncode) for handle in handles if _ended(handle)}

    def cancel(self, handles: Sequence[Handle]) -> None:
        """Ends the workers' process groups by SIGTERM, and by SIGKILL what still runs GRACE_SECONDS later.

        It returns when nothing of them runs any more, REAP_SECONDS after SIGKILL at the latest.
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
        """Returns a phrase with the worker's process id instead of a URL."""
        return f"local process {handle.id}"


def _ended(handle: Handle) -> bool:
    """Says whether the worker has ended. Its process group is killed then.

    In the group are processes that the step started, and the JVM of a worker that was killed. A child in a session or a
    group of its own (setsid, setpgid) is not covered.
    """
    if handle.state.returncode is None:
        with suppress(ChildProcessError):
            # Looked at without being reaped: until it is, no other process can get its id, which is also the group's.
            if not os.waitid(os.P_PID, handle.state.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return False
            _signal_group(handle, signal.SIGKILL)
    return handle.state.poll() is not None


def _end(code: int) -> Ended:
    if code == -signal.SIGKILL:
        return Ended("was killed (SIGKILL): by a person, or by the system for want of memory (see `dmesg`)")
    if code < 0:
        return Ended(f"was ended by {signal.Signals(-code).name}")
    if code == os.EX_TEMPFAIL:  # see worker/pipes.py
        return Ended(f"lost its network, or S3 would not serve it (exit status {code})", transient=True)
    return Ended(f"exited with status {code}")


def _signal_group(handle: Handle, number: int) -> bool:
    """Sends a signal to the worker's group, and returns whether there was a process to get it; 0 only asks."""
    with suppress(ProcessLookupError):
        os.killpg(int(handle.id), number)
        return True
    return False


def _group_alive(handle: Handle) -> bool:
    handle.state.poll()  # a zombie leader would keep the group alive
    return _signal_group(handle, 0)
