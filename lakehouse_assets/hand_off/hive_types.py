"""Gives the columns of an Iceberg table their types in Hive's and in Trino's words, and names those that have none.

What a partition's value is as text is hive_paths.py's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

PRIMITIVES: dict[type[IcebergType], tuple[str, str]] = {
    BooleanType: ("boolean", "boolean"),
    IntegerType: ("int", "integer"),
    LongType: ("bigint", "bigint"),
    FloatType: ("float", "real"),
    DoubleType: ("double", "double"),
    DateType: ("date", "date"),
    # Parquet keeps both as microseconds. Hive's timestamp has no zone: a timestamptz reads as its time in UTC.
    TimestampType: ("timestamp", "timestamp(3)"),
    TimestamptzType: ("timestamp", "timestamp(3)"),
    StringType: ("string", "varchar"),
    BinaryType: ("binary", "varbinary"),
}
"""Hive's and Trino's names of types (https://docs.aws.amazon.com/athena/latest/ug/data-types.html). Not here are those
that readers of Parquet by Hive's types don't read alike: uuid, time, fixed, and all of Iceberg's format version 3."""
PARTITION_TYPES = (StringType, IntegerType, LongType, DateType)
"""The types whose values Hive's readers take back from a path as they were."""
NAME = re.compile(r"[a-z_][a-z0-9_]*")
"""Glue keeps names in lower case, and Athena knows no others without quotes
(https://docs.aws.amazon.com/athena/latest/ug/tables-databases-columns-names.html)."""


def hive_type(kind: IcebergType) -> str:
    """Returns the type as Glue and Hive name it, such as ``struct<lat:double,lon:double>``.

    Raises KeyError for one that has no name there; type_problems() finds these first.
    """
    match kind:
        case DecimalType():
            return f"decimal({kind.precision},{kind.scale})"
        case StructType():
            return f"struct<{','.join(f'{field.name}:{hive_type(field.field_type)}' for field in kind.fields)}>"
        case ListType():
            return f"array<{hive_type(kind.element_type)}>"
        case MapType():
            return f"map<{hive_type(kind.key_type)},{hive_type(kind.value_type)}>"
    return PRIMITIVES[type(kind)][0]


def trino_type(kind: IcebergType) -> str:
    """Returns the type as Trino and Athena name it in a view, such as ``row("lat" double,"lon" double)``."""
    match kind:
        case DecimalType():
            return f"decimal({kind.precision},{kind.scale})"
        case StructType():
            return f"row({','.join(f'{quoted(field.name)} {trino_type(field.field_type)}' for field in kind.fields)})"
        case ListType():
            return f"array({trino_type(kind.element_type)})"
        case MapType():
            return f"map({trino_type(kind.key_type)},{trino_type(kind.value_type)})"
    return PRIMITIVES[type(kind)][1]


def quoted(name: str) -> str:
    """Returns a name as Trino quotes it; one that NAME allows has no quotes in it."""
    return f'"{name}"'


def type_problems(schema: Schema, partitioned_by: Sequence[str]) -> Iterator[str]:
    """Says what of a table has no place in a Hive table, a sentence each: types, names, partition columns.

    partitioned_by: the columns that paths are to name.
    """
    for field in schema.fields:
        yield from _field_problems(field, field.name)
    columns = {field.name: field.field_type for field in schema.fields}
    for name in partitioned_by:
        if name not in columns:
            yield f"partitioned_by names {name!r}, which is no column; columns are {', '.join(columns)}"
        elif not isinstance(columns[name], PARTITION_TYPES):
            yield f"partitioned_by names {name}, a {columns[name]}: a path holds string, int, long or date"
    if len({*partitioned_by}) < len(partitioned_by):
        yield "partitioned_by names a column twice"
    if not columns.keys() - {*partitioned_by}:
        yield "partitioned_by names every column: files need one at least"


def _field_problems(field: NestedField, path: str) -> Iterator[str]:
    if not NAME.fullmatch(field.name):
        yield f"column {path}: Glue keeps names in lower case: a-z, 0-9 and _, no digit first; rename it in the table"
    yield from _kind_problems(field.field_type, path)


def _kind_problems(kind: IcebergType, path: str) -> Iterator[str]:
    match kind:
        case StructType():
            for field in kind.fields:
                yield from _field_problems(field, f"{path}.{field.name}")
        case ListType():
            yield from _kind_problems(kind.element_type, f"{path}.element")
        case MapType():
            yield from _kind_problems(kind.key_type, f"{path}.key")
            yield from _kind_problems(kind.value_type, f"{path}.value")
        case DecimalType():
            return
        case _ if type(kind) not in PRIMITIVES:
            yield f"column {path} is a {kind}, which Hive has no type for; hand off a table that has it as a string"
