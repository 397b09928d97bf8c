"""Hive-style Parquet: types, partition folders, files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.table import Table as IcebergTable
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

from lakehouse_assets.environment.catalog import why_gone
from lakehouse_assets.errors import HandOffRefused
from lakehouse_assets.extensions.hand_off.records import HandedFile, HandOffPlan
from lakehouse_assets.storage.objects import at_once, pages
from lakehouse_assets.storage.place import Place

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.io import FileIO
    from pyiceberg.table import DataScan

PRIMITIVES: dict[type[IcebergType], tuple[str, str]] = {
    BooleanType: ("boolean", "boolean"),
    IntegerType: ("int", "integer"),
    LongType: ("bigint", "bigint"),
    FloatType: ("float", "real"),
    DoubleType: ("double", "double"),
    DateType: ("date", "date"),
    # Parquet stores both as microseconds. Hive's timestamp has no zone: a timestamptz reads as its UTC time.
    TimestampType: ("timestamp", "timestamp(3)"),
    TimestamptzType: ("timestamp", "timestamp(3)"),
    StringType: ("string", "varchar"),
    BinaryType: ("binary", "varbinary"),
}
"""Iceberg's type → its names in Hive and Trino (https://docs.aws.amazon.com/athena/latest/ug/data-types.html). Types
that Hive's readers read differently are missing: uuid, time, fixed, all of format version 3."""
PARTITION_TYPES = (StringType, IntegerType, LongType, DateType)
"""Types that Hive's readers restore from a path."""
NAME = re.compile(r"[a-z_][a-z0-9_]*")
"""Glue keeps names in lower case, and Athena accepts no others without quotes
(https://docs.aws.amazon.com/athena/latest/ug/tables-databases-columns-names.html)."""


def hive_type(kind: IcebergType) -> str:
    """Returns the name in Glue and Hive, such as ``struct<lat:double,lon:double>``.

    Raises KeyError for types that type_problems() finds.
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
    """Returns the name in Trino's and Athena's views, such as ``row("lat" double,"lon" double)``."""
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
    """Quotes a name that NAME allows."""
    return f'"{name}"'


def type_problems(schema: Schema, partitioned_by: Sequence[str]) -> Iterator[str]:
    """Yields a sentence for each type, name or partition column that Hive lacks."""
    for field in schema.fields:
        yield from _field_problems(field, field.name)
    columns = {field.name: field.field_type for field in schema.fields}
    for name in partitioned_by:
        if name not in columns:
            yield f"partitioned_by names {name!r}, which is not a column; the columns are {', '.join(columns)}"
        elif not isinstance(columns[name], PARTITION_TYPES):
            yield f"partitioned_by names {name}, a {columns[name]}: only string, int, long and date can be in a path"
    if len({*partitioned_by}) < len(partitioned_by):
        yield "partitioned_by names a column twice"
    if not columns.keys() - {*partitioned_by}:
        yield "partitioned_by names every column: files need at least one"


def _field_problems(field: NestedField, path: str) -> Iterator[str]:
    if not NAME.fullmatch(field.name):
        yield (
            f"column {path}: Glue stores names in lower case, with a-z, 0-9 and _, not beginning with a digit; rename "
            "it in the table"
        )
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
            yield f"column {path} is a {kind}, for which Hive has no type; hand off a table that has it as a string"


NULL = "__HIVE_DEFAULT_PARTITION__"
"""Null in paths and in Glue's partition values (Hive's hive.exec.default.partition.name)."""
# org.apache.hadoop.hive.common.FileUtils.charToEscape. All other characters, such as é, stay: Hive decodes
# pyarrow's own encoding byte by byte, and reads another text.
ESCAPED = {chr(code) for code in range(1, 0x20)} | {*"\"#%'*/:=?\\{}[]^\x7f"}


def segment(name: str, value: Any) -> str:
    """Returns a folder's name as Hive writes it. value: None for null."""
    text = NULL if value is None else "".join(f"%{ord(c):02X}" if c in ESCAPED else c for c in str(value))
    return f"{name}={text}"


