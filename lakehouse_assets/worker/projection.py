"""This module tells for which values Iceberg finds all files that may hold them, by partitions and by files' bounds.

It reads metadata only. Which values the changes of a merge have is changes.py's.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import TruncateTransform
from pyiceberg.types import IntegerType, LongType, TimestampType, TimestamptzType

from lakehouse_assets.protocol.merging import Bound, truncates_in_order

FIRST, LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
"""Microseconds since 1970: the years 1 to 9999, which Spark and Python promise. Hours overflow from the year 246953."""


def is_projected(bound: Bound, metadata: TableMetadata) -> bool:
    """Tells whether neither Iceberg's planning, in the JVM, nor PyIceberg's skips a file with rows within the bound.

    Partition values that have overflowed are in no order, and PyIceberg's do not overflow.
    bound: of a column of a type that worker/changes.py bounds. metadata: of the table, with all its partition specs.
    """
    texts = bound.values or (bound.low, bound.high)
    match metadata.schema().find_type(bound.column):
        case TimestampType() | TimestamptzType():
            return all(FIRST <= int(text) <= LAST for text in texts)
        case IntegerType() | LongType():
            least = min(map(int, texts))
            return all(truncates_in_order(width, least) for width in _widths(bound.column, metadata))
    return True


def _widths(column: str, metadata: TableMetadata) -> Iterator[int]:
    """Yields the widths by which any spec of the table truncates the column."""
    source = metadata.schema().find_field(column).field_id
    for spec in metadata.partition_specs:
        for field in spec.fields_by_source_id(source):
            if isinstance(field.transform, TruncateTransform):
                yield field.transform.width
