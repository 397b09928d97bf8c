"""What messages say in each of their envelopes, and which are refused, with the reason.
Whom they concern is in test_route.py."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lakehouse_assets.queue.messages import Arrived, Asked, BadMessage, said_by


def notification(*keys: str, event: str = "ObjectCreated:Put") -> dict[str, Any]:
    return {"Records": [{"eventName": event, "s3": {"bucket": {"name": "b"}, "object": {"key": key}}} for key in keys]}


def wrapped(message: dict[str, Any]) -> dict[str, Any]:
    return {"Type": "Notification", "Message": json.dumps(message)}


def event(key: str, kind: str = "Object Created") -> dict[str, Any]:
    return {"detail-type": kind, "detail": {"bucket": {"name": "b"}, "object": {"key": key}}}


@pytest.mark.parametrize(
    ("message", "keys"),
    [
        (notification("a/1.csv", "a/2.csv"), ["a/1.csv", "a/2.csv"]),
        (notification("a+b%2Bc%25%C3%A9/1%2F2"), ["a b+c%é/1/2"]),
        (wrapped(notification("a+b")), ["a b"]),
        (event("a+b%20c é"), ["a+b%20c é"]),
        (wrapped(event("a+b")), ["a+b"]),
        (wrapped(wrapped(notification("a"))), ["a"]),
        (notification("a", event="s3:ObjectCreated:CompleteMultipartUpload"), ["a"]),
        ({"Event": "s3:TestEvent", "Bucket": "b"}, []),
        (wrapped({"Event": "s3:TestEvent"}), []),
    ],
)
def test_the_envelope_decides_how_keys_are_written(message: dict[str, Any], keys: list[str]) -> None:
    assert said_by(json.dumps(message)) == [Arrived("b", key) for key in keys]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"table": "a.b"}, Asked("a.b")),
        ({"table": "a.b", "partitions": ["x", "y"]}, Asked("a.b", ("x", "y"))),
        ({"table": "a.b", "partitions": {"first": "x", "last": "y"}}, Asked("a.b", None, "x", "y")),
    ],
)
def test_partitions_can_be_asked_for(message: dict[str, Any], expected: Asked) -> None:
    assert said_by(json.dumps(message)) == [expected]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "no JSON"),
        ('{"Records": [', "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("3", "a JSON int"),
        ("{}", "no known kind; it has nothing"),
        ('{"Records": []}', "tells of no object"),
        ('{"Records": [{}]}', "lacks what its kind must have: KeyError('eventName')"),
        ('{"Records": 3}', "lacks what its kind must have"),
        (json.dumps(notification("a%FF")), "lacks what its kind must have: UnicodeDecodeError"),
        (json.dumps(notification("a", event="ObjectRemoved:Delete")), "tells of ObjectRemoved:Delete"),
        (json.dumps(event("a", "Object Deleted")), "tells of Object Deleted, expected Object Created"),
        (json.dumps(wrapped(wrapped(wrapped(notification("a"))))), "no known kind"),
        ('{"table": 3}', "3, expected a string"),
        ('{"table": "a.b", "partitions": []}', "list of partitions is empty"),
        ('{"table": "a.b", "partitions": "2013-01-01"}', "must be a list of keys"),
        ('{"table": "a.b", "partitions": {"first": "x"}}', "must be a list of keys"),
        ('{"table": "a.b", "partitions": ["x"], "runs": 3}', "the request has runs"),
    ],
)
def test_what_nobody_can_act_on_is_refused_with_the_reason(body: str, reason: str) -> None:
    with pytest.raises(BadMessage) as refused:
        said_by(body)
    assert reason in str(refused.value)
