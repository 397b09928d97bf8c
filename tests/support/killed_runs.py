"""Runs of a Dagster instance in forked processes, also in a container's namespaces, that tests kill."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import dagster as dg
import pytest

from lakehouse_assets.drive.slots import POOL
from tests.conftest import missing
from tests.support.dagster_server import until

CLONE_NEWUTS, CLONE_NEWPID = 0x04000000, 0x20000000  # linux/sched.h


@dg.op
def pause() -> None:
    time.sleep(600)


@dg.job
def paused() -> None:
    pause()


@dg.op(pool=POOL)
def kill() -> None:
    die()


@dg.job
def killed() -> None:
    kill()


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def forked(work: Callable[[], object]) -> int:
    """Do this in a child; returns its pid. A child that is not killed exits with 0."""
    if pid := os.fork():
        return pid
    try:
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def in_container(work: Callable[[], object], folder: Path, host: str | None = None) -> int:
    """As forked, as the first process of a pid namespace; with a host name of its own where one is given."""
    if os.geteuid():
        missing("namespaces need root")
    note = folder / "pid"

    def contain() -> None:
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWPID | CLONE_NEWUTS):
            os._exit(77)
        if host:
            socket.sethostname(host)
        pid = forked(work)
        note.with_suffix(".new").write_text(str(pid))
        note.with_suffix(".new").rename(note)
        os.waitpid(pid, 0)

    outer = forked(contain)

    def noted() -> int | None:
        if os.waitpid(outer, os.WNOHANG)[0]:
            pytest.skip("this machine lets nobody make namespaces")
        return int(note.read_text()) if note.exists() else None

    return until(noted)


def run_paused(instance: dg.DagsterInstance) -> None:
    """A run whose op never ends."""
    paused.execute_in_process(instance=instance, raise_on_error=False)


def run_killed(instance: dg.DagsterInstance) -> str:
    """A run in a process of its own, which died while it held a slot of the workers' pool; returns its id."""
    os.waitpid(forked(lambda: killed.execute_in_process(instance=instance)), 0)
    return instance.get_runs(limit=1)[0].run_id


def started(instance: dg.DagsterInstance) -> str:
    """The id of the only run, once its op has begun."""

    def begun() -> str | None:
        runs = instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
        logs = [instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_START) for run in runs]
        return runs[0].run_id if logs and logs[0] else None

    return until(begun)
