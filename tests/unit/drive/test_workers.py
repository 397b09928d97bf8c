"""How workers end: their processes, slots and sessions, when they fail, hang, or the run is interrupted.
What a worker's end means for its chunk is test_judging.py's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from math import inf
from pathlib import Path
from unittest import mock

import dagster as dg
import pytest

from lakehouse_assets.drive import chunks
from lakehouse_assets.drive import workers as workers_module
from lakehouse_assets.drive.chunks import Results
from lakehouse_assets.drive.liveness import start_time
from lakehouse_assets.drive.slots import POOL
from lakehouse_assets.environment.launchers.base import Ended, Handle, Launcher
from lakehouse_assets.environment.launchers.local import LocalLauncher
from tests.conftest import advice
from tests.support.dagster_server import until
from tests.support.tiny_drive import TINY, Workers


def test_a_killed_worker_leaves_no_process_behind(workers: Workers) -> None:
    (failure,) = workers.drive("die").failures
    assert "killed (SIGKILL)" in failure.message
    assert "memory" in failure.message
    assert workers.child_is_gone(0)
    assert workers.taken() == 0


@pytest.mark.parametrize("step", ["abandon", "abandon_and_complain"])
def test_a_worker_that_ended_by_itself_leaves_no_process_behind(workers: Workers, step: str) -> None:
    progress = workers.drive(step)
    assert len(progress.receipts) == (step == "abandon")
    assert workers.child_is_gone(0)
    assert workers.taken() == 0


def test_a_worker_that_ends_while_it_is_looked_at_leaves_no_process_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between a look that finds it running and the next call it ends."""
    process = subprocess.Popen(["sh", "-c", "sleep 600 & exit 0"], start_new_session=True)
    handle = Handle(str(process.pid), process)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    look, looks = os.waitid, iter([None])
    monkeypatch.setattr(os, "waitid", lambda *of: next(looks, look(*of)))
    launcher = LocalLauncher(TINY)
    assert launcher.poll([handle]) == {}
    assert handle.id in launcher.poll([handle])
    assert until(lambda: not group_lives(process.pid))


def group_lives(group: int) -> bool:
    with suppress(ProcessLookupError):
        os.killpg(group, 0)
        return True
    return False


def test_a_worker_that_reported_and_hangs_gives_its_slot_back(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers_module, "ENDING_SECONDS", 0.5)
    workers.instance.event_log_storage.set_concurrency_slots(POOL, 1)
    progress = workers.drive("linger", "report")
    assert sorted(progress.receipts) == [0, 1]
    assert start_time(int(progress.receipts[0].worker)) is None


@dataclass
class Slow(Launcher):
    """A service whose workers take long to end once they were cancelled."""

    refusals: int = 0
    """How many calls it refuses first."""
    cancelled: list[str] = field(default_factory=list)

    def poll(self, handles: Sequence[Handle]) -> Mapping[str, Ended]:
        return {}

    def cancel(self, handles: Sequence[Handle]) -> None:
        self.cancelled += [handle.id for handle in handles]
        if self.refusals >= len(self.cancelled):
            raise OSError("throttled")


@pytest.mark.parametrize(("refusals", "calls"), [(0, 1), (2, 3)])
def test_a_worker_that_is_slow_to_end_is_cancelled_once(refusals: int, calls: int) -> None:
    launcher, run = Slow(refusals), mock.Mock()
    late = workers_module.RunningWorker(mock.Mock(), Handle("late"), mock.Mock(), None, ExitStack(), deadline=0.0)
    young = replace(late, handle=Handle("young"), deadline=inf)
    workers = workers_module.Workers(launcher, mock.Mock(), run, [], ending=[late, young])
    for _ in range(5):
        workers.poll()
    assert launcher.cancelled == ["late"] * calls
    assert run.log.call_count == refusals


@pytest.mark.parametrize("error", [KeyboardInterrupt, dg.DagsterExecutionInterruptedError], ids=lambda e: e.__name__)
def test_an_interruption_ends_all_workers_and_frees_their_slots(workers: Workers, error, monkeypatch) -> None:
    workers.instance.event_log_storage.set_concurrency_slots(POOL, 2)

    def interrupt(state: Results) -> None:
        if len(list(Path(workers.folder, "token").glob("*.child"))) == 2:
            raise error

    monkeypatch.setattr(workers, "_report", interrupt)
    with pytest.raises(error):
        workers.drive("hang", "hang", "report")
    assert workers.child_is_gone(0)
    assert workers.child_is_gone(1)
    assert not workers.progress.receipts
    assert workers.taken() == 0


@pytest.mark.parametrize("step", ["write", "tear", "die", "leave", "hang", "linger"])
def test_a_worker_s_end_is_logged_without_dagsters_advice(workers: Workers, step: str, monkeypatch) -> None:
    monkeypatch.setattr(chunks, "FIRST_WAIT_SECONDS", 0.1)
    monkeypatch.setattr(workers_module, "ENDING_SECONDS", 0.5)
    workers.drive(step, timeout=timedelta(seconds=2))
    assert advice(workers.instance) == []


def test_a_worker_that_never_reported_is_logged_without_dagsters_advice(workers: Workers) -> None:
    workers.launcher = LocalLauncher((sys.executable, "-c", "raise SystemExit(3)"))
    (failure,) = workers.drive("report").failures
    assert "exited with status 3" in failure.message
    assert advice(workers.instance) == []


@pytest.mark.parametrize(
    ("step", "error"), [("linger", dg.Failure), ("hang", KeyboardInterrupt)], ids=["red audit", "terminated"]
)
def test_a_run_that_ends_before_its_worker_logs_why_without_dagsters_advice(
    workers: Workers, step: str, error: type[BaseException], monkeypatch
) -> None:
    def end(state: Results) -> None:
        if state.receipts or list(Path(workers.folder, "token").glob("*.child")):
            raise error

    monkeypatch.setattr(workers, "_report", end)
    with pytest.raises(error):
        workers.drive(step, timeout=timedelta(seconds=20))
    assert advice(workers.instance) == []


def test_an_interrupted_worker_is_no_zombie(workers: Workers) -> None:
    before = _zombies()
    workers.drive("hang", timeout=timedelta(seconds=0.2))
    assert _zombies() <= before


def _zombies() -> set[int]:
    """The pids of this process's children that ended and were not waited for."""
    found = set()
    for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        with suppress(FileNotFoundError, ProcessLookupError):
            if Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                found.add(int(child))
    return found
