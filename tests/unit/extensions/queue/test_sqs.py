"""Amazon SQS as a source: whose queue it is, what a dead letter says, Amazon's own rules as moto knows them.
How messages are taken, whatever they come from, is in test_intake.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from threading import Lock

import boto3
import pytest
from moto import mock_aws
from moto.sqs.models import Queue

from lakehouse_assets.declare.options import Pace
from lakehouse_assets.extensions.queue.sensor import owner_name
from lakehouse_assets.extensions.queue.source import LARGEST, TAG, SourceError, SqsQueue, reason_attribute
from tests.support.fakes.sqs_service import FakeSqs
from tests.support.queue_model import Calls, World
from tests.support.tables import numbers


def location(name: str, sqs: FakeSqs) -> World:
    """A code location with a table and an inbox of its own, on the same queue."""
    found = World(Calls())
    found.table, found.sqs, found.owner = numbers(identifier=f"{name}.t"), sqs, name
    return found


def test_two_locations_on_one_queue_set_nothing_of_each_other_aside() -> None:
    sqs = FakeSqs("q", "dead")
    first, second = location("first", sqs), location("second", sqs)
    first.tick().run()
    for day in first.keys:
        first.arrives(day)
    told = second.tick().run()
    assert not told.taken.received
    assert "Each location needs its own queue" in str(told.faults["nothing was received"])
    assert not sqs.queues["dead"].messages
    assert len(sqs.queues["q"].messages) == len(first.keys)
    assert first.tick().run().decision.requests
    assert not sqs.queues["q"].messages
    sqs.queues["q"].tags.clear()  # by a person
    assert not second.tick().run().faults
    assert first.tick().run().faults


def test_what_waits_is_run_by_whoever_has_it_in_the_inbox() -> None:
    sqs = FakeSqs("q", "dead")
    first = location("first", sqs)
    sqs.clock = lambda: first.now
    first.arrives(first.keys[0])
    first.pace = Pace(floor=2)
    assert not first.tick().run().decision.requests
    sqs.queues["q"].tags[TAG] = "second"
    first.now += 100
    told = first.tick().run()
    assert told.decision.requests
    assert told.faults


def test_a_location_is_the_same_in_all_its_processes_and_no_other() -> None:
    own = owner_name("lakehouse_assets", "s3://bucket/staging")
    assert own == owner_name("lakehouse_assets", "s3a://bucket/staging")
    others = {owner_name("another", "s3://bucket/staging"), owner_name("lakehouse_assets", "/home/staging")}
    assert own not in others
    assert len(others) == 2


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


@pytest.fixture
def amazon(monkeypatch: pytest.MonkeyPatch) -> Iterator[SqsQueue]:
    """Another's idea of SQS than our own fake's."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "nobody")
    lock, delete = Lock(), Queue.delete_message

    def one_at_a_time(queue: Queue, receipt_handle: str) -> None:
        """Moto (5.2.5) makes its list of messages again for each deletion: of two at once, one would be undone."""
        with lock:
            delete(queue, receipt_handle)

    monkeypatch.setattr(Queue, "delete_message", one_at_a_time)
    with mock_aws():
        client = boto3.client("sqs", region_name="eu-central-1")
        yield SqsQueue(client, *(client.create_queue(QueueName=name)["QueueUrl"] for name in ("q", "dead")))


def test_a_queue_is_claimed_by_one_location(amazon: SqsQueue) -> None:
    owner = owner_name("größe \N{SNOWMAN}!" * 90, "/staging")
    amazon.claim(owner)
    amazon.claim(owner)
    with pytest.raises(SourceError, match="remove the tag"):
        amazon.claim("x")
    with pytest.raises(SourceError, match="does not exist"):
        replace(amazon, url=f"{amazon.url}-gone").claim("x")


def test_messages_are_taken_and_dead_letters_sent_again(amazon: SqsQueue) -> None:
    for number in range(25):
        body = f'{{"table": "demo.numbers", "partitions": ["2024-01-0{number % 9 + 1}"]}}'
        amazon.client.send_message(QueueUrl=amazon.url, MessageBody=body)
    amazon.client.send_message(QueueUrl=amazon.url, MessageBody="{")
    assert amazon.depth() == {"visible": 26, "in_flight": 0, "delayed": 0}
    intake = World(Calls()).tick(amazon).intake
    intake.take()
    taken = intake.taken
    assert (taken.received, taken.deleted, taken.left, taken.reasons.total()) == (26, 26, 0, 1)
    assert sum(item.messages for item in intake.inbox.waiting().values()) == 25
    assert not any(amazon.depth().values())
    (letter,) = amazon.rejected()
    assert "not JSON" in letter.reason
    amazon.give_back([letter])
    amazon.send_again(amazon.rejected())
    assert amazon.depth()["visible"] == 1
    assert not amazon.rejected()
