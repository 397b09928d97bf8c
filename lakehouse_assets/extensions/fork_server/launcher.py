"""Runs workers as children of fork servers, which stay, idle, for the next chunk; see server.py."""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from socket import SHUT_WR, socketpair
from socket import socket as Connection
from types import MappingProxyType
from typing import Any

from lakehouse_assets.environment.env_reader import public
from lakehouse_assets.environment.launchers.base import Attempt, Ended, Handle
from lakehouse_assets.environment.launchers.local import (
    GRACE_SECONDS,
    REAP_SECONDS,
    LocalLauncher,
    end_of,
    worker_environment,
)
from lakehouse_assets.environment.machine import java_home
from lakehouse_assets.environment.settings import Settings, worker_settings
from lakehouse_assets.environment.spark_setup import spark_conf
from lakehouse_assets.extensions.fork_server import channel, folders
from lakehouse_assets.extensions.fork_server.folders import Folder
from lakehouse_assets.extensions.fork_server.key import key_of

logger = logging.getLogger(__name__)

SERVER = "lakehouse_assets.extensions.fork_server.server"
DO_WORK = "lakehouse_assets.worker.__main__:do_work"
NOTHING: Mapping[str, str] = MappingProxyType({})
LOOK_SECONDS = 0.05
"""Between two looks at servers that are to end."""
STARTED = set[subprocess.Popen[bytes]]()
"""The servers that this process has started, so that it reaps them."""


@dataclass
class Lease:
    """A fork server at work for this process, until the connection closes."""

    connection: Connection
    pid: int
    """The server's process, which leads its process group."""
    folder: Folder
    ended: Ended | None = None
    """How the worker ended; None until poll() has seen its end."""

    def poll(self) -> Ended | None:
        """Returns how the worker ended; None while it works."""
        if self.ended is None and _is_readable(self.connection):
            try:
                message, _ = channel.receive(self.connection)
                self.ended = end_of(message["end"])
            except OSError:  # the server died: its group must end with it
                self.kill()
                self.ended = end_of(-signal.SIGKILL)
            self.connection.close()
        return self.ended

    def let_go(self) -> None:
        """Has the server end its worker, its JVM and itself: it sees that this side closes, and can still answer."""
        if self.ended is None:
            with suppress(OSError):
                self.connection.shutdown(SHUT_WR)

    def kill(self) -> None:
        """Kills the server's process group.

        Only for a server that has not said that it ends: afterwards another process could have its id.
        """
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


class ForkServerLauncher(LocalLauncher):
    """Runs each worker as a child of a server in ``<home>/workers``, which then stays for ``idle``.

    If no server can run a worker (a *cold* one), LocalLauncher does; the handle of such a worker has no Lease.
    """

    def __init__(self, command: Sequence[str], idle: timedelta) -> None:
        super().__init__(command)
        self._idle = idle

    def submit(self, attempt: Attempt, environment: Mapping[str, str]) -> Handle:
        """Hands the attempt to an idle server, or starts one. Raises SetupError if there is no suitable Java."""
        try:
            leased = lease(worker_settings(), attempt.spark_conf, attempt.packages, environment, idle=self._idle)
        except OSError as error:  # a full disk, or one without locks or sockets
            logger.warning("no worker can stay for the next chunk: %s", error)
            return super().submit(attempt, environment)
        # The handle's id is not the server's process id: one server may have two handles, as it may take the next chunk
        # before this process reads the end of the last one.
        return Handle(attempt.key, leased, datetime.now(UTC))

    def poll(self, handles: Sequence[Handle]) -> dict[str, Ended]:
        """Returns the ended workers."""
        for process in tuple(STARTED):  # also those that were idle when they ended, so that no handle knows them
            if process.poll() is not None:
                STARTED.discard(process)
        leased = {handle.id: handle.state.poll() for handle in handles if isinstance(handle.state, Lease)}
        return {id: ended for id, ended in leased.items() if ended is not None} | super().poll(_cold(handles))

    def cancel(self, handles: Sequence[Handle]) -> None:
        """Ends the servers, with all that they and the steps have started.

        Servers that don't end are killed after GRACE_SECONDS; returns REAP_SECONDS later at the latest.
        """
        super().cancel(_cold(handles))
        leases: list[Lease] = [handle.state for handle in handles if isinstance(handle.state, Lease)]
        # First all are asked to end; those that have not are then killed.
        for end, seconds in ((Lease.let_go, GRACE_SECONDS), (Lease.kill, REAP_SECONDS)):
            for one in leases:
                if one.poll() is None:
                    end(one)
            until = time.monotonic() + seconds
            while time.monotonic() < until and any(one.poll() is None for one in leases):
                time.sleep(LOOK_SECONDS)
        for one in leases:  # a server that was killed could not remove its folder
            if not one.folder.is_alive:
                one.folder.remove()

    def link(self, handle: Handle) -> str:
        """Returns a phrase instead of a URL."""
        return f"local process {handle.state.pid}"


