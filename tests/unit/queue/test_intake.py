"""Taking messages: how many, for how long, what is kept when SQS fails in the middle."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from lakehouse_assets.inbox.inbox import Inbox
from lakehouse_assets.queue.dead_letters import DeadLetters
from lakehouse_assets.queue.intake import DOING_SECONDS, LARGEST, Depth, Intake, reason_attribute
from lakehouse_assets.queue.route import Routes
from tests.support.fakes.sqs_service import FakeSqs
from tests.support.queue_model import Calls, MemoryObjects
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
    return Intake(sqs, "x/q", "x/dead", routes, Inbox(MemoryObjects(Calls())), monotonic=monotonic)


def queue(messages: int) -> FakeSqs:
    sqs = FakeSqs("q", "dead")
    for number in range(messages):
        sqs.send_message(QueueUrl="x/q", MessageBody=BODY % (number % 9 + 1))
    return sqs


def test_all_that_is_there_is_one_object_a_partition() -> None:
    sqs = queue(250)
    found = intake(sqs)
    taken = found.take()
    assert (taken.received, taken.deleted, taken.left, len(taken.wanted)) == (250, 250, 0, 9)
    assert sum(item.messages for item in found.inbox.waiting().values()) == 250
    assert len(found.inbox.waiting()) == 9
    assert not sqs.queues["q"].messages
    assert taken.calls <= 0.35 * 250


def test_an_empty_queue_costs_one_call() -> None:
    assert intake(queue(0)).take().calls == 1


def test_no_more_than_asked_for() -> None:
    assert intake(queue(250)).take(most=50).received <= 56  # the threads' shares are rounded up


def test_the_time_box_ends_receiving_and_keeps_what_was_received() -> None:
    sqs = queue(250)
    clock = iter([0.0, 0.0, 0.0, *[DOING_SECONDS / 2] * 99])
    taken = intake(sqs, lambda: next(clock)).take()
    assert 0 < taken.received < 250
    assert taken.deleted == taken.received
    assert len(sqs.queues["q"].messages) == 250 - taken.received


def test_what_was_received_before_sqs_failed_is_kept() -> None:
    calls = iter(range(99))
    sqs = queue(100)
    taken = intake(Failing(sqs, lambda name: name == "receive_message" and next(calls) > 2)).take()
    assert taken.received == taken.deleted == 30
    assert "receiving" in taken.faults


def test_what_cant_be_deleted_is_in_the_inbox_and_comes_again() -> None:
    sqs = queue(20)
    found = intake(Failing(sqs, lambda name: name == "delete_message_batch"))
    taken = found.take()
    assert (taken.received, taken.deleted, taken.left) == (20, 0, 20)
    assert len(found.inbox.waiting()) == 9


@pytest.mark.parametrize(
    ("reason", "size", "sent"),
    [
        ("why", 10, "why"),
        ("a\x00b\ud7ffc\ufffe", 10, "a\ufffdb\ud7ffc\ufffd"),
        ("é" * 2000, 10, "é" * 500),
        ("why", LARGEST - 14, "wh"),
        ("why", LARGEST, None),
    ],
)
def test_a_reason_is_what_sqs_takes(reason: str, size: int, sent: str | None) -> None:
    found = reason_attribute(reason, size)
    assert found == ({} if sent is None else {"reason": {"DataType": "String", "StringValue": sent}})


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


def test_the_same_is_true_of_moto(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another's idea of SQS than our own fake's."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "nobody")
    with mock_aws():
        sqs = boto3.client("sqs", region_name="eu-central-1")
        urls = [sqs.create_queue(QueueName=name)["QueueUrl"] for name in ("q", "dead")]
        for number in range(25):
            sqs.send_message(QueueUrl=urls[0], MessageBody=BODY % (number % 9 + 1))
        sqs.send_message(QueueUrl=urls[0], MessageBody="{")
        found = replace(intake(sqs), queue=urls[0], dead_letters=urls[1], monotonic=time.monotonic)
        assert found.depth() == Depth(26, 0, 0)
        taken = found.take()
        assert (taken.received, taken.deleted, taken.left, taken.reasons.total()) == (26, 26, 0, 1)
        assert sum(item.messages for item in found.inbox.waiting().values()) == 25
        assert found.depth() == Depth(0, 0, 0)
        letters = DeadLetters(sqs, urls[0], urls[1], found.routes)
        (letter,) = letters.read()
        assert "no JSON" in letter.reason
        letters.give_back([letter])
        letters.send(letters.read())
        assert found.depth().visible == 1
        assert not letters.read()


def test_bad_messages_that_time_does_not_suffice_for_stay_in_the_queue() -> None:
    sqs = FakeSqs("q", "dead")
    for number in range(30):
        sqs.send_message(QueueUrl="x/q", MessageBody="{" * number or "[")
    sqs.send_message(QueueUrl="x/q", MessageBody=BODY % 1)
    found = intake(
        sqs, lambda: 100.0 if found.inbox.objects.names() else 0.0
    )  # time is up when the inbox has the good one
    taken = found.take()
    left, dead = sqs.queues["q"].messages, sqs.queues["dead"].messages
    assert len(found.inbox.waiting()) == 1
    assert len(dead) < 30
    assert len(left) >= 30 - len(dead)
    assert taken.left == len(left)
