"""A daily table of nested and other columns, with every kind of null, for tests of rewrites.
What is done to it is the test's."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from tests.support.forks import SPEC, Daily

WIDE = Schema(
    NestedField(1, "day", DateType(), required=True),
    NestedField(2, "n", LongType()),
    NestedField(3, "text", StringType()),
    NestedField(4, "price", DecimalType(20, 2)),
    NestedField(5, "ratio", DoubleType()),
    NestedField(6, "at", TimestampType()),
    NestedField(7, "at_utc", TimestamptzType()),
    NestedField(8, "point", StructType(NestedField(9, "x", LongType()), NestedField(10, "y", StringType()))),
    NestedField(11, "tags", ListType(12, StringType(), element_required=False)),
    NestedField(13, "counts", MapType(14, StringType(), 15, LongType(), value_required=False)),
)


def wide_table(daily: Daily) -> Daily:
    """In the catalog of another one; Spark deletes in it by position. Three files a day, of three days."""
    identifier = f"{daily.identifier}_wide"
    properties = {"write.delete.mode": "merge-on-read", "write.update.mode": "merge-on-read"}
    daily.catalog.create_table(identifier, WIDE, partition_spec=SPEC, properties=properties)
    table = Daily(daily.catalog, identifier)
    for part in range(3):
        append(table, [row for day in range(3) for row in wide_rows(day, part)])
    return table


def append(table: Daily, rows: list[dict[str, Any]]) -> None:
    table.append(pa.Table.from_pylist(rows, schema=table.table.schema().as_arrow()))


def wide_rows(day: int, part: int) -> list[dict[str, Any]]:
    return [
        {
            "day": datetime(2013, 1, 1 + day).date(),
            "n": 10 * part + n,
            "text": None if n == 1 else f"text {n}",
            "ratio": [0.0, -0.0, float("nan"), None][n],
            "at": datetime(2013, 1, 1, n, 1, 2, 345678),
            "at_utc": datetime(2013, 1, 1, n, 1, 2, 345678, UTC),
            "point": None if n == 0 else {"x": n, "y": None},
            "tags": [["a", None], [], None, ["b"]][n],
            "counts": [[("k", n)], [], None, [("l", None)]][n],
        }
        for n in range(4)
    ]
