"""Requests that are too large for one tick, or slow to be put down: each is settled, and none comes for ever.
Time is virtual: each call of the storage and of SQS takes its share of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import dagster as dg

from lakehouse_assets.extensions.queue.inbox import Inbox
from lakehouse_assets.extensions.queue.intake import (
    DOING_SECONDS,
    FIRST,
    MOST_ASKED,
    SLICE,
    THREADS,
    Intake,
    TakenMessages,
)
from lakehouse_assets.extensions.queue.messages import Routes
from lakehouse_assets.extensions.queue.source import SqsQueue
from lakehouse_assets.storage.objects import THREADS as WRITERS
from tests.support.fakes.sqs_service import FakeSqs
from tests.support.queue_model import Calls, MemoryObjects
from tests.support.tables import numbers

TICK_SECONDS = 60.0
"""After which Dagster ends a tick."""
BETWEEN = 10.0
TABLE = numbers(partitions=dg.DailyPartitionsDefinition("1900-01-01", end_date="2024-01-01"))
assert TABLE.partitions
KEYS: Sequence[str] = TABLE.partitions.get_partition_keys()


class Slow:
    """A queue and an inbox whose calls take time. put: seconds of one write; call: of one call of SQS; read: of reading
    a message."""

    def __init__(self, put: float, call: float = 0.025, read: float = 0.0) -> None:
        self.now, self.writes, self.lock = 1_000_000.0, 0, threading.Lock()
        self.sqs = FakeSqs("q", "dead", clock=lambda: self.now)
        self.objects = _SlowObjects(lambda: self._pass(put / WRITERS))
        self.inbox = Inbox(self.objects)
        self.client = _SlowSqs(self.sqs, lambda: self._pass(call / THREADS))
        self.routes = Routes([TABLE], "/", lambda _: self._keys(read))

    def _pass(self, seconds: float) -> None:
        with self.lock:
            self.now += seconds

    def _keys(self, seconds: float) -> Sequence[str]:
        """What a range is read by."""
        self._pass(seconds)
        return KEYS

    def send(self, partitions: Any) -> None:
        body = json.dumps({"table": TABLE.identifier, "partitions": partitions})
        self.sqs.send_message(QueueUrl="x/q", MessageBody=body)

    def tick(self, spent: float = 0.0) -> TakenMessages:
        """A tick, and the time until the next one. spent: seconds of it that are over before messages are taken."""
        began = self.now
        clock = lambda: self.now  # noqa: E731
        intake = Intake(SqsQueue(self.client, "x/q", "x/dead"), self.routes, self.inbox, clock, clock)
        self.now += spent
        intake.take()
        assert self.now - began <= TICK_SECONDS
        self.now += BETWEEN
        return intake.taken

    @property
    def left(self) -> int:
        return len(self.sqs.queues["q"].messages)

    @property
    def receives(self) -> int:
        """The most that a message which is still there was received."""
        return max((message.receives for message in self.sqs.queues["q"].messages.values()), default=0)

    def settle(self, ticks: int) -> tuple[int, int]:
        """Ticks until the queue is empty, and how often one of its messages was received at most."""
        most = 0
        for n in range(ticks):
            if not self.left:
                return n, most
            self.tick()
            most = max(most, self.receives)
        raise AssertionError(f"{self.left} messages are still there after {ticks} ticks, received {most} times")


class _SlowObjects(MemoryObjects):
    def __init__(self, passes: Callable[[], None]) -> None:
        super().__init__(Calls())
        self.passes = passes

    def write(self, name: str, content: bytes) -> None:
        self.passes()
        super().write(name, content)


class _SlowSqs:
    def __init__(self, sqs: FakeSqs, passes: Callable[[], None]) -> None:
        self._sqs, self._passes = sqs, passes

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(**arguments: Any) -> Any:
            self._passes()
            return getattr(self._sqs, name)(**arguments)

        return call


def test_a_range_of_45_000_partitions_is_one_object_and_settled_at_once() -> None:
    slow = Slow(put=0.025)
    slow.send({"first": KEYS[0], "last": KEYS[44_999]})
    taken = slow.tick()
    assert (taken.received, taken.deleted, len(slow.objects.contents)) == (1, 1, 1)
    assert [item.key for item in slow.inbox.waiting().values()] == KEYS[:45_000]


def test_a_list_is_one_object_too_and_ranges_may_overlap() -> None:
    slow = Slow(put=0.025)
    slow.send(KEYS[:3000])
    slow.now += 1
    slow.send({"first": KEYS[2000], "last": KEYS[5000]})
    slow.tick()
    assert not slow.left
    waiting = slow.inbox.waiting().values()
    assert sorted(item.key for item in waiting) == KEYS[:5001]
    assert sum(item.messages for item in waiting) == 3000 + 3001
    assert len(slow.objects.contents) == 3


def test_more_than_a_tick_can_put_down_is_settled_slice_by_slice() -> None:
    slow = Slow(put=0.5)
    for key in KEYS[:3000]:  # 94 seconds
        slow.send([key])
        slow.now += 0.001
    ticks, receives = slow.settle(12)
    assert len(slow.inbox.waiting()) == 3000
    assert receives <= 2
    assert ticks <= 6


def test_a_storage_that_hardly_moves_has_little_received() -> None:
    slow = Slow(put=4.0)
    for key in KEYS[:2000]:
        slow.send([key])
        slow.now += 0.001
    taken = [slow.tick() for _ in range(3)]
    assert all(one.deleted for one in taken)


def test_no_more_is_received_than_can_be_settled_in_the_time_left() -> None:
    slow = Slow(put=0.025)
    for key in KEYS[:3000]:
        slow.send([key])
        slow.now += 0.001
    assert slow.tick(spent=DOING_SECONDS).received == 0
    assert 0 < slow.tick(spent=DOING_SECONDS - 1).received < 3000
    assert slow.tick().left == 0


def test_a_large_request_that_comes_often_is_read_once() -> None:
    slow = Slow(put=0.025, read=0.1)
    for _ in range(FIRST):
        slow.send({"first": KEYS[0], "last": KEYS[44_999]})
    slow.tick()
    assert not slow.left
    waiting = slow.inbox.waiting().values()
    assert [item.key for item in waiting] == KEYS[:45_000]
    assert {item.messages for item in waiting} == {FIRST}


def test_no_more_is_read_than_can_be_counted() -> None:
    slow = Slow(put=0.025)
    for n in range(60):  # 2.6 million partitions
        slow.send({"first": KEYS[n], "last": KEYS[44_000 + n]})
    taken = slow.tick()
    assert taken.deleted == MOST_ASKED // 44_001 + 1
    assert sum(taken.wanted.values()) == taken.deleted * 44_001
    assert slow.tick().received == 0, "those that are left come again, when SQS hands them out"


def test_a_message_that_takes_long_to_read_keeps_no_others_from_being_settled() -> None:
    slow = Slow(put=0.025, read=0.9)
    for n in range(SLICE):
        slow.send({"first": KEYS[n], "last": KEYS[n]})
    assert 0 < slow.tick().deleted < SLICE
