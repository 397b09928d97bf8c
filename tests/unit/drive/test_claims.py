"""What a run logs while it waits for slots, and what it does while Dagster's storage can't be reached.
The sentences are test_slots_module.py's."""

from __future__ import annotations

import dagster as dg
import pytest
from sqlalchemy.exc import OperationalError

from lakehouse_assets.drive import slots as slots_module
from lakehouse_assets.drive.chunk import Results
from lakehouse_assets.drive.slots import POOL
from tests.support.tiny_drive import Workers


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait is logged after tenths of a second instead of seconds and minutes."""
    monkeypatch.setattr(slots_module, "CLAIM_INTERVAL_SECONDS", 0.05)
    monkeypatch.setattr(slots_module, "NOTICED_SECONDS", 0.1)
    monkeypatch.setattr(slots_module, "REPEATED_SECONDS", 0.3)


def logged_of_slots(workers: Workers) -> list[dg.EventLogEntry]:
    (run,) = workers.instance.get_runs(limit=1)
    return [e for e in workers.instance.all_logs(run.run_id) if "slot" in e.message]


def test_a_wait_for_a_slot_is_logged_with_the_runs_that_hold_it(workers: Workers, impatient, monkeypatch) -> None:
    storage = workers.instance.event_log_storage
    storage.set_concurrency_slots(POOL, 1)
    assert storage.claim_concurrency_slot(POOL, "the-holder", "step").is_claimed
    assert not storage.claim_concurrency_slot(POOL, "the-next", "step", priority=1).is_claimed
    waiting: list[bool] = []

    def look(state: Results) -> None:
        waiting.append(state.waiting)
        assert len(waiting) < 200, "it is never logged"
        if sum("place 2 of 2" in e.message for e in logged_of_slots(workers)) == 2:
            for run in ("the-next", "the-holder"):
                storage.free_concurrency_slots_for_run(run)

    monkeypatch.setattr(workers, "_report", look)
    progress = workers.drive("report")
    assert sorted(progress.receipts) == [0]
    *waits, got = logged_of_slots(workers)
    assert len(waits) >= 2
    for wait in waits[:2]:
        assert "chunk 0 (key-0) has waited" in wait.message
        assert "the pool lake_workers, whose limit is 1" in wait.message
        assert "held by run the-holder (1 slot)" in wait.message
        assert wait.dagster_event.engine_event_data.metadata == {
            "pool": dg.MetadataValue.pool(POOL),
            "holder 1: 1 slot": dg.MetadataValue.dagster_run("the-holder"),
        }
    assert "chunk 0 (key-0) has its slot, after" in got.message
    assert not waiting[0]
    assert any(waiting)
    assert not waiting[-1]


def test_that_its_own_workers_hold_the_slots_is_logged_once_a_run(workers: Workers, impatient) -> None:
    workers.instance.event_log_storage.set_concurrency_slots(POOL, 1)
    assert sorted(workers.drive(*["work"] * 4).receipts) == [0, 1, 2, 3]
    (wait,) = logged_of_slots(workers)
    assert "held by this run's own workers: chunk 1 (key-1) and those after it start as these end" in wait.message


def test_who_holds_the_slots_is_read_only_while_one_is_waited_for(workers: Workers, impatient, monkeypatch) -> None:
    storage, asked = workers.instance.event_log_storage, []

    def ask(pool: str) -> None:
        asked.append(pool)
        raise OperationalError("SELECT", None, Exception("the database is restarting"))

    monkeypatch.setattr(storage, "get_concurrency_info", ask)
    workers.drive("work", "work")
    assert asked == []
    storage.set_concurrency_slots(POOL, 1)
    assert sorted(workers.drive("work", "work").receipts) == [0, 1]
    assert asked


def test_a_slot_that_can_not_be_given_back_yet_is_given_back_later(workers: Workers, monkeypatch) -> None:
    storage = workers.instance.event_log_storage
    storage.set_concurrency_slots(POOL, 1)
    free, refused = storage.free_concurrency_slot_for_step, []

    def freed(run_id: str, step: str) -> None:
        if len(refused) < 3:
            refused.append(step)
            raise OperationalError("DELETE", None, Exception("the database is restarting"))
        free(run_id, step)

    monkeypatch.setattr(storage, "free_concurrency_slot_for_step", freed)
    progress = workers.drive("report", "report")
    assert len(refused) == 3
    assert sorted(progress.receipts) == [0, 1]
    assert workers.taken() == 0
