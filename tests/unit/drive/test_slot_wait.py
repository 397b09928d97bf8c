"""What a waiting run logs about the pool, and when; that the loop logs it is test_claims.py's."""

from __future__ import annotations

import time

import dagster as dg
import pytest

from lakehouse_assets.drive.slots import NAMED_RUNS, POOL, Queue, Slots, SlotWait, sentence
from tests.support.dagster_server import until


def claims(instance: dg.DagsterInstance, *runs: str) -> list[Slots]:
    """A claim of each run, one after the other; those at the limit wait."""
    storage, claimed = instance.event_log_storage, []
    for run in runs:
        queued = len(storage.get_concurrency_info(POOL).pending_steps)
        claimed.append(Slots(instance, run, "step"))
        claimed[-1].claim(0)
        assert len(storage.get_concurrency_info(POOL).pending_steps) == queued + 1
    return claimed


def test_who_holds_and_who_is_before(instance: dg.DagsterInstance) -> None:
    instance.event_log_storage.set_concurrency_slots(POOL, 3)
    first = Slots(instance, "first", "step")
    assert first.claim(0)
    assert first.claim(1)
    claims(instance, "second", "third")
    time.sleep(1)  # SQLite's clock has seconds
    (waiting,) = claims(instance, "fourth")
    assert not instance.event_log_storage.claim_concurrency_slot(POOL, "urgent", "step[0]", priority=1).is_claimed
    queue = waiting.queue(0)
    assert queue == Queue(POOL, 3, {"first": 2, "second": 1}, place=3, length=3)
    text = sentence(queue, "fourth", "chunk 0 (2024-01-01)", 62.4)
    assert text.startswith("chunk 0 (2024-01-01) has waited 62 s for a slot of the pool lake_workers, whose limit is 3")
    assert "place 3 of 3 in the queue" in text
    assert "held by run first (2 slots), run second (1 slot)." in text
    assert queue.metadata() == {
        "pool": dg.MetadataValue.pool(POOL),
        "holder 1: 2 slots": dg.MetadataValue.dagster_run("first"),
        "holder 2: 1 slot": dg.MetadataValue.dagster_run("second"),
    }


def test_a_slot_that_was_given_to_a_run_and_not_taken_is_held_by_it(instance: dg.DagsterInstance) -> None:
    instance.event_log_storage.set_concurrency_slots(POOL, 1)
    holder, dead, waiting = claims(instance, "holder", "dead", "waiting")
    holder.free_all()  # Dagster gives it to the next, whose process may be gone
    assert waiting.queue(0).holders == {"dead": 1}
    assert waiting.queue(0).place == 1
    queue = dead.queue(0)
    assert queue.holders == {}
    assert queue.place is None
    assert "it gets the next one" in sentence(queue, "dead", "chunk 0", 5)
    assert until(lambda: dead.claim(0))


def test_a_pool_of_no_slots_has_to_be_raised(instance: dg.DagsterInstance) -> None:
    instance.event_log_storage.set_concurrency_slots(POOL, 0)
    (waiting,) = claims(instance, "run")
    text = sentence(waiting.queue(0), "run", "chunk 0", 5)
    assert "whose limit is 0: nothing starts until it is raised" in text


def test_of_many_holders_some_are_named() -> None:
    queue = Queue(POOL, 20, {f"run-{n}": 1 for n in range(20)}, 1, 1)
    text = sentence(queue, "run-0", "chunk 0", 5)
    assert text.count("1 slot)") == NAMED_RUNS == len(queue.metadata()) - 1
    assert "this run (1 slot)" in text
    assert f"{20 - NAMED_RUNS} more runs" in text


def test_a_run_that_waits_for_its_own_workers_is_recognised() -> None:
    queue = Queue(POOL, 2, {"run": 2}, 1, 1)
    assert queue.only("run")
    assert "held by this run's own workers" in sentence(queue, "run", "chunk 2", 5)


@pytest.mark.parametrize("chunks", [[0], [0, 1, 2]], ids=["one chunk", "chunks by turns"])
def test_a_wait_is_logged_after_seconds_and_then_every_minute(chunks: list[int]) -> None:
    wait, logged = SlotWait(), []
    for second in range(200):
        chunk = chunks[second // 20 % len(chunks)]
        if second % 20 == 0 and len(chunks) > 1:
            wait.claimed(chunks[(second - 20) // 20 % len(chunks)], second)
        if wait.refused(chunk, second):
            assert wait.worth_logging(own=False)
            logged.append(second)
    assert logged == [5, 65, 125, 185]


def test_that_a_slot_came_is_logged_where_the_wait_was() -> None:
    wait = SlotWait()
    assert not wait.refused(0, 0.0)
    assert wait.claimed(0, 1.0) is None
    assert not wait.refused(1, 1.0)
    assert wait.refused(1, 7.0)
    assert wait.worth_logging(own=False)
    assert wait.for_others
    assert wait.claimed(1, 9.0) == 8.0
    assert not wait.for_others


def test_that_the_slots_are_the_runs_own_is_logged_once() -> None:
    wait = SlotWait()
    for chunk in range(3):
        wait.refused(chunk, 100.0 * chunk)
        assert wait.refused(chunk, 100.0 * chunk + 70)
        assert wait.worth_logging(own=True) == (chunk == 0)
        assert wait.claimed(chunk, 100.0 * chunk + 80) is None
