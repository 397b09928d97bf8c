"""What the UI starts ends with it, however it dies, and keeps the home's lock until then. Here it is small programs."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import IO

import dagster as dg
import pytest
from dagster._daemon.types import DaemonHeartbeat

from lakehouse_assets.cli import ui
from lakehouse_assets.cli.keeper import kept
from lakehouse_assets.cli.ui import HOST, check_port, listener
from lakehouse_assets.drive.liveness import start_time
from lakehouse_assets.environment.machine import SetupError
from lakehouse_assets.environment.settings import Settings
from tests.conftest import ROOT
from tests.support.dagster_server import until
from tests.support.http_server import Handler, http_server
from tests.support.killed_runs import forked

SERVICE = """
import signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", '''
import os, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as code servers do
print(os.getpid(), flush=True)
time.sleep(600)
'''])
print(child.pid, flush=True)
time.sleep(600)
"""
PARENT = f"""
import fcntl, signal, sys
from lakehouse_assets.cli.keeper import kept
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup make test` ignores it, and children inherit that
lock = open(sys.argv[1])
fcntl.flock(lock, fcntl.LOCK_EX)
keeper = kept([sys.executable, "-c", {SERVICE!r}], lock.fileno())
print(keeper.pid, flush=True)
keeper.wait()
"""


def is_locked(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def pids(output: IO[str] | None, count: int) -> list[int]:
    assert output
    return [int(output.readline()) for _ in range(count)]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP, signal.SIGTERM])
def test_all_that_was_started_ends_with_a_parent_that_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "lock"
    path.touch()
    command = [sys.executable, "-c", PARENT, str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        started = pids(parent.stdout, 3)
        assert all(map(start_time, started))
        assert is_locked(path)
        parent.send_signal(number)
    until(lambda: not any(map(start_time, started)))
    until(lambda: not is_locked(path))


@pytest.mark.parametrize(("ends", "status"), [("sys.exit(3)", 3), ("sys.exit(0)", 1)])
def test_a_ui_that_ends_by_itself_has_failed(
    tmp_path: Path, ends: str, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """`dagster dev` exits with 0 where its daemon was killed."""
    with (tmp_path / "lock").open("w") as lock:
        keeper = kept([sys.executable, "-c", f"import sys; {ends}"], lock.fileno())
        assert ui._watch(keeper, 1, list) == status
    assert "exited unexpectedly" in capfd.readouterr().err


def test_another_server_on_the_port_is_not_taken_for_the_ui() -> None:
    class Page(Handler):
        def do_GET(self) -> None:
            self.answer(200, b"{}", {})

    with http_server(Page) as url:
        port = int(url.rpartition(":")[2])
        assert ui._answers(port, os.getsid(0))
        assert not ui._answers(port, os.getsid(0) + 1)


def test_a_taken_port_names_the_process_that_has_it() -> None:
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        assert listener(port) == os.getpid()
        with pytest.raises(SetupError, match=rf"port {port} .* by process {os.getpid()}: \S+"):
            check_port(port)
    assert listener(port) is None
    check_port(port)


def test_a_home_that_a_daemon_works_on_gets_no_second_one(
    instance: dg.DagsterInstance, settings: Settings, tmp_path: Path
) -> None:
    """Such as one that outlived the UI that started it, or that a person started."""
    ready = tmp_path / "ready"

    def daemon() -> None:
        instance.add_daemon_heartbeat(DaemonHeartbeat(0.0, "SENSOR", "one", []))
        instance.add_daemon_heartbeat(DaemonHeartbeat(0.0, "BACKFILL", "one", []))
        ready.touch()
        time.sleep(600)

    home = replace(settings, home=tmp_path)
    pid = forked(daemon)
    until(ready.exists)
    with pytest.raises(SetupError, match=f"a Dagster daemon is already running on .*: process {pid} on "):
        ui._lock(home)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    ui._lock(home).close()