def values_of(path: str) -> tuple[str, ...]:
    """Returns the values in a path's folders: unescaped, NULL for null."""
    folders = path.split("/")[:-1]
    return tuple(unquote(folder.partition("=")[2]) for folder in folders)


def segments(name: str, column: pa.Array) -> pa.Array:
    """Returns the folders for a column's values.

    Raises HandOffRefused for texts that readers would get as null, or cut.
    """
    import pyarrow as pa

    encoded = column.dictionary_encode()
    values = encoded.dictionary.to_pylist()
    if lost := sorted({"", NULL} & {*values}):
        raise HandOffRefused(
            f"column {name} contains {lost[0]!r}, which Hive reads as null in a path; leave it out of partitioned_by"
        )
    if cut := sorted(value for value in values if isinstance(value, str) and "\0" in value):
        raise HandOffRefused(
            f"column {name} contains {cut[0]!r}, with a NUL character, which a path can't have; leave it out of "
            "partitioned_by"
        )
    # The last entry is the folder for null, which has no entry in the dictionary.
    named = pa.array([*(segment(name, value) for value in values), segment(name, None)], pa.string())
    return named.take(encoded.indices.fill_null(len(values)))


AT_ONCE = 128 * 2**20
"""Bytes of the files that PyIceberg gets together: it reads all that it gets at once, and keeps rows until they are
taken."""
MOST_ROWS = 5_000_000
"""The most rows of a file; larger partitions get several."""
GROUP_ROWS = 10_000
"""The fewest rows of a row group, except a file's last: until a partition has so many, they wait in memory."""
MOST_PARTITIONS = 100_000  # pyarrow's own limit is 1,024
TAIL = 64 * 2**10
"""Bytes to read for a footer; longer ones take a second request."""


def source_scan(table: IcebergTable, plan: HandOffPlan) -> DataScan:
    """Returns the scan of the planned snapshot. Raises HandOffRefused if the snapshot is gone."""
    if why := why_gone(table.metadata, plan.table_uuid, plan.snapshot_id):
        raise HandOffRefused(
            f"table {plan.table} {why}, so the rows to hand off are gone. Nothing was switched: materialize again in a "
            "new run, not by re-executing from failure"
        )
    return table.scan(snapshot_id=plan.snapshot_id)


def plan_tasks(scan: DataScan) -> list[FileScanTask]:
    """Returns the files to read, sorted by path, which keeps a partition's rows together.

    Raises HandOffRefused for equality deletes, which PyIceberg does not apply.
    """
    try:
        return sorted(scan.plan_files(), key=lambda task: task.file.file_path)
    except ValueError as error:
        raise HandOffRefused(f"PyIceberg can't read the table: {error}. Compact it first") from error


def count_rows(scan: DataScan) -> int:
    """Counts the snapshot's rows by metadata; reads one column of files from which rows are deleted."""
    first = next(field.name for field in scan.projection().fields)
    return scan.select(first).count()


