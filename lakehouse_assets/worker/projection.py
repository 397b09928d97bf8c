"""This module tells for which values Iceberg finds all files that may hold them, by partitions and by files' bounds.
It reads metadata only. Which values the changes of a merge have is changes.py's."""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import TruncateTransform
from pyiceberg.types import IntegerType, LongType, TimestampType, TimestamptzType

from lakehouse_assets.protocol.merging import Bound

FIRST, LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
"""Microseconds since 1970: the years 1 to 9999, which Spark and Python promise. Hours overflow from the year 246953."""
LEAST = -(2**31)
"""The least int. A column of longs may have been one of ints, and keeps partitions that were computed of these."""
WIDEST = 2**30
"""Added to the rest of a division by it, as Iceberg's truncate does with ints, a greater width overflows
(org.apache.iceberg.util.TruncateUtil)."""


def is_projected(bound: Bound, metadata: TableMetadata) -> bool:
    """Whether no file that holds rows within the bound is skipped, neither by Iceberg's planning in the JVM nor by
    PyIceberg's: partition values that have overflowed are in no order, and PyIceberg's do not overflow.

    bound: of a column of a type that worker/changes.py bounds. metadata: of the table, with all its partition specs.
    """
    texts = bound.values or (bound.low, bound.high)
    match metadata.schema().find_type(bound.column):
        case TimestampType() | TimestamptzType():
            return all(FIRST <= int(text) <= LAST for text in texts)
        case IntegerType() | LongType():
            widths = list(_widths(bound.column, metadata))
            least = min(map(int, texts))
            return all(width <= WIDEST and LEAST + width <= least for width in widths)
    return True


def _widths(column: str, metadata: TableMetadata) -> Iterator[int]:
    """Widths by which any spec of the table truncates the column."""
    source = metadata.schema().find_field(column).field_id
    for spec in metadata.partition_specs:
        for field in spec.fields_by_source_id(source):
            if isinstance(field.transform, TruncateTransform):
                yield field.transform.width
