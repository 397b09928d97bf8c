"""Two code locations on one queue: the one whose it is takes its messages, and the other one says so."""

from __future__ import annotations

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from lakehouse_assets.declare.arrivals import Pace
from lakehouse_assets.queue.claim import TAG, AnothersQueue, Claim, owner_name
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
    assert "One queue, one location" in str(told.faults["nothing was received"])
    assert not sqs.queues["dead"].messages
    assert len(sqs.queues["q"].messages) == len(first.keys)
    assert first.tick().run().requests
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
    assert not first.tick().run().requests
    sqs.queues["q"].tags[TAG] = "second"
    first.now += 100
    told = first.tick().run()
    assert told.requests
    assert told.faults


def test_a_location_is_the_same_in_all_its_processes_and_no_other() -> None:
    own = owner_name("lakehouse_assets", "s3://bucket/staging")
    assert own == owner_name("lakehouse_assets", "s3a://bucket/staging")
    others = {owner_name("another", "s3://bucket/staging"), owner_name("lakehouse_assets", "/home/staging")}
    assert own not in others
    assert len(others) == 2


def test_amazons_rules_for_tags_as_moto_knows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "nobody")
    with mock_aws():
        sqs = boto3.client("sqs", region_name="eu-central-1")
        url = sqs.create_queue(QueueName="q")["QueueUrl"]
        own = Claim(sqs, url, owner_name("größe \N{SNOWMAN}!" * 90, "/staging"))
        own.hold()
        own.hold()
        with pytest.raises(AnothersQueue, match="remove the tag"):
            Claim(sqs, url, "x").hold()
        with pytest.raises(ClientError):
            Claim(sqs, f"{url}-gone", "x").hold()
