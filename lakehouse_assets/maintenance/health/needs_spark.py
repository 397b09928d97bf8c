"""What needs Spark because a rewrite without a JVM can't honour it. Pure functions of metadata."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pyiceberg.manifest import DataFile, FileFormat, ManifestEntry
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from lakehouse_assets.commit import deletes
from lakehouse_assets.commit.fork import FORMAT_VERSION
from lakehouse_assets.maintenance.health.partition_health import EQUALITY, old_spec

SORTABLE = (
    *(BooleanType, IntegerType, LongType, FloatType, DoubleType, DecimalType),
    *(DateType, TimeType, TimestampType, TimestamptzType, StringType, BinaryType),
)
"""Types that PyArrow orders as Iceberg does (https://iceberg.apache.org/spec/#sorting)."""
CODECS = ("zstd", "snappy", "gzip", "lz4", "brotli", "uncompressed")
"""Those that a rewrite without a JVM can write."""
PARQUET = "write.parquet."
BLOOM_FILTER = "write.parquet.bloom-filter-"
# Parquet properties that don't call for Spark: a rewrite without a JVM follows them, or need not.
HONOURED = {
    TableProperties.PARQUET_COMPRESSION,
    TableProperties.PARQUET_COMPRESSION_LEVEL,
    TableProperties.PARQUET_ROW_GROUP_SIZE_BYTES,
    TableProperties.PARQUET_ROW_GROUP_LIMIT,
    TableProperties.PARQUET_PAGE_SIZE_BYTES,
    TableProperties.PARQUET_PAGE_ROW_LIMIT,
    TableProperties.PARQUET_DICT_SIZE_BYTES,
    # It need not follow these: how often Java's writer checks whether a row group is full.
    "write.parquet.row-group-check-min-record-count",
    "write.parquet.row-group-check-max-record-count",
}
FOREIGN = (
    "write.location-provider.impl",
    "write.object-storage.path",
    "write.folder-storage.path",
    "encryption.key-id",
)
"""Properties for file locations and encryption that only Java's writers follow."""


def reasons_of_table(metadata: TableMetadata) -> list[str]:
    """Returns why the whole table needs Spark."""
    return [*_of_format(metadata), *_of_properties(metadata), *unsortable(metadata.sort_order(), metadata.schema())]


def reasons_of_partition(
    metadata: TableMetadata, data: Collection[ManifestEntry], applied: Collection[ManifestEntry]
) -> list[str]:
    """Returns why a partition needs Spark. applied: delete files that may apply."""
    specs = {entry.data_file.spec_id for entry in data} - {metadata.default_spec_id}
    found = [old_spec(spec_id) for spec_id in sorted(specs)]
    # One file tells, as all are of one partition.
    if not found and data and not _has_path(metadata, next(iter(data)).data_file):
        found.append("it is a day that Python's calendar lacks")  # PyIceberg can't name its folder
    if any(not deletes.is_position(entry) for entry in applied):
        found.append(EQUALITY)
    return found + sorted({reason for entry in [*data, *applied] for reason in _of_file(entry.data_file)})


def _of_format(metadata: TableMetadata) -> Iterator[str]:
    if metadata.format_version != FORMAT_VERSION:
        yield f"its format version is {metadata.format_version}, not {FORMAT_VERSION}"
    name = TableProperties.WRITE_FILE_FORMAT
    if (value := metadata.properties.get(name, TableProperties.WRITE_FILE_FORMAT_DEFAULT)).lower() != "parquet":
        yield f"its property {name} is {value}"


def _of_properties(metadata: TableMetadata) -> Iterator[str]:
    for name, value in sorted(metadata.properties.items()):
        if name == TableProperties.PARQUET_COMPRESSION and value.lower() not in CODECS:
            yield f"its property {name} is {value}"
        elif name.startswith(TableProperties.PARQUET_BLOOM_FILTER_COLUMN_ENABLED_PREFIX):
            if value.lower() == "true":
                yield f"it has bloom filters ({name})"
        elif name in FOREIGN or _is_unknown(name):
            yield f"it has the property {name}"


def unsortable(order: SortOrder, schema: Schema) -> Iterator[str]:
    """Yields why PyArrow can't sort rows by this order."""
    columns = {field.field_id: field for field in schema.fields}
    for field in order.fields:
        column = columns.get(field.source_id)
        name = schema.find_column_name(field.source_id) or f"column {field.source_id}"
        if column is None:
            yield f"it is sorted by {name}, which is nested or was dropped"
        elif not isinstance(field.transform, IdentityTransform):
            yield f"it is sorted by {field.transform}({name})"
        elif not isinstance(column.field_type, SORTABLE):
            yield f"it is sorted by {name}, a {column.field_type}"


def _is_unknown(name: str) -> bool:
    """Whether it is a Parquet property that is not in HONOURED. Of bloom filters, only what enables one matters."""
    return name.startswith(PARQUET) and name not in HONOURED and not name.startswith(BLOOM_FILTER)


def _has_path(metadata: TableMetadata, file: DataFile) -> bool:
    try:
        metadata.spec().partition_to_path(file.partition, metadata.schema())
    except (ValueError, OverflowError):
        return False
    return True


def _of_file(file: DataFile) -> Iterator[str]:
    if file.file_format != FileFormat.PARQUET:
        yield f"it has {file.file_format} files"
    if file.key_metadata is not None:
        yield "its files are encrypted"