def lease(
    settings: Settings,
    conf: Mapping[str, str],
    packages: Collection[str] = (),
    of_chunk: Mapping[str, str] = NOTHING,
    *,
    idle: timedelta,
    work: str = DO_WORK,
) -> Lease:
    """Hands work to an idle server, or starts one. The work's output goes to this process's descriptors 1 and 2.

    conf: Spark settings beyond the defaults. packages: those of the work's code. of_chunk: the worker's variables
    beyond this process's. idle: how long the server stays afterwards. work: ``module:function``, called in a new
    process as ``function(start_session, started)``, as do_work(); returns an exit status.

    Raises SetupError if there is no suitable Java, OSError if no server can be started.
    """
    env = worker_environment(packages, of_chunk)
    key = key_of(env, of_chunk, public(spark_conf(settings, conf)), java_home())
    request = {"env": env, "cwd": os.getcwd(), "key": key.parts, "idle": idle.total_seconds(), "work": work}
    workers = settings.home / folders.WORKERS
    running = folders.alive(workers)
    # The one that became idle last: those idle for longer reach the end of their time, or make room.
    fitting = (one for one in reversed(running) if one.is_idle and one.key == key)
    if found := next(filter(None, (_taken(one, request) for one in fitting)), None):
        return found
    _make_room(running, settings.max_workers)
    return _started(workers, request, settings, conf)


def _is_readable(connection: Connection) -> bool:
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def _cold(handles: Sequence[Handle]) -> list[Handle]:
    return [handle for handle in handles if not isinstance(handle.state, Lease)]


def _taken(folder: Folder, request: Mapping[str, Any]) -> Lease | None:
    """Hands a request to an idle server; returns None if another launcher was faster, or the server refuses."""
    try:
        connection = folder.connected()
    except OSError:
        return None
    try:
        # The server's worker writes to this process's standard output and standard error.
        channel.send(connection, request, (1, 2))
        answer, _ = channel.receive(connection)
        if "accepted" in answer:
            channel.send(connection, {})  # confirms: the server works only for a launcher that is still there
            connection.settimeout(None)  # work may take any time, unlike the answer
            return Lease(connection, channel.credentials(connection)[0], folder)
    except (OSError, ValueError):
        pass
    connection.close()
    return None


def _started(workers: Path, request: Mapping[str, Any], settings: Settings, conf: Mapping[str, str]) -> Lease:
    """Starts a server, and hands it the request. Raises OSError if that fails."""
    folder, lock = folders.made(workers)
    ours, theirs = socketpair()
    try:
        scratch = folder.path / folders.SCRATCH
        process = subprocess.Popen(
            [sys.executable, "-m", SERVER, str(theirs.fileno()), str(lock), str(folder.path)],
            env=request["env"],
            pass_fds=(theirs.fileno(), lock),
            stdin=subprocess.DEVNULL,
            # Each request brings the descriptors for its own output.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        STARTED.add(process)
        channel.send(ours, {**request, "conf": public(spark_conf(settings, conf, folder=scratch))}, (1, 2))
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
        os.close(lock)  # the server has it now, and locks the folder while it lives
    return Lease(ours, process.pid, folder)


def _make_room(running: Sequence[Folder], most: int) -> None:
    """Asks idle servers to end, in this order, until a new one would make at most ``most``."""
    surplus = len(running) + 1 - most
    for folder in running:
        if surplus > 0 and folder.end():
            surplus -= 1
