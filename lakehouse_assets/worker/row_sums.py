"""Adds up the rows of a table, file by file, as 64-bit hashes, by which a rewrite is proved.

What is compared is commit/proof.py's; the same for Arrow, with another hash, is in rewrite/digest.py.

A row's hash is made of its values in their nesting. Spark's xxhash64 passes over nulls, so that it is blind to one that
moved to another column, and it refuses maps: here every value is preceded by whether it is null, lists by their length,
and maps are lists of entries, in their order. It does not tell 0.0 from -0.0, nor NaNs of other bits.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from lakehouse_assets.protocol.rewriting import RowSums

LOW_BITS, HIGH_SHIFT = 0xFFFFFFFF, 32


def row_sums(rows: DataFrame) -> dict[str, RowSums]:
    """Returns the sums of the live rows of an Iceberg table by data file; files without such rows are missing."""
    hashed = rows.select(F.col("_file").alias("file"), row_hash(rows).alias("h"))
    sums = hashed.groupBy("file").agg(
        F.count(F.lit(1)),
        F.sum(F.col("h").bitwiseAND(F.lit(LOW_BITS))),
        F.sum(F.shiftright("h", HIGH_SHIFT)),
        F.bit_xor("h"),
    )
    return {file: RowSums(*numbers) for file, *numbers in sums.collect()}


def row_hash(rows: DataFrame) -> Column:
    """Returns the hash of each row, over all its columns."""
    parts = [part for field in rows.schema for part in _parts(rows[_quoted(field.name)], field.dataType)]
    return F.xxhash64(*parts)


def _parts(value: Column, kind: DataType) -> list[Column]:
    """Returns the parts of one value that are hashed. None of them is null, but for values of simple types."""
    if isinstance(kind, StructType):
        fields = [part for field in kind for part in _parts(value.getField(field.name), field.dataType)]
        return [value.isNull(), *fields]
    if isinstance(kind, ArrayType):
        return [value.isNull(), F.size(value), F.transform(value, _element(kind.elementType))]
    if isinstance(kind, MapType):
        entry = StructType().add("key", kind.keyType).add("value", kind.valueType)
        return [value.isNull(), F.size(value), F.transform(F.map_entries(value), _element(entry))]
    return [value.isNull(), value]


def _element(kind: DataType) -> Callable[[Column], Column]:
    return lambda element: F.struct(*_parts(element, kind))


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
