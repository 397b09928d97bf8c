"""Avro values become rows: types, schemas that evolve, missing and further fields, and values that can't be read."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from lakehouse_assets.declare.row_source import Offsets
from lakehouse_assets.errors import SourceUnreachable
from lakehouse_assets.extensions.sources import values as avro_value
from lakehouse_assets.extensions.sources.kafka import KafkaTopic
from lakehouse_assets.extensions.sources.source_range import SourceRange
from lakehouse_assets.extensions.sources.values import Avro, OtherCase
from tests.support.schema_registry import Served, framed, small_registry

AT = datetime(2013, 1, 31, 6, 0, 0, 123000, tzinfo=UTC)
LOCAL_AT = AT.replace(tzinfo=None)
INSTANT, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
DECIMAL = pa.decimal128(9, 2)
ID = UUID("12345678-1234-5678-1234-567812345678")
N = pa.schema([("n", pa.int64())])


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with small_registry() as served:
        yield served


@pytest.fixture
def registry(server: Served, monkeypatch: pytest.MonkeyPatch) -> Served:
    """A registry without schemas, in a process that has asked for none."""
    monkeypatch.setenv("SCHEMA_REGISTRY_URL", server.url)
    server.answers.clear()
    server.asked.clear()
    avro_value._writer_schema.cache_clear()
    return server


def record(*fields: tuple[str, Any], name: str = "Event") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": of, "type": type_} for of, type_ in fields]}


def logical(type_: str, logical_type: str, **more: Any) -> dict[str, Any]:
    return {"type": type_, "logicalType": logical_type, **more}


def column_of(registry: Served, type_: Any, value: object, column: pa.DataType) -> object:
    """What a column gets of one record's field."""
    registry.add(1, schema := record(("x", type_)))
    return Avro().parse([framed(1, schema, {"x": value})], pa.schema([("x", column)])).to_pylist()[0]["x"]


@pytest.mark.parametrize(
    ("type_", "value", "column", "expected"),
    [
        ("boolean", True, pa.bool_(), True),
        ("int", 7, pa.int32(), 7),
        ("int", 7, pa.int64(), 7),
        ("long", 7, pa.float64(), 7.0),
        ("float", 0.5, pa.float64(), 0.5),
        ("string", "ö", pa.string(), "ö"),
        ("string", "ö", pa.large_string(), "ö"),
        ("bytes", b"\xff", pa.binary(), b"\xff"),
        ("bytes", b"text", pa.string(), "text"),
        (logical("int", "date"), date(2013, 1, 31), pa.date32(), date(2013, 1, 31)),
        (logical("long", "timestamp-millis"), AT, INSTANT, AT),
        (logical("long", "timestamp-micros"), AT, INSTANT, AT),
        (
            logical("long", "local-timestamp-millis"),
            LOCAL_AT,
            LOCAL,
            LOCAL_AT,
        ),
        (
            logical("long", "local-timestamp-micros"),
            LOCAL_AT,
            LOCAL,
            LOCAL_AT,
        ),
        (logical("bytes", "decimal", precision=6, scale=2), Decimal("-1.50"), DECIMAL, Decimal("-1.50")),
        (logical("bytes", "decimal", precision=6, scale=1), Decimal("1.5"), pa.decimal128(9, 3), Decimal("1.500")),
        (
            logical("fixed", "decimal", precision=6, scale=2, size=4, name="F"),
            Decimal("1.50"),
            DECIMAL,
            Decimal("1.50"),
        ),
        (logical("string", "uuid"), ID, pa.string(), str(ID)),
        (logical("long", "time-micros"), 5, pa.int64(), 5),
        (logical("long", "unknown"), 5, pa.int64(), 5),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", pa.string(), "B"),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", pa.binary(), b"ab"),
        (["null", "long"], None, pa.int64(), None),
        (["null", "long"], 7, pa.int64(), 7),
        (["null", "int", "long"], 2**40, pa.int64(), 2**40),
        ("null", None, pa.int64(), None),
        ({"type": "array", "items": ["null", "int"]}, [1, None], pa.list_(pa.int64()), [1, None]),
        ({"type": "map", "values": "int"}, {"a": 1}, pa.map_(pa.string(), pa.int64()), [("a", 1)]),
        (
            record(("a", "int"), ("b", "string"), name="Inner"),
            {"a": 1, "b": "left out"},
            pa.struct([("a", pa.int32()), ("c", pa.string())]),
            {"a": 1, "c": None},
        ),
    ],
)
def test_a_field_becomes_its_columns_type(
    registry: Served, type_: Any, value: object, column: pa.DataType, expected: object
) -> None:
    assert column_of(registry, type_, value, column) == expected


