"""Iceberg's types in Hive's and Trino's words, and the ones that have none, by name."""

from __future__ import annotations

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    FixedType,
    IcebergType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from lakehouse_assets.extensions.hand_off.hive import hive_type, trino_type, type_problems

PLACE = StructType(NestedField(1, "lat", DecimalType(9, 6)), NestedField(2, "seen", TimestamptzType()))


def problems(name: str, kind: IcebergType, *partitioned_by: str) -> list[str]:
    fields = (NestedField(90, name, kind), NestedField(91, "other", StringType()))
    return [*type_problems(Schema(*fields), partitioned_by)]


@pytest.mark.parametrize(
    ("kind", "hive", "trino"),
    [
        (LongType(), "bigint", "bigint"),
        (StringType(), "string", "varchar"),
        (BinaryType(), "binary", "varbinary"),
        (TimestamptzType(), "timestamp", "timestamp(3)"),
        (DecimalType(9, 2), "decimal(9,2)", "decimal(9,2)"),
        (PLACE, "struct<lat:decimal(9,6),seen:timestamp>", 'row("lat" decimal(9,6),"seen" timestamp(3))'),
        (ListType(3, PLACE), "array<struct<lat:decimal(9,6),seen:timestamp>>", f"array({trino_type(PLACE)})"),
        (MapType(3, StringType(), 4, LongType()), "map<string,bigint>", "map(varchar,bigint)"),
    ],
)
def test_types_have_the_names_of_hive_and_trino(kind: IcebergType, hive: str, trino: str) -> None:
    assert not problems("c", kind)
    assert hive_type(kind) == hive
    assert trino_type(kind) == trino


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (UUIDType(), "c"),
        (TimeType(), "c"),
        (FixedType(4), "c"),
        (StructType(NestedField(1, "id", UUIDType())), r"c\.id"),
        (ListType(1, TimeType()), r"c\.element"),
        (MapType(1, UUIDType(), 2, StringType()), r"c\.key"),
    ],
)
def test_a_type_without_a_name_is_refused_by_its_column(kind: IcebergType, path: str) -> None:
    (problem,) = problems("c", kind)
    assert path.replace("\\", "") in problem
    assert "for which Hive has no type" in problem


def test_a_name_that_glue_would_change_is_refused() -> None:
    assert "column Flight: Glue stores names in lower case" in problems("Flight", LongType())[0]


@pytest.mark.parametrize(
    ("by", "problem"),
    [
        (["nothing"], "names 'nothing', which is not a column"),
        (["c", "c"], "names a column twice"),
        (["c", "other"], "names every column"),
    ],
)
def test_partition_columns_are_some_of_the_columns(by: list[str], problem: str) -> None:
    assert problem in problems("c", LongType(), *by)[0]


def test_a_partition_column_has_a_type_that_a_path_gives_back() -> None:
    assert "names c, a timestamptz" in problems("c", TimestamptzType(), "c")[0]
