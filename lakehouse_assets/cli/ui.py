"""Serves the Dagster UI with the daemon until a signal ends it; meanwhile reaps dead runs.

The configuration is in dagster.yaml; the code location is the project's.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from http.client import HTTPConnection, HTTPException
from typing import IO

from lakehouse_assets.cli.home import HOST, check_port, prepare
from lakehouse_assets.environment.machine import SetupError
from lakehouse_assets.environment.settings import Settings

REAP_SECONDS = 5.0
# The code location is loaded before the webserver listens: half a minute, more where the disk is slow.
ASK_SECONDS = 0.5
ANSWER_SECONDS = 5.0
# `dagster dev` waits up to 60 s for each of its services, longer than a person who pressed Ctrl-C wants to wait.
GRACE_SECONDS = 15.0


def serve(settings: Settings, port: int) -> int:
    """Runs `dagster dev` on ``port`` of the loopback address until it or this process ends. Returns the exit status.

    Raises SetupError when the port is taken or this home has a UI already, and what home.prepare raises.
    """
    check_port(port)
    prepare(settings)
    lock = _lock(settings)
    # Dagster takes seconds to import, so problems are reported before.
    from lakehouse_assets.cli.instance import opened, set_worker_limit
    from lakehouse_assets.drive.dead_runs import reap

    with opened(settings) as (instance, _):
        set_worker_limit(instance, settings)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends this process like Ctrl-C
        print(f"starting the Dagster UI (LAKEHOUSE_HOME={settings.home}) …", flush=True)
        server = _start(port)
        lock.truncate(0)
        print(f"http://{HOST}:{port}, process {os.getpid()}", file=lock, flush=True)
        try:
            return _watch(server, port, partial(reap, instance))
        except KeyboardInterrupt:
            return 0
        finally:
            _end(server)
            reap(instance)
            lock.close()


def _lock(settings: Settings) -> IO[str]:
    """Locks this home's UI: a second one would run a second daemon. Raises SetupError if another process has it."""
    lock = (settings.home / "dagster" / ".serving").open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        where = lock.read().strip() or "it is starting"
        raise SetupError(f"LAKEHOUSE_HOME={settings.home} has its UI open already: {where}") from None
    return lock


def _start(port: int) -> subprocess.Popen[bytes]:
    command = ["-m", "dagster", "dev", "-h", HOST, "-p", str(port)]
    return subprocess.Popen(
        [sys.executable, *command],
        # Its own process group, so that all its processes can be ended with it.
        start_new_session=True,
        # A shell starts background jobs with SIGINT ignored, and their children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def _watch(server: subprocess.Popen[bytes], port: int, reap: Callable[[], list[str]]) -> int:
    answered, next_reap = False, 0.0
    while server.poll() is None:
        if not answered and (answered := _answers(port)):
            print(f"Dagster UI: http://{HOST}:{port}; Ctrl-C ends it", flush=True)
        if time.monotonic() >= next_reap:
            _reap(reap)
            next_reap = time.monotonic() + REAP_SECONDS
        with suppress(subprocess.TimeoutExpired):
            server.wait(REAP_SECONDS if answered else ASK_SECONDS)
    return server.returncode


def _answers(port: int) -> bool:
    """Says whether the webserver answers. HTTPConnection ignores the environment's proxies."""
    with closing(HTTPConnection(HOST, port, timeout=ANSWER_SECONDS)) as connection:
        try:
            connection.request("GET", "/server_info")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False


def _reap(reap: Callable[[], list[str]]) -> None:
    try:
        for run_id in reap():
            print(f"the process of run {run_id} had died: the run is marked as failed, its slots are free", flush=True)
    except Exception as error:  # such as a locked database; the next round tries again
        print(f"could not look for dead runs: {error!r}", file=sys.stderr, flush=True)


def _end(server: subprocess.Popen[bytes]) -> None:
    """Ends the server as Ctrl-C does, then its process group, because code servers outlive their parents."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(subprocess.TimeoutExpired, ProcessLookupError):
        server.send_signal(signal.SIGINT)
        server.wait(GRACE_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGTERM)  # active runs cancel their workers
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline:
            server.poll()  # collects the leader, because a zombie would keep the group alive
            os.killpg(server.pid, 0)
            time.sleep(0.1)
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()