@pytest.mark.parametrize(
    ("type_", "value", "column", "reason"),
    [
        ("string", "7", pa.int64(), "field 'x' is of the type string, which can't become the type int64"),
        ("long", 7, pa.int32(), "long, which can't become the type int32"),
        ("long", 7, INSTANT, r"long, which can't become the type timestamp\[us, tz=UTC\]"),
        ("boolean", True, pa.int64(), "boolean, which can't become the type int64"),
        (logical("long", "timestamp-micros"), 7, LOCAL, r"long timestamp-micros, .* timestamp\[us\]"),
        (logical("long", "timestamp-micros"), 7, pa.date32(), "long timestamp-micros, .* date32"),
        (
            logical("long", "local-timestamp-micros"),
            7,
            INSTANT,
            "long local-timestamp-micros, .* tz=UTC",
        ),
        (logical("int", "date"), 7, pa.int32(), "int date, which can't become the type int32"),
        (["null", "int", "string"], 7, pa.int32(), "string, which can't become the type int32"),
        ({"type": "array", "items": "string"}, [], pa.list_(pa.int32()), r"field 'x\[\]' is of the type string"),
        (
            record(("a", "string"), name="R"),
            {"a": ""},
            pa.struct([("a", pa.int32())]),
            r"field 'x\.a' is of the type string",
        ),
        (record(("a", "string"), name="R"), {"a": ""}, pa.string(), "field 'x' is of the type record"),
        (
            logical("bytes", "decimal", precision=9, scale=3),
            Decimal("1.555"),
            DECIMAL,
            "field 'x' can't become",
        ),
        ("bytes", b"\xff", pa.string(), "field 'x' can't become the type string"),
    ],
)
def test_what_cannot_become_its_columns_type_is_named(
    registry: Served, type_: Any, value: object, column: pa.DataType, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        column_of(registry, type_, value, column)


def test_each_record_is_read_by_its_own_schema_and_records_stay_in_order(registry: Served) -> None:
    before = record(("n", "int"), ("at", logical("long", "timestamp-millis")), ("old", "string"))
    after = record(("at", ["null", logical("long", "timestamp-micros")]), ("n", "long"), ("text", ["null", "string"]))
    registry.add(3, before)
    registry.add(300_000, after)
    columns = pa.schema([("n", pa.int64()), ("text", pa.string()), ("at", INSTANT)])
    values = [
        framed(3, before, {"n": 1, "at": AT, "old": "left out"}),
        framed(300_000, after, {"n": 2**40, "at": None, "text": "two"}),
        framed(3, before, {"n": 3, "at": AT, "old": "left out"}),
    ]
    assert Avro().parse(values, columns).to_pylist() == [
        {"n": 1, "text": None, "at": AT},
        {"n": 2**40, "text": "two", "at": None},
        {"n": 3, "text": None, "at": AT},
    ]


def test_a_schema_is_looked_up_once(registry: Served) -> None:
    registry.add(1, schema := record(("n", "long")))
    for _ in range(3):
        Avro().parse([framed(1, schema, {"n": 1})] * 2, N)
    assert registry.asked == ["/schemas/ids/1"]


def test_a_value_may_be_one_of_several_records_of_other_subjects(registry: Served) -> None:
    some, others = record(("n", "long"), name="Some"), record(("n", "int"), ("some", "Some"), name="Others")
    to_some = {"name": "Some", "subject": "a/some", "version": 2}
    registry.answers["/subjects/a%2Fsome/versions/2"] = {"schema": json.dumps(some)}
    registry.answers["/subjects/others/versions/1"] = {"schema": json.dumps(others), "references": [to_some]}
    to_others = {"name": "Others", "subject": "others", "version": 1}
    registry.add(1, ["Some", "Others"], references=[to_some, to_others])
    union = [some, others]
    values = [framed(1, union, ("Some", {"n": 1})), framed(1, union, ("Others", {"n": 2, "some": {"n": 3}}))]
    columns = pa.schema([("n", pa.int64()), ("some", pa.struct([("n", pa.int64())]))])
    assert Avro().parse(values, columns).to_pylist() == [{"n": 1, "some": None}, {"n": 2, "some": {"n": 3}}]


def test_a_record_that_holds_records_of_its_own_type(registry: Served) -> None:
    registry.add(1, schema := record(("n", "long"), ("next", ["null", "Event"])))
    columns = pa.schema([("n", pa.int64()), ("next", pa.struct([("n", pa.int64())]))])
    value = framed(1, schema, {"n": 1, "next": {"n": 2, "next": None}})
    assert Avro().parse([value], columns).to_pylist() == [{"n": 1, "next": {"n": 2}}]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "does not begin with the magic byte"),
        (b"\0\0\0\1", "does not begin with the magic byte"),
        (b'{"n": 1}', "does not begin with the magic byte"),
        (b"\0\0\0\0\1", "not a record of its schema 1: EOFError"),
        (b"\0\0\0\0\1\2\2", "not a record of its schema 1: 1 bytes follow the record"),
        (b"\0\0\0\0\2\2", "the schema registry has no schema 2"),
        (b"\0\0\0\0\3\2", "schema 3 is of the type PROTOBUF"),
        (b"\0\0\0\0\4\2", "according to its schema 4, the value is of the type long"),
        (b"\0\0\0\0\5\0", "it is null, not a record"),
        (b"\0\0\0\0\6\0", "schema 6 can't be read: UnknownType"),
        (b"\0\0\0\0\7\0", "registry has no /subjects/gone/versions/1"),
        (b"\0\0\0\0\x08" + b"\xff" * 9 + b"\1", "not a record of its schema 8: OverflowError"),
    ],
)
def test_what_is_no_row_is_an_error(registry: Served, value: bytes, reason: str) -> None:
    registry.add(1, record(("n", "long")))
    registry.add(3, {}, schemaType="PROTOBUF")
    registry.add(4, "long")
    registry.add(5, ["null", record(("n", "long"))])
    registry.add(6, record(("n", "Unknown")))
    registry.add(7, record(("n", "long")), references=[{"name": "Gone", "subject": "gone", "version": 1}])
    registry.add(8, record(("n", logical("long", "timestamp-micros"))))
    with pytest.raises(ValueError, match=reason):
        Avro().parse([value], N if value[4:5] != b"\x08" else pa.schema([("n", INSTANT)]))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=40))
