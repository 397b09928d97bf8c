"""Sign of life of a run: a lock on a file that the run's process holds, and that the system drops when it dies.

What becomes of a dead run is decided in drive/dead_runs.py.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

_held: dict[Path, int] = {}
"""The locks of this process, each with its file descriptor."""


@dataclass(frozen=True)
class DeadRun:
    """A run whose process is gone."""

    run_id: str
    process: str
    """The process for a message, such as ``process 123 on lake-1``: neither number nor host name is unique."""


@dataclass(frozen=True)
class RunLocks:
    """The locks of the runs that share a folder, a file for each run.

    A file lock needs no clock and no name of a process: it holds across containers that share the folder, while the
    process is stopped, and while the machine sleeps. Processes that a run starts do not inherit it.
    """

    folder: Path

    def hold(self, run_id: str) -> None:
        """Holds the run's lock until release() or the end of this process. Does nothing where this process has it."""
        path = self.folder / run_id
        if path in _held:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        hidden = self.folder / f".{uuid4()}"  # nobody may find the file before it is locked
        lock = os.open(hidden, os.O_CREAT | os.O_RDWR, 0o666)
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.write(lock, f"process {os.getpid()} on {socket.gethostname()}".encode())
        hidden.rename(path)
        _held[path] = lock

    def release(self, run_id: str) -> None:
        """Releases the run's lock where this process holds it."""
        path = self.folder / run_id
        if (lock := _held.pop(path, None)) is not None:
            path.unlink(missing_ok=True)
            os.close(lock)

    def process(self, run_id: str) -> str:
        """Returns the words for the process that began the run; empty if there is none."""
        try:
            return (self.folder / run_id).read_text()
        except FileNotFoundError:
            return ""

    def dead(self) -> Iterator[DeadRun]:
        """Yields each run whose process is gone, and forgets it once the caller asks for the next.

        One process at a time is given a run; if it fails, the run is yielded again next time.
        """
        for path in sorted(self.folder.glob("[!.]*")):
            if path in _held:  # on NFS, closing another descriptor of the file would drop this process's lock
                continue
            try:
                lock = os.open(path, os.O_RDWR)
            except FileNotFoundError:
                continue
            try:
                if _is_free(lock) and os.fstat(lock).st_nlink:  # without a link its run has just ended
                    yield DeadRun(path.name, os.read(lock, 1000).decode())
                    path.unlink(missing_ok=True)
            finally:
                os.close(lock)


def locks_of(run_storage: object) -> RunLocks | None:
    """Returns the locks of Dagster's run storage; None where it has none, as in production."""
    locks = getattr(run_storage, "locks", None)  # run_storage.py takes half a second to import
    return locks if isinstance(locks, RunLocks) else None


def _is_free(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
