"""The folders of fork servers in ``<home>/workers``, by which launchers find servers.

Each has a lock, which the server's processes hold while they live, and a socket while the server is idle.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from socket import AF_UNIX, SOCK_STREAM
from socket import socket as Connection

from lakehouse_assets.environment.machine import resident_bytes
from lakehouse_assets.extensions.fork_server import channel
from lakehouse_assets.extensions.fork_server.key import Key

WORKERS = "workers"
LOCK, SOCKET, ABOUT, SCRATCH = "lock", "socket", "about.json", "tmp"
UNFINISHED = "."
"""Begins the name of a folder that has no lock yet."""
# An idle server answers at once if it gets a processor; on a busy machine, that takes seconds.
ANSWER_SECONDS = 15.0
# A launcher that makes a folder has locked it long before.
ABANDONED_SECONDS = 60.0


@dataclass(frozen=True)
class About:
    """What a fork server says of itself."""

    key: Mapping[str, str]
    """The parts of its Key."""
    pid: int = 0
    """The process of its Python."""
    jvm: int = 0
    """The process of its JVM; 0 if there is none yet."""
    began: float = 0.0
    """When it started, in seconds since the epoch, as idle_since."""
    chunks: int = 0
    """How many it has done."""
    idle_since: float | None = None
    """None while it works."""


@dataclass(frozen=True)
class Folder:
    """The folder of one fork server."""

    path: Path
    about: About = field(default_factory=lambda: About({}))

    @property
    def is_alive(self) -> bool:
        """Whether one of its processes holds the lock."""
        with suppress(FileNotFoundError, NotADirectoryError):
            lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            finally:
                os.close(lock)
        return False

    @property
    def socket(self) -> Path:
        """Where it listens while it is idle."""
        return self.path / SOCKET

    @property
    def is_idle(self) -> bool:
        """Whether it waits for work."""
        return self.socket.exists()

    @property
    def key(self) -> Key:
        """What was fixed at its start, such as variables and settings: it serves only work with an equal key."""
        return Key(self.about.key)

    def resident_bytes(self) -> int:
        """Returns the memory in RAM of its server and its JVM."""
        return sum(map(resident_bytes, (self.about.pid, self.about.jvm)))

    def tell(self, about: About) -> None:
        """Replaces what the server says of itself."""
        partial = self.path / f"{ABOUT}.partial"
        partial.write_text(json.dumps(asdict(about)))
        partial.replace(self.path / ABOUT)

    def remove(self) -> None:
        """Removes the folder, whatever is in it."""
        shutil.rmtree(self.path, ignore_errors=True)

    def connected(self) -> Connection:
        """Connects to the idle server. Raises OSError if it is not there any more."""
        connection = Connection(AF_UNIX, SOCK_STREAM)
        try:
            connection.settimeout(ANSWER_SECONDS)
            with _short(self.path) as path:
                connection.connect(path)
            if channel.credentials(connection)[1] != os.getuid():
                raise PermissionError("another user's process listens there")
        except OSError:
            connection.close()
            raise
        return connection

    def listening(self) -> Connection:
        """Listens for one connection."""
        listener = Connection(AF_UNIX, SOCK_STREAM)
        with _short(self.path) as path:
            listener.bind(path)  # the folder lets nobody else in
        listener.listen(1)
        return listener

    def end(self) -> bool:
        """Asks an idle server to end; returns False if it is not idle."""
        try:
            with self.connected() as connection:
                channel.send(connection, {"end": True})
                with suppress(ConnectionError):
                    connection.recv(1)  # the server closes it once its socket is gone: nobody can take it any more
        except OSError:
            return False
        return True


def made(workers: Path) -> tuple[Folder, int]:
    """Makes a folder; returns it and the descriptor that locks it, which the server inherits.

    Until the folder is locked, it has a hidden name: otherwise alive() would take it for a dead server's and remove it.
    Raises OSError, also if ``workers`` is another user's.
    """
    workers.mkdir(parents=True, exist_ok=True, mode=0o700)
    if workers.stat().st_uid != os.getuid():
        raise PermissionError(f"{workers} is another user's")
    hidden = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=workers))
    (hidden / SCRATCH).mkdir()
    lock = os.open(hidden / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return Folder(hidden.rename(workers / hidden.name.removeprefix(UNFINISHED))), lock


def found(workers: Path) -> list[Folder]:
    """Returns the folders of all servers, dead ones too: those idle for longest first, busy ones last."""
    folders = [Folder(path, _about(path)) for path in workers.glob(f"[!{UNFINISHED}]*")]
    return sorted(folders, key=lambda folder: folder.about.idle_since or float("inf"))


def alive(workers: Path) -> list[Folder]:
    """Returns the folders of running servers as found(), and removes those of dead ones."""
    running = []
    for folder in found(workers):
        if folder.is_alive:
            running.append(folder)
        else:
            folder.remove()
    for hidden in map(Folder, workers.glob(f"{UNFINISHED}*")):  # if their launchers died as they made them
        with suppress(FileNotFoundError):
            if time.time() - hidden.path.stat().st_mtime > ABANDONED_SECONDS and not hidden.is_alive:
                hidden.remove()
    return running


def _about(path: Path) -> About:
    """Returns what a server says of itself; nothing if that is of another version, or not there yet."""
    with suppress(OSError, TypeError, ValueError):
        return About(**json.loads((path / ABOUT).read_text()))
    return About({})


@contextmanager
def _short(folder: Path) -> Iterator[str]:
    """Yields a path of the socket that fits in the 107 bytes of a Unix socket's address."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)
