"""JSON and Parquet files of the drop zone as Spark gets them, whichever way they are read: here, or by its workers."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from lakehouse_assets.files import drop_zone
from lakehouse_assets.files.cell_types import Spelling
from lakehouse_assets.files.delivered import DropZoneError
from lakehouse_assets.files.drop_zone import read_json, read_parquet
from lakehouse_assets.files.json_rows import JsonReader

pytestmark = pytest.mark.spark

DAY = "2026-01-31"
AT, LOCAL, DATE = datetime(2026, 1, 31, 12, tzinfo=UTC), datetime(2026, 3, 29, 2, 30), date(2026, 1, 31)
SCHEMA = {
    "yes": "boolean",
    "int": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "exact": "decimal(20,4)",
    "day": "date",
    "local": "timestamp",
    "at": "timestamptz",
    "text": "string",
    "many": "list<timestamptz>",
    "place": "struct<at: timestamptz, local: timestamp, tags: list<struct<n: int, s: string>>>",
    "by_name": "map<string, struct<at: timestamptz, exact: decimal(9,2)>>",
}
SPARK_TYPES = {
    "yes": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "exact": "decimal(20,4)",
    "day": "date",
    "local": "timestamp_ntz",
    "at": "timestamp",
    "text": "string",
    "many": "array<timestamp>",
    "place": "struct<at:timestamp,local:timestamp_ntz,tags:array<struct<n:int,s:string>>>",
    "by_name": "map<string,struct<at:timestamp,exact:decimal(9,2)>>",
}
VALUES: dict[str, Any] = {
    "yes": True,
    "int": -(2**31),
    "long": 2**63 - 1,
    "float": 0.5,
    "double": 1e300,
    "exact": Decimal("1234567890123456.7890"),
    "day": DATE,
    "local": LOCAL,
    "at": AT,
    "text": "é\n",
    "many": [AT, None],
    "place": {"at": AT, "local": LOCAL, "tags": [{"n": 1, "s": None}, None]},
    "by_name": {"a": {"at": AT, "exact": Decimal("1.50")}, "b": None},
}
STORED: dict[str, tuple[str, str, pa.DataType, Any, Any]] = {
    "bytes": ("binary", "binary", pa.large_binary(), b"\xff", bytearray(b"\xff")),
    "three": ("fixed[3]", "binary", pa.binary(3), b"abc", bytearray(b"abc")),
    "id": ("uuid", "string", pa.uuid(), UUID(int=5).bytes, str(UUID(int=5))),
    "nanos": ("timestamptz", "timestamp", pa.timestamp("ns", "UTC"), AT, AT),
    "big": ("decimal(20,0)", "decimal(20,0)", pa.uint64(), 2**64 - 1, Decimal(2**64 - 1)),
    "large": ("list<string>", "array<string>", pa.large_list(pa.large_string()), ["é"], ["é"]),
}
"""What Parquet has beside JSON: its declared type, Spark's, the file's, the value there and in Spark."""


@pytest.fixture(params=["here", "by workers"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "by workers":
        monkeypatch.setattr(drop_zone, "HERE", 0)
    return str(request.param)


def written(value: Any) -> Any:
    """A value as JSON has it."""
    match value:
        case datetime() if value.tzinfo:
            return value.isoformat().replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case Decimal():
            return str(value)
        case dict():
            return {name: written(one) for name, one in value.items()}
        case list():
            return [*map(written, value)]
    return value


def test_each_type_of_json_arrives(jvm: SparkSession, tmp_path: Path, way: str) -> None:
    lines = [json.dumps(written(VALUES)), "{}"]
    (tmp_path / f"{DAY}.json").write_text("\n".join(lines))
    rows = read_json(jvm, str(tmp_path), [DAY], SCHEMA)
    assert dict(rows.dtypes) == SPARK_TYPES
    assert_same(rows, VALUES)


def test_each_type_of_parquet_arrives(jvm: SparkSession, tmp_path: Path, way: str) -> None:
    table = pa.Table.from_pylist([VALUES, {}], JsonReader(SCHEMA, "utf-8", Spelling(), {}, ()).arrow)
    for name, (_, _, type_, value, _) in STORED.items():
        storage = type_.storage_type if isinstance(type_, pa.BaseExtensionType) else type_
        column = pa.array([value, None], storage)
        table = table.append_column(name, column if storage == type_ else pa.ExtensionArray.from_storage(type_, column))
    parquet.write_table(table, tmp_path / f"{DAY}.parquet")
    schema = SCHEMA | {name: stored[0] for name, stored in STORED.items()}
    rows = read_parquet(jvm, str(tmp_path), [DAY], schema)
    assert dict(rows.dtypes) == SPARK_TYPES | {name: stored[1] for name, stored in STORED.items()}
    assert_same(rows, VALUES | {name: stored[4] for name, stored in STORED.items()})


def assert_same(rows: Any, expected: dict[str, Any]) -> None:
    """Spark has this row, and one of nulls. Compared as Arrow's, which has instants and not this machine's times."""
    full, empty = rows.toArrow().to_pylist()
    assert empty == dict.fromkeys(expected)
    full["by_name"] = dict(full["by_name"])
    assert full == expected


def test_a_wrong_value_reaches_who_reads(jvm: SparkSession, tmp_path: Path, way: str) -> None:
    (tmp_path / f"{DAY}.json").write_text('{"a": {"b": [1]}}\n{"a": {"b": [1, 2.5]}}\n')
    error: type[Exception] = DropZoneError if way == "here" else PythonException
    with pytest.raises(error, match=rf"{DAY}\.json, line 2, field a\.b\[1\]: '2\.5' is no int"):
        read_json(jvm, str(tmp_path), [DAY], {"a": "struct<b: list<int>>"}).collect()
