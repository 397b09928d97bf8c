"""Leases a fork server for work of any kind. Imports no Dagster: commands that are no runs lease one, too."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from socket import SHUT_WR, socketpair
from socket import socket as Connection
from types import MappingProxyType
from typing import Any

from lakehouse_assets.environment.env_reader import public
from lakehouse_assets.environment.launchers.worker_environment import worker_environment
from lakehouse_assets.environment.machine import java_home
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.environment.spark_setup import spark_conf
from lakehouse_assets.extensions.fork_server import channel, folders
from lakehouse_assets.extensions.fork_server.folders import Folder
from lakehouse_assets.extensions.fork_server.key import key_of

SERVER = "lakehouse_assets.extensions.fork_server.server"
DO_WORK = "lakehouse_assets.worker.__main__:do_work"
NOTHING: Mapping[str, str] = MappingProxyType({})
STARTED = set[subprocess.Popen[bytes]]()
"""The servers that this process has started, so that it reaps them."""


@dataclass
class Lease:
    """A fork server at work for this process, until the connection closes."""

    connection: Connection
    pid: int
    """The server's process, which leads its process group."""
    folder: Folder
    ended: int | None = None
    """The worker's exit status, below 0 for a signal; None until poll() has seen its end."""

    def poll(self) -> int | None:
        """Returns the worker's exit status, below 0 for a signal; None while it works."""
        if self.ended is None and _is_readable(self.connection):
            try:
                message, _ = channel.receive(self.connection)
                self.ended = message["end"]
            except OSError:  # the server died: its group must end with it
                self.kill()
                self.ended = -signal.SIGKILL
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
