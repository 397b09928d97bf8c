"""`lakehouse ui`: the web server and the daemon."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import IO

import click

from lakehouse_assets.cli.home import cold, ready
from lakehouse_assets.cli.keeper import kept
from lakehouse_assets.environment.machine import SetupError
from lakehouse_assets.environment.process_locks import daemon_locks
from lakehouse_assets.environment.settings import Settings

HOST = "127.0.0.1"
# TCP_LISTEN, as /proc/net/tcp writes a socket's state.
LISTENING = "0A"


def check_port(port: int) -> None:
    """Raises SetupError if the loopback port is in use, naming the process."""
    with socket.socket() as probe:
        # As the server does: a port in TIME_WAIT can be used.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            pid = listener(port) if isinstance(error, OSError) else None
            by = f" by process {pid}: {_command(pid)}" if pid else ""
            raise SetupError(
                f"port {port} of {HOST} can't be used ({reason}{by}); choose another one with --port"
            ) from error


def listener(port: int) -> int | None:
    """Returns the process that listens on the port; None if there is none, or if it is another user's."""
    # Linux lists each socket's inode by its port, and each process's sockets by their inodes.
    sockets = {f"socket:[{inode}]" for name in ("tcp", "tcp6") for inode in _listening(Path("/proc/net", name), port)}
    for folder in Path("/proc").iterdir() if sockets else ():
        if folder.name.isdecimal():
            with suppress(OSError):  # it has ended, or is another user's
                if any(os.readlink(link) in sockets for link in folder.joinpath("fd").iterdir()):
                    return int(folder.name)
    return None


def _listening(table: Path, port: int) -> list[str]:
    with suppress(FileNotFoundError):  # without IPv6 there is no tcp6
        rows = [line.split() for line in table.read_text().splitlines()[1:]]
        # Columns of /proc/net/tcp: 1 is the local address and port in hexadecimal, 3 the state, 9 the inode.
        return [row[9] for row in rows if row[3] == LISTENING and int(row[1].rpartition(":")[2], 16) == port]
    return []


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:120]
    except OSError:
        return "it has just exited"


# The time between two looks for dead runs.
REAP_SECONDS = 5.0
# The time between two requests to the webserver, and the longest wait for an answer. The webserver listens once the
# code location is loaded: after half a minute, or more on a slow disk.
ASK_SECONDS = 0.5
ANSWER_SECONDS = 5.0


@click.command()
@click.option("--port", type=int, default=3000, show_default=True, help=f"Of {HOST}.")
@cold
def ui(port: int) -> int:
    """Serve the Dagster UI and run the daemon.

    Ctrl-C ends both.
    """
    check_port(port)
    settings = ready()
    lock = _lock(settings)
    # Dagster takes seconds to import, so the problems above are reported before that.
    from lakehouse_assets.cli.instance import opened, set_worker_limit
    from lakehouse_assets.drive.liveness import reap

    with opened(settings) as (instance, _):
        set_worker_limit(instance, settings)
        print(f"starting the Dagster UI (LAKEHOUSE_HOME={settings.home}) …", flush=True)
        keeper = kept([sys.executable, "-m", "dagster", "dev", "-h", HOST, "-p", str(port)], lock.fileno())
        lock.truncate(0)
        print(f"http://{HOST}:{port}, process {os.getpid()}", file=lock, flush=True)
        try:
            return _watch(keeper, port, partial(reap, instance))
        except KeyboardInterrupt:
            return 0
        finally:
            _end(keeper)
            reap(instance)
            lock.close()


def _lock(settings: Settings) -> IO[str]:
    """Locks this home's UI: a second one would run a second daemon. Raises SetupError if it is locked.

    All processes of the UI inherit the lock. Daemons that were started otherwise have their own.
    """
    lock = (settings.home / "dagster" / ".serving").open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        where = lock.read().strip() or "it is starting"
        raise SetupError(f"LAKEHOUSE_HOME={settings.home} already has a UI running: {where}") from None
    if daemons := daemon_locks(settings.home / "dagster").living():
        raise SetupError(
            f"a Dagster daemon is already running on LAKEHOUSE_HOME={settings.home}: {', '.join(daemons)}; stop it"
        )
    return lock


def _watch(keeper: subprocess.Popen[bytes], port: int, reap: Callable[[], list[str]]) -> int:
    """Reaps dead runs until the UI ends by itself. Returns its exit status, never 0, so that systemd restarts it."""
    answered, next_reap = False, 0.0
    while keeper.poll() is None:
        if not answered and (answered := _answers(port, keeper.pid)):
            print(f"Dagster UI: http://{HOST}:{port}; press Ctrl-C to stop", flush=True)
        if time.monotonic() >= next_reap:
            _reap(reap)
            next_reap = time.monotonic() + REAP_SECONDS
        with suppress(subprocess.TimeoutExpired):
            keeper.wait(REAP_SECONDS if answered else ASK_SECONDS)
    print("error: the UI or its daemon exited unexpectedly; its last messages are above", file=sys.stderr)
    return keeper.returncode or 1  # `dagster dev` exits with 0 if one of its services was killed


def _answers(port: int, session: int) -> bool:
    """Whether the keeper's webserver answers; another program may have taken the port.

    session: the keeper's process id, which is also its session's. HTTPConnection ignores proxies in the environment.
    """
    pid = listener(port)
    with closing(HTTPConnection(HOST, port, timeout=ANSWER_SECONDS)) as connection:
        try:
            if pid is None or os.getsid(pid) != session:
                return False
            connection.request("GET", "/server_info")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False


def _reap(reap: Callable[[], list[str]]) -> None:
    from lakehouse_assets.drive.liveness import reaped_text

    try:
        for run_id in reap():
            print(reaped_text(run_id), flush=True)
    except Exception as error:  # such as a locked database; the next round tries again
        print(f"could not look for dead runs: {error!r}", file=sys.stderr, flush=True)


def _end(keeper: subprocess.Popen[bytes]) -> None:
    # The keeper ends the UI when this pipe closes. Until then, no signal may end this process.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if keeper.stdin:
        keeper.stdin.close()
    keeper.wait()
