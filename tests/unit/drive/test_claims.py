"""What a run logs while it waits for slots, and what it does while Dagster's storage can't be reached."""

from __future__ import annotations

from dataclasses import dataclass, field

import dagster as dg
import pytest
from sqlalchemy.exc import OperationalError

from lakehouse_assets.drive import liveness
from lakehouse_assets.drive import slots as slots_module
from lakehouse_assets.drive.chunks import Chunk, Results
from lakehouse_assets.drive.liveness import Lookout
from lakehouse_assets.drive.slots import POOL, Claims, Slots
from tests.support.dagster_server import until
from tests.support.killed_runs import run_killed
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
    waiting: list[bool] = []

    def look(state: Results) -> None:
        waiting.append(state.waiting)
        assert len(waiting) < 200, "it is never logged"
        if len(logged_of_slots(workers)) == 2:
            storage.free_concurrency_slots_for_run("the-holder")

    monkeypatch.setattr(workers, "_report", look)
    progress = workers.drive("report")
    assert sorted(progress.receipts) == [0]
    waits = {entry.user_message for entry in logged_of_slots(workers)}
    assert waits == {
        "chunk 0 (key-0) waits for a slot of the pool lake_workers, held by run the-holder: see the queue and the "
        "limit in the UI, Deployment → Concurrency"
    }
    assert not waiting[0]
    assert any(waiting)
    assert not waiting[-1]


def test_that_its_own_workers_hold_the_slots_is_logged_once_a_run(workers: Workers, impatient) -> None:
    workers.instance.event_log_storage.set_concurrency_slots(POOL, 1)
    assert sorted(workers.drive(*["work"] * 4).receipts) == [0, 1, 2, 3]
    (wait,) = logged_of_slots(workers)
    assert f"chunk 1 (key-1) waits for a slot of the pool lake_workers, held by run {wait.run_id}:" in wait.message


@dataclass
class FullPool:
    """A pool whose slots others hold, for a run that notes what it logs."""

    id: str = "run"
    texts: list[str] = field(default_factory=list)

    def claim(self, chunk: int) -> bool:
        return False

    def holders(self) -> set[str]:
        return {"other"}

    def log(self, level: int, text: str) -> None:
        self.texts.append(text)


@pytest.mark.parametrize("chunks", [1, 3], ids=["one chunk", "chunks by turns"])
def test_a_wait_is_logged_after_seconds_and_then_every_minute(chunks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lookout, "look", lambda _: None)
    pool = FullPool()
    claims, logged = Claims(pool, pool), []
    for second in range(200):
        monkeypatch.setattr(slots_module.time, "monotonic", lambda second=second: 1000.0 + second)
        claims.claim(Chunk(second // 20 % chunks, ("key",)))
        if len(pool.texts) > len(logged):
            logged.append(second)
    assert logged == [5, 65, 125, 185]


def test_a_slot_that_a_dead_run_holds_is_given_to_the_run_that_waits(workers: Workers, impatient, monkeypatch) -> None:
    monkeypatch.setattr(liveness, "LOOK_SECONDS", 0.1)
    workers.instance.event_log_storage.set_concurrency_slots(POOL, 1)
    dead = run_killed(workers.instance)
    assert workers.taken()
    assert sorted(workers.drive("report").receipts) == [0]
    assert workers.taken() == 0
    assert workers.instance.get_run_by_id(dead).status is dg.DagsterRunStatus.FAILURE
    assert liveness.reaped_text(dead) in [entry.user_message for entry in logged_of_slots(workers)]


def test_a_slot_that_was_given_to_a_run_and_not_taken_is_held_by_it(instance: dg.DagsterInstance) -> None:
    instance.event_log_storage.set_concurrency_slots(POOL, 1)
    holder, dead, waiting = (Slots(instance, run, "step") for run in ("holder", "dead", "waiting"))
    assert holder.claim(0)
    assert not dead.claim(0)
    assert not waiting.claim(0)
    assert waiting.holders() == {"holder"}
    holder.free_all()  # Dagster gives it to the next, whose process may be gone
    assert waiting.holders() == {"dead"}
    assert until(lambda: dead.claim(0))
    assert waiting.holders() == {"dead"}


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


def test_a_storage_that_never_answers_ends_the_run(instance: dg.DagsterInstance, monkeypatch) -> None:
    """Between two tries nothing is asked, which is no answer."""

    def refuse(*_: object) -> None:
        raise OperationalError("SELECT", None, Exception("password authentication failed"))

    monkeypatch.setattr(instance.event_log_storage, "claim_concurrency_slot", refuse)
    instance.event_log_storage.set_concurrency_slots(POOL, 1)
    claims = Claims(Slots(instance, "run", "step"), FullPool())
    now = iter(range(10**6))
    monkeypatch.setattr(slots_module.time, "monotonic", lambda: next(now) / 20)
    with pytest.raises(OperationalError):
        for _ in range(100_000):
            claims.claim(Chunk(0, ("key",)))
    assert slots_module.UNREACHABLE_SECONDS < next(now) / 20 < slots_module.UNREACHABLE_SECONDS + 10