def write_files(scan: DataScan, tasks: Sequence[FileScanTask], plan: HandOffPlan, folder: Place, io: FileIO) -> None:
    """Writes all rows to ``<column>=<value>/…/part-<n>.parquet`` in S3, a few files at a time.

    Raises HandOffRefused for values that no path can hold, and the storages' errors.
    """
    import pyarrow as pa
    import pyarrow.dataset as ds
    from pyiceberg.io.pyarrow import PyArrowFileIO, schema_to_pyarrow

    assert isinstance(io, PyArrowFileIO)
    rows = schema_to_pyarrow(plan.schema, include_field_ids=False)
    fields = [pa.field(f.name, pa.string()) if f.name in plan.partitioned_by else f for f in rows]
    batches = (_with_segments(batch, plan.partitioned_by) for batch in _batches(scan, tasks, plan.schema, rows))
    # The columns hold whole segments such as day=2026-01-31: Hive misreads pyarrow's HivePartitioning.
    named = pa.schema([(name, pa.string()) for name in plan.partitioned_by])
    ds.write_dataset(
        pa.RecordBatchReader.from_batches(pa.schema(fields), batches),
        f"{folder.bucket}/{folder.key}",
        format="parquet",
        filesystem=io.fs_by_scheme("s3", folder.bucket),
        partitioning=ds.DirectoryPartitioning(named, segment_encoding="none") if plan.partitioned_by else None,
        basename_template="part-{i}.parquet",
        min_rows_per_group=GROUP_ROWS,
        max_rows_per_group=1_000_000,
        max_rows_per_file=MOST_ROWS,
        max_partitions=MOST_PARTITIONS,
        existing_data_behavior="overwrite_or_ignore",  # the folder is this attempt's own: no listing needed
        create_dir=False,  # it would put an empty object for each folder
    )


def _batches(
    scan: DataScan, tasks: Sequence[FileScanTask], columns: Schema, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Reads AT_ONCE bytes of files at a time: PyIceberg buffers all that it is given if writing is slower."""
    from pyiceberg.io.pyarrow import ArrowScan

    reader = ArrowScan(scan.table_metadata, scan.io, columns, scan.row_filter, scan.case_sensitive)
    for some in _grouped(tasks):
        for batch in reader.to_record_batches(some):
            yield batch.cast(schema)


def _grouped(tasks: Sequence[FileScanTask]) -> Iterator[list[FileScanTask]]:
    some: list[FileScanTask] = []
    size = 0
    for task in tasks:
        if some and size + task.file.file_size_in_bytes > AT_ONCE:
            yield some
            some, size = [], 0
        some.append(task)
        size += task.file.file_size_in_bytes
    if some:
        yield some


def _with_segments(batch: pa.RecordBatch, partitioned_by: Sequence[str]) -> pa.RecordBatch:
    """Replaces the values of partition columns by the names of their folders."""
    for name in partitioned_by:
        at = batch.schema.get_field_index(name)
        batch = batch.set_column(at, name, segments(name, batch.column(at)))
    return batch


# What storage has.


def list_sizes(client: Any, folder: Place) -> dict[str, int]:
    """Returns path below the folder → size in bytes, for all objects there. Raises S3's errors."""
    below = folder.child("")
    found = (one for page in pages(client, "list_objects_v2", below) for one in page.get("Contents", ()))
    return {one["Key"].removeprefix(below.key): one["Size"] for one in found}


def read_files(client: Any, folder: Place, sizes: Mapping[str, int]) -> dict[str, HandedFile]:
    """Reads footers, sixteen at a time. Raises ValueError for other files than Parquet, and S3's errors."""

    def read(path: str) -> HandedFile:
        return _read_footer(client, folder.child(path), sizes[path])

    return dict(zip(sizes, at_once(read, [*sizes]), strict=True))


def _read_footer(client: Any, file: Place, size: int) -> HandedFile:
    import pyarrow as pa
    import pyarrow.parquet as pq

    tail = _read_tail(client, file, min(size, TAIL))
    # A file ends with the footer, its length in 4 bytes, and the letters PAR1
    # (https://parquet.apache.org/docs/file-format/). If the length exceeds the file, parsing fails below.
    if (length := int.from_bytes(tail[-8:-4], "little") + 8) > len(tail) and length <= size:
        tail = _read_tail(client, file, length)
    rows = pq.read_metadata(pa.BufferReader(tail)).num_rows
    return HandedFile(rows, size, hashlib.sha256(tail[-length:]).hexdigest()[:16])


def _read_tail(client: Any, file: Place, size: int) -> bytes:
    answer = client.get_object(Bucket=file.bucket, Key=file.key, Range=f"bytes=-{size}")
    return bytes(answer["Body"].read())
