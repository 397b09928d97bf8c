"""Writes a snapshot's rows as Hive-style Parquet, and looks what is in storage: files, bytes, rows by their footers.

Which snapshot and where to is decided in hand_over.py; replicas are looked at by the same function (replicas.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.table import Table as IcebergTable

from lakehouse_assets.environment.catalog import why_gone
from lakehouse_assets.errors import HandOffRefused
from lakehouse_assets.hand_off.hive_paths import segments
from lakehouse_assets.hand_off.records import HandedFile, HandOffPlan
from lakehouse_assets.storage.objects import at_once, pages
from lakehouse_assets.storage.place import Place

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.io import FileIO
    from pyiceberg.table import DataScan

AT_ONCE = 128 * 2**20
"""The bytes of files that are read ahead: PyIceberg begins to read all files that it gets, and keeps what it has read
until it is taken."""
MOST_ROWS = 5_000_000
"""The most rows of one file: beyond it, a partition gets a further one."""
GROUP_ROWS = 10_000
"""The fewest rows of a row group, but for the last one of a file: until then, rows of open partitions wait."""
MOST_PARTITIONS = 100_000
TAIL = 64 * 2**10
"""The bytes at a file's end that are read for its footer; a longer footer takes a second request."""


def source_scan(table: IcebergTable, plan: HandOffPlan) -> DataScan:
    """Returns the scan of the planned snapshot. Raises HandOffRefused where the snapshot is gone."""
    if why := why_gone(table.metadata, plan.table_uuid, plan.snapshot_id):
        raise HandOffRefused(
            f"table {plan.table} {why}, so what this run was to hand off is gone. Nothing was switched: materialize "
            "anew, as a new run, not a re-execution from failure"
        )
    return table.scan(snapshot_id=plan.snapshot_id)


def plan_tasks(scan: DataScan) -> list[FileScanTask]:
    """Returns the files that a scan reads, in the order of their paths, so that rows of one partition come together.

    Raises HandOffRefused for equality deletes, which PyIceberg does not apply.
    """
    try:
        return sorted(scan.plan_files(), key=lambda task: task.file.file_path)
    except ValueError as error:
        raise HandOffRefused(f"the table can't be read as it is: {error}. Compact it first") from error


def count_rows(scan: DataScan) -> int:
    """Returns how many rows the scan has: by metadata, and by reading one column where rows are deleted."""
    first = next(field.name for field in scan.projection().fields)
    return scan.select(first).count()


def write_files(scan: DataScan, tasks: Sequence[FileScanTask], plan: HandOffPlan, folder: Place, io: FileIO) -> None:
    """Writes all rows of these files below a folder of S3: ``<column>=<value>/…/part-<n>.parquet``.

    It holds a few files' rows at a time. io: of the folder. Raises HandOffRefused for values that no path can hold, and
    what storages raise.
    """
    import pyarrow as pa
    import pyarrow.dataset as ds
    from pyiceberg.io.pyarrow import PyArrowFileIO, schema_to_pyarrow

    assert isinstance(io, PyArrowFileIO)
    rows = schema_to_pyarrow(plan.schema, include_field_ids=False)
    fields = [pa.field(f.name, pa.string()) if f.name in plan.partitioned_by else f for f in rows]
    batches = (_with_segments(batch, plan.partitioned_by) for batch in _batches(scan, tasks, plan.schema, rows))
    # Not pyarrow's Hive partitioning, whose paths Hive misreads (hive_paths.py): folders that are named like its.
    named = pa.schema([(name, pa.string()) for name in plan.partitioned_by])
    ds.write_dataset(
        pa.RecordBatchReader.from_batches(pa.schema(fields), batches),
        f"{folder.bucket}/{folder.key}",
        format="parquet",
        filesystem=io.fs_by_scheme("s3", folder.bucket),
        partitioning=ds.DirectoryPartitioning(named, segment_encoding="none") if plan.partitioned_by else None,
        basename_template="part-{i}.parquet",
        min_rows_per_group=GROUP_ROWS,
        max_rows_per_group=max(GROUP_ROWS, 1_000_000),
        max_rows_per_file=MOST_ROWS,
        max_partitions=MOST_PARTITIONS,
        existing_data_behavior="overwrite_or_ignore",  # the folder is this attempt's own: nothing need be listed
        create_dir=False,  # it would put an empty object for each folder
    )


def _batches(
    scan: DataScan, tasks: Sequence[FileScanTask], columns: Schema, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Reads the files some at a time; PyIceberg's own reader has all of a table in memory where writing is slower."""
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
    """Puts the parts of the path in the place of partition columns."""
    for name in partitioned_by:
        at = batch.schema.get_field_index(name)
        batch = batch.set_column(at, name, segments(name, batch.column(at)))
    return batch


# what is there


def list_sizes(client: Any, folder: Place) -> dict[str, int]:
    """Returns the bytes of all objects below a folder, by their paths within it. Raises what S3 raises."""
    below = folder.child("")
    found = (one for page in pages(client, "list_objects_v2", below) for one in page.get("Contents", ()))
    return {one["Key"].removeprefix(below.key): one["Size"] for one in found}


def read_files(client: Any, folder: Place, sizes: Mapping[str, int]) -> dict[str, HandedFile]:
    """Reads the footers of files, sixteen at a time. sizes: bytes, by path below the folder.

    Raises ValueError for a file that is no Parquet, and what S3 raises.
    """

    def read(path: str) -> HandedFile:
        return _read_footer(client, folder.child(path), sizes[path])

    return dict(zip(sizes, at_once(read, [*sizes]), strict=True))


def _read_footer(client: Any, file: Place, size: int) -> HandedFile:
    import pyarrow as pa
    import pyarrow.parquet as pq

    tail = _read_tail(client, file, min(size, TAIL))
    # https://parquet.apache.org/docs/file-format/: the footer, its length in 4 bytes, the letters PAR1.
    if (length := int.from_bytes(tail[-8:-4], "little") + 8) > len(tail) and length <= size:
        tail = _read_tail(client, file, length)
    rows = pq.read_metadata(pa.BufferReader(tail)).num_rows
    return HandedFile(rows, size, hashlib.sha256(tail[-length:]).hexdigest()[:16])


def _read_tail(client: Any, file: Place, size: int) -> bytes:
    answer = client.get_object(Bucket=file.bucket, Key=file.key, Range=f"bytes=-{size}")
    return bytes(answer["Body"].read())
