"""What messages say in each of their envelopes, which partitions they ask for, and which are refused, and why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import dagster as dg
import pytest

from lakehouse_assets.declare.modes import Append
from lakehouse_assets.declare.options import Arrivals
from lakehouse_assets.declare.table import Table
from lakehouse_assets.extensions.queue.messages import (
    LONGEST_REASON,
    Arrived,
    Asked,
    BadMessage,
    RoutedRequest,
    Routes,
    said_by,
)
from tests.support.tables import numbers, whole

OPEN = numbers(arrivals=Arrivals("in/{day}.csv"), partitions=dg.DailyPartitionsDefinition("2024-01-01"))
LATER = numbers(
    identifier="demo.later",
    arrivals=Arrivals("in/{day}.csv"),
    partitions=dg.DailyPartitionsDefinition("2024-06-01"),
)
KEYS = [f"2024-01-{day:02d}" for day in range(1, 32)]


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
        ("", "not JSON"),
        ('{"Records": [', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("3", "a JSON int"),
        ("{}", "not of a known kind; it has nothing"),
        ('{"Records": []}', "names no object"),
        ('{"Records": [{}]}', "lacks a required field: KeyError('eventName')"),
        ('{"Records": 3}', "lacks a required field"),
        (json.dumps(notification("a%FF")), "lacks a required field: UnicodeDecodeError"),
        (json.dumps(notification("a", event="ObjectRemoved:Delete")), "reports ObjectRemoved:Delete"),
        (json.dumps(event("a", "Object Deleted")), "reports Object Deleted, expected Object Created"),
        (json.dumps(wrapped(wrapped(wrapped(notification("a"))))), "not of a known kind"),
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


def reading(body: Any, *tables: Table, landing: str = "s3://drop/zone") -> RoutedRequest:
    def keys_of(_: Table) -> Sequence[str]:
        return KEYS

    return Routes(tables or (OPEN,), landing, keys_of).read(body if isinstance(body, str) else json.dumps(body))


def arrival(*keys: str, bucket: str = "drop") -> dict[str, Any]:
    s3 = [{"bucket": {"name": bucket}, "object": {"key": key}} for key in keys]
    return {"Records": [{"eventName": "ObjectCreated:Put", "s3": one} for one in s3]}


def test_an_object_of_the_drop_zone_is_a_partition() -> None:
    assert reading(arrival("zone/demo/in/2024-01-05.csv")) == RoutedRequest(((OPEN.identifier, "2024-01-05"),))


@pytest.mark.parametrize(("mode", "served"), [(Append(), False), (Append(["n"]), True)])
def test_a_table_that_would_append_rows_twice_is_not_asked_by_messages(mode: Append, served: bool) -> None:
    of = whole(write_mode=mode, unique=())
    found = reading({"table": of.identifier}, of)
    assert bool(found.wanted) is served
    assert ("would append its rows" in found.problem) is not served


@pytest.mark.parametrize("key", ["demo/in/2024-01-05.csv", "zone/other/in/2024-01-05.csv", "zone/demo/in/x/y.csv"])
def test_other_objects_are_nobodys(key: str) -> None:
    assert "no table declares arrivals" in reading(arrival(key)).problem


def test_a_bucket_counts_where_the_drop_zone_has_one() -> None:
    assert reading(arrival("zone/demo/in/2024-01-05.csv", bucket="another")).problem
    assert not reading(arrival("demo/in/2024-01-05.csv", bucket="another"), landing="/landing").problem


def test_an_object_that_one_of_two_tables_cant_have_is_the_others() -> None:
    early = reading(arrival("zone/demo/in/2024-01-05.csv"), OPEN, LATER)
    assert early == RoutedRequest(((OPEN.identifier, "2024-01-05"),))
    both = reading(arrival("zone/demo/in/2024-06-05.csv"), OPEN, LATER)
    assert both.wanted == ((OPEN.identifier, "2024-06-05"), ("demo.later", "2024-06-05"))
    neither = reading(arrival("zone/demo/in/2023-01-05.csv"), OPEN, LATER)
    assert not neither.wanted
    assert "no such partition" in neither.problem


def test_a_message_that_is_bad_in_part_is_served_in_part() -> None:
    found = reading(arrival("zone/demo/in/2024-01-05.csv", "elsewhere"))
    assert found.wanted == ((OPEN.identifier, "2024-01-05"),)
    assert "elsewhere" in found.problem


@pytest.mark.parametrize(
    "body",
    [
        arrival("zone/demo/in/9999-12-31.csv"),
        {"table": OPEN.identifier, "partitions": ["9999-12-31"]},
        {"table": OPEN.identifier, "partitions": ["\ud800"]},
        {"table": "\ud800"},
        {"table": OPEN.identifier, "partitions": {"first": "2024-01-09", "last": "2024-01-01"}},
        {"table": OPEN.identifier, "partitions": {"first": "2024-01-09", "last": "2999-01-01"}},
        {"table": OPEN.identifier},
        {"table": OPEN.identifier, "partitions": []},
        {"table": OPEN.identifier, "partitions": ["nonsense"]},
        {"table": "x" * 900_000},
        {"table": whole().identifier, "partitions": ["2024-01-01"]},
        "[" * 100_000,
    ],
)
def test_what_cant_be_served_is_a_problem_and_no_error(body: Any) -> None:
    found = reading(body, OPEN, whole())
    assert found.problem
    assert not found.wanted
    found.problem.encode(errors="replace")
    assert len(found.problem) <= LONGEST_REASON


@pytest.mark.parametrize("key", ["9999-12-31", "0000-00-00", "10000-01-01", "2023-01-05"])
def test_a_day_that_cant_be_is_told_in_words(key: str) -> None:
    for body in (arrival(f"zone/demo/in/{key}.csv"), {"table": OPEN.identifier, "partitions": [key]}):
        assert "no such partition" in reading(body).problem
        assert "Error" not in reading(body).problem


def test_a_range_and_a_table_without_partitions_may_be_asked_for() -> None:
    span = {"table": OPEN.identifier, "partitions": {"first": "2024-01-02", "last": "2024-01-04"}}
    assert [key for _, key in reading(span).wanted] == KEYS[1:4]
    assert reading({"table": whole().identifier}, whole()) == RoutedRequest(((whole().identifier, ""),))
