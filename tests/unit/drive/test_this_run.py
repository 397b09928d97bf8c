"""The run's status and its log: who ended the run, and what happens while Dagster's storage is away.
How workers are ended then is test_workers.py's."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from unittest import mock

import dagster as dg
import pytest
from sqlalchemy.exc import OperationalError

from lakehouse_assets.drive import liveness
from lakehouse_assets.drive.chunks import Results
from lakehouse_assets.environment.launchers.base import Handle
from lakehouse_assets.environment.launchers.local import LocalLauncher
from tests.support.tiny_drive import TINY, Workers


def terminating(workers: Workers, then: Callable[[], object] = lambda: None) -> Callable[[Results], None]:
    """A hook that has the run terminated as soon as its worker has a child; no signal is sent."""

    def look(state: Results) -> None:
        (run,) = workers.instance.get_runs(limit=1)
        if run.status == dg.DagsterRunStatus.STARTED and list(Path(workers.folder, "token").glob("*.child")):
            workers.instance.report_run_canceling(run)
            then()

    return look


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_termination_whose_signal_python_drops_ends_all_workers(workers: Workers, monkeypatch) -> None:
    class Destroyed:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)

    monkeypatch.setattr(workers, "_report", terminating(workers, then=Destroyed))
    with pytest.raises(dg.DagsterExecutionInterruptedError):
        workers.drive("hang", timeout=timedelta(seconds=20))
    assert workers.child_is_gone(0)
    assert workers.taken() == 0


def test_a_signal_that_comes_while_workers_are_ended_leaves_none_of_them_running(workers: Workers, monkeypatch) -> None:
    monkeypatch.setattr(workers, "_report", terminating(workers))
    with pytest.raises(dg.DagsterExecutionInterruptedError):
        workers.drive("resist", timeout=timedelta(seconds=20))
    assert workers.child_is_gone(0)
    assert workers.taken() == 0


def test_while_the_instance_can_not_be_read_workers_go_on(workers: Workers, monkeypatch) -> None:
    monkeypatch.setattr(liveness, "STATUS_SECONDS", 0.0)
    ask, refused = workers.instance.get_run_by_id, []

    def asked(run_id: str) -> dg.DagsterRun | None:
        if workers.limits and len(refused) < 3:
            refused.append(run_id)
            raise OperationalError("SELECT", None, Exception("the database is restarting"))
        return ask(run_id)

    monkeypatch.setattr(workers.instance, "get_run_by_id", asked)
    progress = workers.drive("work")
    assert len(refused) == 3
    assert sorted(progress.receipts) == [0]


def test_what_the_run_s_log_does_not_take_costs_no_worker(workers: Workers, monkeypatch) -> None:
    storage = workers.instance.event_log_storage
    store, refused = storage.store_event, []

    def stored(event: dg.EventLogEntry) -> None:
        if workers.limits and len(refused) < 6:
            refused.append(event)
            raise OperationalError("INSERT", None, Exception("the database is restarting"))
        store(event)

    monkeypatch.setattr(storage, "store_event", stored)
    progress = workers.drive("write_and_report", "write_and_report", "complain")
    assert len(refused) == 6
    assert sorted(progress.receipts) == [0, 1]
    assert [f.chunk.ordinal for f in progress.failures] == [2]


class Away(LocalLauncher):
    """Workers outlive their run; whether its service stopped them is never known."""

    durable = True

    def cancel(self, handles: Sequence[Handle]) -> None:
        super().cancel(handles)
        raise OSError("the service is out of reach")


def test_what_ended_a_run_is_raised_though_neither_dagster_nor_the_service_answers(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(state: Results) -> None:
        if list(Path(workers.folder, "token").glob("*.child")):
            raise KeyboardInterrupt

    workers.launcher = Away(TINY)
    monkeypatch.setattr(workers, "_report", interrupt)
    restarting = OperationalError("SELECT", None, Exception("the database is restarting"))
    # Dagster asks as well, after the loop.
    monkeypatch.setattr(dg.DagsterInstance, "run_will_resume", mock.Mock(side_effect=[restarting, False, False]))
    with pytest.raises(KeyboardInterrupt):
        workers.drive("hang")
    assert workers.child_is_gone(0)
    assert workers.taken() == 0
    (run,) = workers.instance.get_runs(limit=1)
    logged = [record.user_message for record in workers.instance.all_logs(run.run_id)]
    assert any("workers may still be running" in message for message in logged)
