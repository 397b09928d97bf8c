"""Signs of life: file locks, which the system drops when their process dies. The file stays, unlocked."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

# The locks that this process holds: file → open descriptor.
_held: dict[Path, int] = {}


@dataclass(frozen=True)
class Gone:
    """The lock of a dead process."""

    name: str
    """The lock's name, such as a run's id."""
    process: str
    """Such as ``process 123 on lake-1``; not unique."""


@dataclass(frozen=True)
class ProcessLocks:
    """The locks in a folder, a file for each.

    They need no clock and no process names: they work across containers that share the folder, and while the process is
    stopped or the machine sleeps. Child processes do not inherit them.
    """

    folder: Path

    def hold(self, name: str) -> None:
        """Holds a lock until release() or the end of this process."""
        path = self.folder / name
        if path in _held:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        hidden = self.folder / f".{uuid4()}"  # nobody may find the file before it is locked
        lock = os.open(hidden, os.O_CREAT | os.O_RDWR, 0o666)
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.write(lock, f"process {os.getpid()} on {socket.gethostname()}".encode())
        hidden.rename(path)
        _held[path] = lock

    def release(self, name: str) -> None:
        """Releases a lock if this process holds it."""
        path = self.folder / name
        if (lock := _held.pop(path, None)) is not None:
            path.unlink(missing_ok=True)
            os.close(lock)

    def process(self, name: str) -> str:
        """Describes the process that took a lock; empty if there is none."""
        try:
            return (self.folder / name).read_text()
        except FileNotFoundError:
            return ""

    def gone(self) -> Iterator[Gone]:
        """Yields each lock of a dead process, and removes it when the caller asks for the next one.

        No other process gets the same lock meanwhile; if the caller fails, a later call yields it again.
        """
        for path in self._files():
            if path in _held:  # on NFS, closing another descriptor of the file would drop this process's lock
                continue
            try:
                lock = os.open(path, os.O_RDWR)
            except FileNotFoundError:
                continue
            try:
                if _is_free(lock) and os.fstat(lock).st_nlink:  # without a link it has just been released
                    yield Gone(path.name, os.read(lock, 1000).decode())
                    path.unlink(missing_ok=True)
            finally:
                os.close(lock)

    def living(self) -> list[str]:
        """Describes the processes that hold locks."""
        # Each step of this iterator removes the lock of a dead process.
        for _ in self.gone():
            pass
        return [words for path in self._files() if (words := self.process(path.name))]

    def _files(self) -> list[Path]:
        # Without the hidden files of hold().
        return sorted(self.folder.glob("[!.]*"))


def locks_of(run_storage: object) -> ProcessLocks | None:
    """Returns the locks of runs' processes; None if Dagster's run storage has none."""
    locks = getattr(run_storage, "locks", None)  # run_storage.py takes half a second to import
    return locks if isinstance(locks, ProcessLocks) else None


def daemon_locks(dagster_home: Path) -> ProcessLocks:
    """Returns the locks of a DAGSTER_HOME's daemons."""
    return ProcessLocks(dagster_home / "daemons")


def _is_free(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
