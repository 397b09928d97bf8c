"""What bounds a tick, and what it has still done where something fails in its middle.
What is asked for is in test_decide.py; deaths at every call are in test_queue_model.py. Time is virtual."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import dagster as dg
import pytest

from lakehouse_assets.extensions.queue.decide import AT_ONCE, PATIENCE
from lakehouse_assets.extensions.queue.inbox import Inbox, Item
from lakehouse_assets.extensions.queue.intake import SLICE, THREADS
from lakehouse_assets.extensions.queue.source import SqsQueue
from lakehouse_assets.extensions.queue.tick import FULL
from lakehouse_assets.storage.objects import THREADS as READERS
from tests.support.queue_model import START, Calls, MemoryObjects, World
from tests.support.tables import numbers

TICK_SECONDS = 60.0
"""After which Dagster ends a tick."""
DAYS = dg.DailyPartitionsDefinition("1950-01-01", end_date="2024-03-01")
KEYS = DAYS.get_partition_keys()


class Failing(MemoryObjects):
    """Objects of which some can't be written, or removed."""

    def __init__(self, writes: int | None = None, *, removes: bool = True) -> None:
        super().__init__(Calls())
        self.writes, self.removes = writes, removes

    def write(self, name: str, content: bytes) -> None:
        if self.writes is not None and len(self.contents) >= self.writes:
            raise OSError("no space left")
        super().write(name, content)

    def remove(self, names: Sequence[str]) -> None:
        if names and not self.removes:
            raise OSError("read-only")
        super().remove(names)


class SlowReads(MemoryObjects):
    """Objects each of which takes a while to be read."""

    def __init__(self, passes: Callable[[], None]) -> None:
        super().__init__(Calls())
        self.passes = passes

    def read(self, name: str) -> bytes:
        self.passes()
        return super().read(name)


@dataclass(frozen=True)
class SlowRejects(SqsQueue):
    """A queue whose dead letters take long."""

    passes: Callable[[], None] = lambda: None

    def reject(self, body: str, reason: str) -> None:
        self.passes()
        super().reject(body, reason)


def world(objects: MemoryObjects | None = None) -> World:
    found = World(Calls())
    found.table, found.keys = numbers(partitions=DAYS), KEYS[:300]
    found.inbox = Inbox(objects or MemoryObjects(Calls()))
    return found


def passing(of: World, seconds: float) -> Callable[[], None]:
    lock = threading.Lock()

    def passes() -> None:
        with lock:
            of.now += seconds

    return passes


def test_no_more_dead_letters_are_written_than_there_is_time_for() -> None:
    of = world()
    ms = round((START - PATIENCE.total_seconds()) * 1000)
    of.inbox.put(Item(f"gone.t{n}", "1", 1, ms, ms) for n in range(AT_ONCE))
    source = SlowRejects(of.sqs, "x/q", "x/dead", passes=passing(of, 10.0 / THREADS))
    began = of.now
    told = of.tick(source).run()
    assert of.now - began <= TICK_SECONDS
    dead = len(of.sqs.queues["dead"].messages)
    assert 0 < dead < AT_ONCE
    assert len(of.inbox.waiting()) == AT_ONCE - dead
    assert told.taken.reasons.total() == dead


def test_what_was_taken_before_the_storage_failed_is_counted_and_run() -> None:
    of = world(Failing(writes=SLICE + 50))
    for key in of.keys:
        of.arrives(key)
        of.now += 0.001
    of.now += 60
    told = of.tick().run()
    assert "no space left" in str(told.faults["messages could not be taken"])
    assert told.taken.received == 300
    assert SLICE <= told.taken.deleted <= SLICE + 50
    assert told.taken.left == len(of.sqs.queues["q"].messages)
    assert told.decision.requests


@pytest.mark.parametrize("doing", ["requests that will never run stay in the inbox", "the inbox could not be tidied"])
def test_runs_are_asked_for_where_nothing_can_be_removed_from_the_inbox(doing: str) -> None:
    of = world(Failing(removes=False))
    if "tidied" in doing:
        of.inbox.objects.write("a.t/x.json.123456789012.done", b'{"version": 2, "done": [1]}')
    else:
        of.inbox.put([Item(of.table.identifier, "2023-01-01", 1, 0, 0)])
    of.arrives(of.keys[0])
    of.now += 60
    told = of.tick().run()
    assert "read-only" in str(told.faults[doing])
    assert told.decision.requests


def test_an_inbox_that_older_code_has_filled_is_read_in_several_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the objects that one tick reads, each of which takes ten times as long as it was measured."""
    most, objects = FULL // 10, 5_100
    monkeypatch.setattr("lakehouse_assets.extensions.queue.tick.FULL", most)
    filled = MemoryObjects(Calls())
    Inbox(filled).put(Item("demo.numbers", KEYS[n % 300], 1, n, 6) for n in range(objects))
    of = world()
    slow = SlowReads(passing(of, 84 / objects))
    assert READERS == 16, "at which the seconds were measured"
    slow.contents = filled.contents
    of.inbox = Inbox(slow)
    waiting = []
    for _ in range(-(-objects // most)):
        began = of.now
        waiting.append(sum(one.messages for one in of.tick().run().waiting))
        assert of.now - began <= TICK_SECONDS / 2
        of.now += 10
    assert waiting == [*range(most, objects, most), objects]


@pytest.mark.long("Ticks of days of a simulated clock, with one object read in each.")
def test_failures_of_partitions_that_are_not_read_yet_are_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    of = world()
    of.bad = frozenset(of.keys[:1])
    of.arrives(of.keys[0])
    of.go()  # until it is parked
    runs = len(of.runs)
    monkeypatch.setattr("lakehouse_assets.extensions.queue.tick.FULL", 1)
    of.inbox.put([Item("a.other", "1", 1, 5, 6), Item("a.other", "2", 1, 5, 7)])
    of.inbox = Inbox(MemoryObjects(of.calls, of.inbox.objects.contents))  # type: ignore[attr-defined]
    for _ in range(4):  # of another process
        of.now += 3600
        of.tick().run()
    of.go()
    assert len(of.runs) == runs