def test_bytes_of_something_else_are_a_row_or_an_error(registry: Served, body: bytes) -> None:
    fields = [("n", "long"), ("t", "string"), ("u", ["null", "double"]), ("l", {"type": "array", "items": "boolean"})]
    registry.add(1, record(*fields, ("at", logical("long", "timestamp-millis"))))
    columns = [("n", pa.int64()), ("t", pa.string()), ("l", pa.list_(pa.bool_())), ("at", INSTANT)]
    with suppress(ValueError):
        assert Avro().parse([b"\0\0\0\0\1" + body], pa.schema(columns)).num_rows == 1


def test_a_registry_that_is_down_is_no_bad_value_and_is_asked_again(
    registry: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.add(1, schema := record(("n", "long")))
    value = framed(1, schema, {"n": 1})
    with monkeypatch.context() as down:
        down.setenv("SCHEMA_REGISTRY_URL", "http://127.0.0.1:1")
        with pytest.raises(SourceUnreachable, match=r"can't be reached at http://127.0.0.1:1: .*refused"):
            Avro().parse([value], N)
    assert Avro().parse([value], N).num_rows == 1


def test_a_schema_that_was_not_there_is_asked_for_again(registry: Served) -> None:
    value = framed(1, schema := record(("n", "long")), {"n": 1})
    with pytest.raises(ValueError, match="no schema 1"):
        Avro().parse([value], N)
    registry.add(1, schema)
    assert Avro().parse([value], N).num_rows == 1


def test_a_worker_gets_it_by_pickle_and_by_the_plan() -> None:
    moved = SourceRange(KafkaTopic("events", value=Avro()), Offsets("id", (0,)), Offsets("id", (1,)))
    assert pickle.loads(pickle.dumps(moved)) == moved
    codec = TypeAdapter(SourceRange)
    assert codec.validate_python(codec.dump_python(moved, mode="json")).source.value == Avro()


@pytest.mark.parametrize(("type_", "instead"), [("time", "long"), ("uuid", "string"), ("fixed[16]", "binary")])
def test_types_that_values_are_not_read_as_are_refused(type_: str, instead: str) -> None:
    (problem,) = Avro().problems({"a": type_, "b": "timestamptz", "c": "decimal(9,2)"})
    assert f"column 'a' is of the type {type_}" in problem
    assert problem.endswith(f"declare it {instead}")


def test_a_field_in_another_case_is_refused_unless_case_is_ignored(registry: Served) -> None:
    inner = record(("Lat", "double"), name="Inner")
    registry.add(1, schema := record(("N", "int"), ("places", {"type": "array", "items": inner})))
    values = [framed(1, schema, {"N": 7, "places": [{"Lat": 0.5}]})]
    columns = pa.schema([("n", pa.int64()), ("places", pa.list_(pa.struct([("lat", pa.float64())])))])
    with pytest.raises(OtherCase, match="the field 'N' differs from the column 'n' only in case"):
        Avro().parse(values, columns)
    found = Avro(ignore_case=True).parse(values, columns)
    assert found.to_pylist() == [{"n": 7, "places": [{"lat": 0.5}]}]
    with pytest.raises(ValueError, match="of the type int, which can't become the type timestamp"):
        Avro(ignore_case=True).parse(values, pa.schema([("n", INSTANT)]))
