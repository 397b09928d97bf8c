"""Taking messages: how many, for how long, what is kept when SQS fails in the middle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from botocore.exceptions import ClientError

from lakehouse_assets.extensions.queue.inbox import Inbox
from lakehouse_assets.extensions.queue.intake import DOING_SECONDS, Intake, TakenMessages
from lakehouse_assets.extensions.queue.messages import Routes
from lakehouse_assets.extensions.queue.source import SqsQueue
from tests.support.fakes.sqs_service import FakeSqs
from tests.support.queue_model import Calls, CountedSqs, MemoryObjects
from tests.support.tables import numbers

TABLE = numbers()
BODY = f'{{"table": "{TABLE.identifier}", "partitions": ["2024-01-0%d"]}}'


class Failing:
    """The fake, whose operations raise what boto3 raises when a test says so."""

    def __init__(self, sqs: FakeSqs, fails: Callable[[str], bool]) -> None:
        self._sqs, self._fails = sqs, fails

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(**arguments: Any) -> Any:
            if self._fails(name):
                raise ClientError({"Error": {"Code": "ServiceUnavailable", "Message": ""}}, name)
            return getattr(self._sqs, name)(**arguments)

        return call


def intake(sqs: Any, monotonic: Callable[[], float] = lambda: 0.0) -> Intake:
    routes = Routes([TABLE], "/landing", lambda _: ["2024-01-01"])
    return Intake(SqsQueue(sqs, "x/q", "x/dead"), routes, Inbox(MemoryObjects(Calls())), monotonic=monotonic)


def took(intake: Intake, **most: int) -> TakenMessages:
    intake.take(**most)
    return intake.taken


def queue(messages: int) -> FakeSqs:
    sqs = FakeSqs("q", "dead")
    for number in range(messages):
        sqs.send_message(QueueUrl="x/q", MessageBody=BODY % (number % 9 + 1))
    return sqs


def test_all_that_is_there_is_one_object_a_partition() -> None:
    sqs = queue(250)
    calls = Calls()
    found = intake(CountedSqs(sqs, calls))
    taken = took(found)
    assert (taken.received, taken.deleted, taken.left, len(taken.wanted)) == (250, 250, 0, 9)
    assert sum(item.messages for item in found.inbox.waiting().values()) == 250
    assert len(found.inbox.waiting()) == 9
    assert not sqs.queues["q"].messages
    assert calls.made <= 0.35 * 250


def test_an_empty_queue_costs_one_call() -> None:
    calls = Calls()
    took(intake(CountedSqs(queue(0), calls)))
    assert calls.made == 1


def test_no_more_than_asked_for() -> None:
    assert took(intake(queue(250)), most=50).received <= 56  # the threads' shares are rounded up


def test_the_time_box_ends_receiving_and_keeps_what_was_received() -> None:
    sqs = queue(250)
    clock = iter([0.0, 0.0, 0.0, *[DOING_SECONDS / 2] * 99])
    taken = took(intake(sqs, lambda: next(clock)))
    assert 0 < taken.received < 250
    assert taken.deleted == taken.received
    assert len(sqs.queues["q"].messages) == 250 - taken.received


def test_what_was_received_before_sqs_failed_is_kept() -> None:
    calls = iter(range(99))
    sqs = queue(100)
    taken = took(intake(Failing(sqs, lambda name: name == "receive_message" and next(calls) > 2)))
    assert taken.received == taken.deleted == 30
    assert "receiving" in taken.faults


def test_what_cant_be_deleted_is_in_the_inbox_and_comes_again() -> None:
    sqs = queue(20)
    found = intake(Failing(sqs, lambda name: name == "delete_message_batch"))
    taken = took(found)
    assert (taken.received, taken.deleted, taken.left) == (20, 0, 20)
    assert len(found.inbox.waiting()) == 9


def test_a_handle_that_somebody_elses_receive_made_stale_deletes_nothing() -> None:
    now = [1000.0]
    sqs = FakeSqs("q", "dead", clock=lambda: now[0])
    sqs.send_message(QueueUrl="x/q", MessageBody=BODY % 1)
    found = intake(sqs)
    put = found.inbox.put

    def slow(items: Any) -> None:
        now[0] += 200  # longer than the message is hidden
        (message,) = sqs.receive_message(QueueUrl="x/q")["Messages"]
        assert message["Body"] == BODY % 1
        put(items)

    object.__setattr__(found.inbox, "put", slow)
    found.take()
    assert len(sqs.queues["q"].messages) == 1  # it comes again, which costs a run and loses nothing
    assert len(found.inbox.waiting()) == 1


def test_bad_messages_that_time_does_not_suffice_for_stay_in_the_queue() -> None:
    sqs = FakeSqs("q", "dead")
    for number in range(30):
        sqs.send_message(QueueUrl="x/q", MessageBody="{" * number or "[")
    sqs.send_message(QueueUrl="x/q", MessageBody=BODY % 1)
    inbox = Inbox(MemoryObjects(Calls()))
    found = intake(sqs, lambda: 100.0 if inbox.objects.names() else 0.0)  # time is up when the inbox has the good one
    found.inbox = inbox
    taken = took(found)
    left, dead = sqs.queues["q"].messages, sqs.queues["dead"].messages
    assert len(found.inbox.waiting()) == 1
    assert len(dead) < 30
    assert len(left) >= 30 - len(dead)
    assert taken.left == len(left)
