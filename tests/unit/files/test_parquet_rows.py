"""Parquet files: which of their types become which declared ones, and what is said of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyarrow import parquet

from lakehouse_assets.files.delivered import MOST_SHOWN, DeliveredFile, WrongFile
from lakehouse_assets.files.parquet_rows import ParquetReader, columns_of_parquet

AT, LOCAL, DAY = datetime(2026, 1, 31, 12, tzinfo=UTC), datetime(2026, 1, 31, 12), date(2026, 1, 31)
INT96 = pa.timestamp("s")
"""Stands for Parquet's old times, which Arrow writes if it is asked to."""
MICROS = int(AT.timestamp()) * 10**6


class Delivery:
    """A folder with one file, and how it is read."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "day.parquet"

    def deliver(self, content: bytes | pa.Table, **options: Any) -> DeliveredFile:
        if isinstance(content, bytes):
            self.path.write_bytes(content)
        else:
            parquet.write_table(content, self.path, **options)
        return DeliveredFile("day", str(self.path), self.path.stat().st_size, 0)

    def deliver_column(self, values: Sequence[Any], type_: pa.DataType) -> DeliveredFile:
        stored = pa.timestamp("ns") if type_ == INT96 else type_
        return self.deliver(table_of(values, stored), use_deprecated_int96_timestamps=type_ == INT96)

    def read(self, file: DeliveredFile, schema: Mapping[str, str], **options: Any) -> list[dict[str, Any]]:
        reader = reader_of(schema, **options)
        assert reader.head_problem(file) is None
        table = pa.Table.from_batches(reader.rows(file), reader.arrow)
        table.validate(full=True)
        rows: list[dict[str, Any]] = table.to_pylist(maps_as_pydicts="strict")
        return rows

    def problems(self, file: DeliveredFile, schema: Mapping[str, str]) -> Sequence[str]:
        with pytest.raises(WrongFile) as error:
            self.read(file, schema)
        return error.value.problems


def table_of(values: Sequence[Any], type_: pa.DataType) -> pa.Table:
    """A table of one column, x."""
    if isinstance(type_, pa.BaseExtensionType):
        column = pa.ExtensionArray.from_storage(type_, pa.array(values, type_.storage_type))
    elif pa.types.is_dictionary(type_):
        column = pa.array(values, type_.value_type).dictionary_encode()
    else:
        column = pa.array(values, type_)
    return pa.table({"x": column})


def reader_of(
    schema: Mapping[str, str], rename: Mapping[str, str] | None = None, ignore: Sequence[str] = ()
) -> ParquetReader:
    return ParquetReader(schema, rename or {}, ignore)


@pytest.fixture
def day(tmp_path: Path) -> Delivery:
    return Delivery(tmp_path)


STRUCT = pa.struct([("b", pa.large_string()), ("a", pa.list_(pa.struct([("n", pa.int8())])))])
TAKEN: Sequence[tuple[pa.DataType, Any, str, Any]] = [
    (pa.bool_(), True, "boolean", True),
    *((type_, 127, "int", 127) for type_ in (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16())),
    (pa.int64(), -(2**63), "long", -(2**63)),
    (pa.uint32(), 2**32 - 1, "long", 2**32 - 1),
    (pa.uint64(), 2**64 - 1, "decimal(20, 0)", Decimal(2**64 - 1)),
    (pa.float16(), 0.5, "float", 0.5),
    (pa.float32(), 0.5, "float", 0.5),
    (pa.float64(), 1e300, "double", 1e300),
    (pa.decimal128(5, 2), Decimal("1.50"), "decimal(5, 2)", Decimal("1.50")),
    (pa.decimal256(38, 2), Decimal("1.50"), "decimal(38, 2)", Decimal("1.50")),
    (pa.date32(), DAY, "date", DAY),
    (pa.date64(), DAY, "date", DAY),
    *((pa.timestamp(unit), LOCAL, "timestamp", LOCAL) for unit in ("ms", "us", "ns")),
    *((pa.timestamp(unit, "+02:00"), AT, "timestamptz", AT) for unit in ("ms", "us", "ns")),
    (INT96, LOCAL, "timestamptz", AT),
    (pa.string(), "é", "string", "é"),
    (pa.large_string(), "é", "string", "é"),
    (pa.dictionary(pa.int32(), pa.string()), "é", "string", "é"),
    (pa.null(), None, "string", None),
    (pa.binary(), b"\xff", "binary", b"\xff"),
    (pa.large_binary(), b"\xff", "binary", b"\xff"),
    (pa.binary(3), b"abc", "fixed[3]", b"abc"),
    (pa.uuid(), UUID(int=5).bytes, "uuid", str(UUID(int=5))),
    (pa.list_(pa.uint64()), [2**64 - 1, None], "list<decimal(20, 0)>", [Decimal(2**64 - 1), None]),
    (pa.large_list(pa.timestamp("ns", "UTC")), [], "list<timestamptz>", []),
    (pa.list_(pa.int16(), 2), [1, 2], "list<int>", [1, 2]),
    (
        pa.map_(pa.string(), pa.list_(pa.timestamp("ns", "UTC"))),
        {"a": [AT, None], "b": None},
        "map<string, list<timestamptz>>",
        {"a": [AT, None], "b": None},
    ),
    (
        STRUCT,
        {"b": "é", "a": [{"n": 1}, None]},
        "struct<b: string, a: list<struct<n: int>>>",
        {"b": "é", "a": [{"n": 1}, None]},
    ),
]


@pytest.mark.parametrize(("type_", "stored", "declared", "value"), TAKEN)
def test_columns_are_told_and_take_their_values(
    day: Delivery, type_: pa.DataType, stored: Any, declared: str, value: Any
) -> None:
    file = day.deliver_column([None, stored, None, stored], type_)
    assert columns_of_parquet(file.location) == [("x", declared)]
    assert [row["x"] for row in day.read(file, {"x": declared})] == [None, value, None, value]


@pytest.mark.parametrize(
    ("type_", "stored", "declared", "value"),
    [
        (pa.int32(), 5, "long", 5),
        (pa.uint64(), 2**63 - 1, "long", 2**63 - 1),
        (pa.uint64(), 2**64 - 1, "decimal(22,2)", Decimal(2**64 - 1)),
        (pa.float32(), 0.5, "double", 0.5),
        (pa.decimal128(5, 2), Decimal("999.99"), "decimal(9,4)", Decimal("999.99")),
        (INT96, LOCAL, "timestamp", LOCAL),
        (pa.binary(), "é".encode(), "string", "é"),
        (pa.binary(16), UUID(int=5).bytes, "uuid", str(UUID(int=5))),
        (pa.binary(16), UUID(int=5).bytes, "binary", UUID(int=5).bytes),
        (pa.null(), None, "list<int>", None),
        (STRUCT, {"b": "é", "a": []}, "struct<a: list<struct<n: long>>, b: string>", {"a": [], "b": "é"}),
    ],
)
def test_types_that_lose_nothing_may_be_declared(
    day: Delivery, type_: pa.DataType, stored: Any, declared: str, value: Any
) -> None:
    file = day.deliver_column([stored, None], type_)
    assert [row["x"] for row in day.read(file, {"x": declared})] == [value, None]


@pytest.mark.parametrize(
    ("type_", "declared", "problem"),
    [
        (pa.int64(), "int", "x is int64, expected int"),
        (pa.uint32(), "int", "x is uint32, expected int"),
        (pa.int32(), "double", "x is int32, expected double"),
        (pa.int32(), "string", "x is int32, expected string"),
        (pa.float64(), "float", "x is double, expected float"),
        (pa.decimal128(5, 2), "decimal(5,1)", "x is decimal128(5, 2), expected decimal(5, 1)"),
        (pa.decimal128(5, 2), "decimal(6,4)", "x is decimal128(5, 2), expected decimal(6, 4)"),
        (pa.decimal128(5, 2), "double", "x is decimal128(5, 2), expected double"),
        (pa.uint64(), "decimal(20,1)", "x is uint64, expected decimal(20, 1)"),
        (pa.timestamp("us"), "timestamptz", "x is timestamp[us], expected timestamptz"),
        (pa.timestamp("us", "UTC"), "timestamp", "x is timestamp[us, tz=UTC], expected timestamp"),
        (pa.timestamp("us", "UTC"), "date", "x is timestamp[us, tz=UTC], expected date"),
        (INT96, "date", "x is timestamp (INT96), expected date"),
        (pa.time64("us"), "string", "x is time64[us], expected string"),
        (pa.uuid(), "string", "x is uuid, expected string"),
        (pa.binary(3), "fixed[4]", "x is fixed_size_binary[3], expected fixed[4]"),
        (pa.string(), "binary", "x is string, expected binary"),
        (pa.list_(pa.int64()), "list<int>", "x[] is int64, expected int"),
        (pa.list_(pa.int64()), "long", "x is list<element: int64>, expected long"),
        (pa.int64(), "list<long>", "x is int64, expected list<long>"),
        (pa.map_(pa.string(), pa.int64()), "map<string, int>", "x[…] is int64, expected int"),
        (pa.map_(pa.int64(), pa.int64()), "map<string, long>", "x (keys) is int64, expected string"),
        (STRUCT, "struct<b: string>", "x has other members (unknown: a)"),
        (STRUCT, "struct<b: string, a: list<struct<n: int>>, c: int>", "x has other members (missing: c)"),
        (STRUCT, "struct<b: string, a: list<struct<n: boolean>>>", "x.a[].n is int8, expected boolean"),
    ],
)
def test_types_that_differ_are_told_beforehand(day: Delivery, type_: pa.DataType, declared: str, problem: str) -> None:
    file = day.deliver_column([None], type_)
    expected = f"has other columns (missing: none; unknown: none; of another type: {problem})"
    assert reader_of({"x": declared}).head_problem(file) == expected


@pytest.mark.parametrize(
    ("type_", "value", "declared", "problem"),
    [
        (pa.uint64(), 2**63, "long", "x: '9223372036854775808' is no long; declare it decimal(20, 0)"),
        (
            pa.timestamp("ns"),
            MICROS * 1000 + 1,
            "timestamp",
            "x: '2026-01-31 12:00:00.000000001' is no timestamp, as it has nanoseconds; "
            "have it delivered in microseconds",
        ),
        (pa.timestamp("ms"), 2**62, "timestamp", ", as it is out of range"),
        (pa.binary(), b"a\xff", "string", "x: 'a\\\\xff' is no string; declare it binary"),
        (pa.list_(pa.uint64()), [1, 2**63], "list<long>", "x[1]: '9223372036854775808' is no long"),
        (pa.map_(pa.string(), pa.uint64()), {"k": 2**63}, "map<string, long>", "x['k']: '9223372036854775808' is no"),
        (pa.map_(pa.uint64(), pa.string()), {2**63: "v"}, "map<long, string>", "x[0]: '9223372036854775808' is no"),
        (pa.struct([("a", pa.uint64())]), {"a": 2**63}, "struct<a: long>", "x.a: '9223372036854775808' is no long"),
    ],
)
def test_values_that_their_type_does_not_take_are_told(
    day: Delivery, type_: pa.DataType, value: Any, declared: str, problem: str
) -> None:
    file = day.deliver_column([None, value, None], type_)
    (told,) = day.problems(file, {"x": declared})
    assert told.startswith(", row 2, column x")
    assert problem in told


def test_old_times_that_nanoseconds_can_t_hold_stay_what_they_are(day: Delivery) -> None:
    table = table_of([datetime(9999, 12, 31), datetime(1, 1, 1)], pa.timestamp("us"))
    file = day.deliver(table, use_deprecated_int96_timestamps=True)
    assert [row["x"].year for row in day.read(file, {"x": "timestamp"})] == [9999, 1]


def test_of_many_wrong_values_the_first_are_told(day: Delivery) -> None:
    file = day.deliver_column([1] * 20_000 + [2**63] * 20_000, pa.uint64())
    problems = day.problems(file, {"x": "long"})
    assert len(problems) == MOST_SHOWN
    assert problems[-1].startswith(f", row {20_000 + MOST_SHOWN}, column x: ")


def test_strings_that_are_not_utf_8_are_told(day: Delivery) -> None:
    array = pa.array([b"ok", b"a\xff"]).view(pa.string())
    assert day.problems(day.deliver(pa.table({"x": array})), {"x": "string"}) == (
        ", row 2, column x: 'a\\\\xff' is no string",
    )


def test_columns_are_found_by_their_names(day: Delivery) -> None:
    file = day.deliver(pa.table({"a.b": [1], "junk": pa.array([None], pa.time64("us")), "a": [2], "C": [3]}))
    rows = day.read(file, {"c": "long", "a": "long", "a.b": "long"}, rename={"C": "c"}, ignore=["junk"])
    assert rows == [{"c": 3, "a": 2, "a.b": 1}]


def test_other_columns_are_told_together(day: Delivery) -> None:
    file = day.deliver(pa.table({"a": [1], "b": [2], "d": ["x"]}))
    problem = "has other columns (missing: C, c; unknown: b; of another type: d is string, expected int)"
    assert reader_of({"a": "long", "d": "int", "c": "int", "C": "int"}).head_problem(file) == problem
    twice = day.deliver(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]))
    assert reader_of({"a": "long"}).head_problem(twice) == "has the column a more than once"


def test_a_file_that_is_no_parquet_or_not_all_of_it_is_told(day: Delivery) -> None:
    day.deliver(pa.table({"x": [*range(1000)]}))
    whole = day.path.read_bytes()
    for content in (b"", b"x\n1\n", whole[:-1], whole[:100], whole[-100:], b"PAR1" * 5):
        problem = reader_of({"x": "long"}).head_problem(day.deliver(content))
        assert problem
        assert problem.startswith("is no Parquet file, or not all of it (")
        with pytest.raises(ValueError, match="is no Parquet file"):
            columns_of_parquet(str(day.path))


def test_a_damaged_page_is_told_when_it_is_read(day: Delivery) -> None:
    table = pa.table({"x": [*range(500_000)]})
    day.deliver(table, write_page_checksum=True, use_dictionary=False, compression="none")
    content = bytearray(day.path.read_bytes())
    content[len(content) // 2] ^= 1
    file = day.deliver(bytes(content))
    assert reader_of({"x": "long"}).head_problem(file) is None
    (problem,) = day.problems(file, {"x": "long"})
    assert problem.startswith(" is damaged at or behind row 2")


def test_a_file_that_is_not_there_is_storage_s_error(day: Delivery) -> None:
    file = DeliveredFile("day", str(day.path), 1, 0)
    with pytest.raises(FileNotFoundError):
        reader_of({"x": "long"}).head_problem(file)


@pytest.mark.parametrize(
    ("schema", "rename", "problem"),
    [
        ({"x": "time"}, {}, "time is none of Spark's types"),
        ({"x": "list<time>"}, {}, "time is none of Spark's types"),
        ({"x": "bigint"}, {}, "did you mean long"),
        ({"x": "int"}, {"a": "b"}, "rename names b, which the schema lacks"),
    ],
)
def test_a_schema_that_cannot_work(schema: dict[str, str], rename: dict[str, str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        reader_of(schema, rename)


@pytest.mark.parametrize(
    ("type_", "problem"),
    [
        (pa.time32("ms"), r"column x: is a time of day, which Spark does not have; ignore=\['x'\]"),
        (pa.list_(pa.time64("ns")), "column x: is a time of day"),
        (pa.decimal256(40, 2), r"column x: is decimal256\(40, 2\), which Iceberg does not have"),
        (pa.struct([("a b", pa.int32())]), "column x: 'a b: int' is not of the form name: type"),
    ],
)
def test_columns_that_cannot_be_told(day: Delivery, type_: pa.DataType, problem: str) -> None:
    day.deliver_column([None], type_)
    with pytest.raises(ValueError, match=problem):
        columns_of_parquet(str(day.path))


def test_names_that_are_not_utf_8_are_told(day: Delivery) -> None:
    day.deliver(pa.table({"name": [1]}), store_schema=False)
    file = day.deliver(day.path.read_bytes().replace(b"name", b"n\xffme"))
    problem = reader_of({"name": "long"}).head_problem(file)
    assert problem is not None
    assert problem.startswith("is no Parquet file, or not all of it (")
