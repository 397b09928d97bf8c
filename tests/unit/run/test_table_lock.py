"""The lock by table: who waits for whom, and that it is free when its run has ended.
That a merge which others disturb takes it: integration/test_merge.py."""

# No `from __future__ import annotations`: Dagster needs the annotations as objects, not as text.

import os
from collections.abc import Callable
from contextlib import closing

import dagster as dg
import pytest

from lakehouse_assets.drive.liveness import ThisRun
from lakehouse_assets.run import table_lock as module
from lakehouse_assets.run.table_lock import TableLock
from tests.support.killed_runs import die, forked

TABLE, STEP = "demo.t", "merged[lock]"
Work = Callable[[TableLock], object]
WAITS = pytest.mark.parametrize("waits", [TableLock.wait_for_others, TableLock.take], ids=["to land", "to take it"])


def run(instance: dg.DagsterInstance, work: Work, before_waiting: Callable[[], object] = lambda: None) -> bool:
    """A run that works with the lock of the table; whether it succeeds."""

    @dg.asset
    def merged(context: dg.AssetExecutionContext) -> None:
        with closing(TableLock(context, TABLE, before_waiting)) as lock:
            work(lock)

    return dg.materialize([merged], instance=instance, raise_on_error=False).success


def taken_by(instance: dg.DagsterInstance, run_id: str, table: str = TABLE) -> None:
    """The lock of a table, by a run that another process works for."""
    instance.event_log_storage.set_concurrency_slots(f"lake_merge_{table}", 1)
    claim = instance.event_log_storage.claim_concurrency_slot(f"lake_merge_{table}", run_id, STEP)
    assert claim.is_claimed


@WAITS
def test_others_wait_until_it_is_free(waits: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, given_back = [], []

    def look(_: ThisRun) -> None:
        looks.append(0)
        if len(looks) == 3:
            instance.event_log_storage.free_concurrency_slot_for_step("another", STEP)

    monkeypatch.setattr(module, "WAIT_SECONDS", 0.01)
    monkeypatch.setattr(ThisRun, "raise_if_ended", look)
    with dg.instance_for_test() as instance:
        taken_by(instance, "another")
        assert run(instance, waits, before_waiting=lambda: given_back.append(len(looks)))
    assert len(looks) == 3
    assert given_back == [0], "the other may need it"


@WAITS
def test_who_is_ended_does_not_wait_for_ever_and_leaves_the_queue(waits: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(_: ThisRun) -> None:
        raise dg.Failure("ended")

    monkeypatch.setattr(ThisRun, "raise_if_ended", ended)
    with dg.instance_for_test() as instance:
        taken_by(instance, "another")
        assert not run(instance, waits)
        instance.event_log_storage.free_concurrency_slot_for_step("another", STEP)
        assert run(instance, TableLock.take)


@WAITS
def test_a_lock_of_a_dead_run_is_free(waits: Work, instance: dg.DagsterInstance) -> None:
    os.waitpid(forked(lambda: run(instance, lambda lock: (lock.take(), die()))), 0)
    (dead,) = instance.get_runs()
    assert dead.status is dg.DagsterRunStatus.STARTED
    assert run(instance, waits)
    assert instance.get_run_by_id(dead.run_id).status is dg.DagsterRunStatus.FAILURE


@pytest.mark.parametrize("waits", [TableLock.wait_for_others, lambda lock: (lock.take(), lock.close())])
def test_a_run_does_not_wait_for_an_earlier_process_of_its_own(waits: Work) -> None:
    def work(lock: TableLock) -> None:
        taken_by(instance, lock.context.run.run_id)  # Dagster frees the slot only at the run's end
        waits(lock)
        taken_by(instance, "another")

    with dg.instance_for_test() as instance:
        assert run(instance, work)


@pytest.mark.parametrize("fails", [False, True])
def test_it_is_free_when_its_run_has_ended(fails: bool) -> None:
    def work(lock: TableLock) -> None:
        lock.take()
        lock.take()
        lock.wait_for_others()  # it is no other
        if fails:
            raise dg.Failure("the merge fails")

    with dg.instance_for_test() as instance:
        taken_by(instance, "another", "demo.other")
        assert run(instance, work, before_waiting=lambda: pytest.fail("it needs not wait")) is not fails
        taken_by(instance, "another")


def test_a_lock_that_cant_be_given_back_fails_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are published by then, and Dagster frees the lock at the run's end."""
    with dg.instance_for_test() as instance:

        def work(lock: TableLock) -> None:
            lock.take()
            monkeypatch.setattr(type(instance.event_log_storage), "free_concurrency_slot_for_step", unreachable)

        assert run(instance, work)
        (info,) = [entry for entry in instance.all_logs(instance.get_runs()[0].run_id) if "lock" in entry.user_message]
        assert "can't be released" in info.user_message


def unreachable(*_: object) -> None:
    raise OSError("the storage of Dagster is out of reach")
