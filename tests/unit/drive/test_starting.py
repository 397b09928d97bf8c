"""How a worker is started: in submit, after a shortage, again after its run was terminated.
Workers of earlier processes are in test_job.py and tests/integration/test_ecs.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import dagster as dg
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from lakehouse_assets.drive import chunks
from lakehouse_assets.drive.chunks import AttemptRecord, Journal
from lakehouse_assets.environment.launchers.base import Attempt, Ended, Handle, NotStarted
from lakehouse_assets.environment.launchers.local import LocalLauncher
from tests.support.tiny_drive import TINY, Workers


class Blocking(LocalLauncher):
    """Its submit returns when the worker has ended, as the inline one's. logged: the run's log before that."""

    blocking = True

    def __init__(self, log: Callable[[], list[str]]) -> None:
        super().__init__(TINY)
        self._log = log
        self.logged: list[str] = []

    def submit(self, attempt: Attempt, environment: Mapping[str, str]) -> Handle:
        self.logged = self._log()
        handle = super().submit(attempt, environment)
        handle.state.wait()
        return handle


def test_a_worker_that_runs_in_submit_is_logged_before_it_starts(workers: Workers) -> None:
    def log() -> list[str]:
        (run,) = workers.instance.get_runs(limit=1)
        return [record.user_message for record in workers.instance.all_logs(run.run_id)]

    workers.launcher = launcher = Blocking(log)
    workers.drive("report")
    assert launcher.logged[-1] == "chunk 0 (key-0): started in this run's own process"
    assert sum("started" in message and "chunk 0" in message for message in log()) == 1


class FullAtTimes(LocalLauncher):
    """Has no room for its first and its third worker."""

    asked = 0

    def submit(self, attempt: Attempt, environment: Mapping[str, str]) -> Handle:
        self.asked += 1
        if self.asked in (1, 3):
            raise NotStarted("no capacity", transient=True)
        return super().submit(attempt, environment)


def test_a_shortage_is_measured_from_its_own_beginning(workers: Workers, monkeypatch) -> None:
    monkeypatch.setattr(chunks, "FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(chunks, "REFUSED_SECONDS", 0.2)
    workers.launcher = FullAtTimes(TINY)
    progress = workers.drive("lose_s3")
    assert sorted(progress.receipts) == [0]
    assert not progress.failures


class KnowsKeys(LocalLauncher):
    """Knows its workers by their attempts' keys, as ECS does: find() returns only those that run, submit() also those
    that have ended."""

    durable = True

    def __init__(self) -> None:
        super().__init__(TINY)
        self.started: dict[str, Handle] = {}
        self.stopped: set[str] = set()
        self.interrupted = False

    def submit(self, attempt: Attempt, environment: Mapping[str, str]) -> Handle:
        if attempt.key not in self.started:
            self.started[attempt.key] = super().submit(attempt, environment)
        if self.interrupted:
            raise dg.DagsterExecutionInterruptedError
        return self.started[attempt.key]

    def find(self, attempt: Attempt) -> Handle | None:  # type: ignore[override]
        handle = self.started.get(attempt.key)
        return handle if handle and not super().poll([handle]) else None

    def poll(self, handles: Sequence[Handle]) -> dict[str, Ended]:
        ended = super().poll(handles)
        return {id: replace(end, stopped=id in self.stopped) for id, end in ended.items()}

    def cancel(self, handles: Sequence[Handle]) -> None:
        self.stopped |= {handle.id for handle in handles}
        super().cancel(handles)


def test_what_a_run_terminated_while_it_asked_has_stopped_is_tried_again(workers: Workers, monkeypatch) -> None:
    monkeypatch.setattr(chunks, "FIRST_WAIT_SECONDS", 0.1)
    workers.launcher = launcher = KnowsKeys()
    launcher.interrupted = True
    with pytest.raises(dg.DagsterExecutionInterruptedError):
        workers.drive("report")
    assert len(launcher.stopped) == 1
    assert not workers.progress.receipts
    launcher.interrupted = False
    progress = workers.drive("report")
    assert sorted(progress.receipts) == [0]
    assert not progress.failures


class Full(KnowsKeys):
    """Has no room for its first three workers. numbers: of the attempts that it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[int] = []

    def submit(self, attempt: Attempt, environment: Mapping[str, str]) -> Handle:
        self.numbers.append(attempt.number)
        if len(self.numbers) <= 3:
            raise NotStarted("no capacity", transient=True)
        return super().submit(attempt, environment)


def test_a_resumed_run_takes_another_key_after_each_refusal(workers: Workers, monkeypatch) -> None:
    """A service may answer a key that it knows with what it answered before."""
    monkeypatch.setattr(chunks, "FIRST_WAIT_SECONDS", 0.01)
    journal = Journal(PyArrowFileIO(), f"{workers.folder}/token")
    journal.record(0, AttemptRecord(3, "Full", "other work", datetime.now(UTC).isoformat()))
    workers.launcher = launcher = Full()
    progress = workers.drive("report")
    assert sorted(progress.receipts) == [0]
    assert launcher.numbers == [4, 5, 6, 7]


class Another(KnowsKeys):
    """Does not know the workers of KnowsKeys."""


def test_receipts_that_can_not_be_read_at_first_are_looked_for_again(workers: Workers, monkeypatch) -> None:
    monkeypatch.setattr(chunks, "FIRST_WAIT_SECONDS", 0.01)
    workers.launcher = KnowsKeys()
    workers.drive("write")
    workers.launcher = launcher = Another()
    workers.unreadable = 2
    progress = workers.drive("write")
    assert sorted(progress.receipts) == [0]
    assert not launcher.started
    assert workers.taken() == 0
