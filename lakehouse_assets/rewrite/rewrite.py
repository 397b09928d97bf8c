"""Rewrites files of one partition without a JVM, sorted by the table's order, and proves that the rows stay the same.

What is rewritten is planned in rewrite_plan.py; nothing here commits or deletes anything. Which orders PyArrow can't
sort by is in health/needs_spark.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ArrowScan, write_file
from pyiceberg.manifest import DATA_FILE_TYPE, DEFAULT_READ_VERSION, DataFile, ManifestEntry
from pyiceberg.partitioning import PartitionKey
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, TableProperties, WriteTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.typedef import Record
from pyiceberg.utils.properties import property_as_int

from lakehouse_assets.commit.deletes import DeleteFiles
from lakehouse_assets.commit.landing import Base, Proof, Unit
from lakehouse_assets.declare.options import RowProof
from lakehouse_assets.health.health import target_size
from lakehouse_assets.rewrite.digest import digest
from lakehouse_assets.rewrite.rewrite_plan import RewriteTask
from lakehouse_assets.wire.work import Digest


def sort(rows: pa.Table, order: SortOrder, schema: Schema) -> pa.Table:
    """Sorts the rows by the order; equal ones stay as they are.

    schema: that of the rows.
    """
    if order.is_unsorted:
        return rows
    keys: dict[str, pa.ChunkedArray] = {}
    directions: list[tuple[str, str]] = []
    for n, field in enumerate(order.fields):
        column = rows[schema.find_field(field.source_id).name]
        if (rank := _rank(column, field)) is not None:
            keys[f"rank{n}"] = rank
            directions.append((f"rank{n}", "ascending"))
        keys[f"value{n}"] = column
        is_ascending = field.direction is SortDirection.ASC
        directions.append((f"value{n}", "ascending" if is_ascending else "descending"))
    return rows.take(pc.sort_indices(pa.table(keys), directions))


def _rank(column: pa.ChunkedArray, field: SortField) -> pa.ChunkedArray | None:
    """Returns where nulls, numbers and NaNs go with regard to each other; None if there are only numbers.

    PyArrow puts nulls and NaNs at one end; Iceberg has NaN above all numbers, and nulls where the order says.
    """
    is_nan = pc.is_nan(column).fill_null(False) if pa.types.is_floating(column.type) else None
    if not column.null_count and not (is_nan is not None and pc.any(is_nan).as_py()):
        return None
    null = 0 if field.null_order is NullOrder.NULLS_FIRST else 3
    number, nan = (1, 2) if field.direction is SortDirection.ASC else (2, 1)
    of_numbers = pa.scalar(number, pa.int8()) if is_nan is None else pc.if_else(is_nan, _small(nan), _small(number))
    return pc.if_else(column.is_null(), _small(null), of_numbers)


def _small(number: int) -> pa.Scalar:
    return pa.scalar(number, pa.int8())


SORT_ORDER_ID = [field.name for field in DATA_FILE_TYPE[DEFAULT_READ_VERSION].fields].index("sort_order_id")


def rewrite(base: Base, io: FileIO, task: RewriteTask, by: RowProof = RowProof.ROWS) -> Unit:
    """Writes the task's rows to new files, in the table's own location, and proves them; the table does not change.

    by: what is compared of the rows. One group of files is in memory at a time, uncompressed. Raises FileNotFoundError
    if a file of the base is gone.
    """
    before, added, applying = Digest(), list[DataFile](), DeleteFiles(task.deletes, base.metadata.specs())
    for group in task.groups:
        rows = read(base.metadata, io, [FileScanTask(entry.data_file, _deletes_of(entry, applying)) for entry in group])
        before += digest([rows]) if by == RowProof.ROWS else Digest(rows.num_rows)
        size = sum(entry.data_file.file_size_in_bytes for entry in group)
        added += write(base.metadata, io, sort(rows, base.metadata.sort_order(), base.metadata.schema()), size, task)
    if by == RowProof.ROWS:
        # The rows are read from storage, not taken from what the writer was given.
        after = digest(read(base.metadata, io, [FileScanTask(file)]) for file in added)
    else:
        after = Digest(sum(file.record_count for file in added))
    return Unit(task.name, base, tuple(task.entries), task.deletes, tuple(added), Proof(before, after))


def read(metadata: TableMetadata, io: FileIO, tasks: Iterable[FileScanTask]) -> pa.Table:
    """Reads the live rows of files, under the table's current schema.

    PyIceberg applies the position deletes of all files of a scan to each of them, also those that are older than the
    file: one that came back would lose rows. So a file with deletes is read by a scan of its own.
    """
    scan = ArrowScan(metadata, io, metadata.schema(), AlwaysTrue())
    tables: list[pa.Table] = []
    for deleted, group in groupby(tasks, key=lambda task: bool(task.delete_files)):
        together = list(group)
        tables += [scan.to_table([task]) for task in together] if deleted else [scan.to_table(together)]
    return pa.concat_tables(tables, promote_options="permissive")  # text of a file without rows is large_string


def write(metadata: TableMetadata, io: FileIO, rows: pa.Table, size: int, task: RewriteTask) -> list[DataFile]:
    """Writes files with these rows in their order, with the table's Parquet properties, metrics and sort order.

    size: the bytes of the files that held them. So many new ones are made that each comes near the target.
    """
    if not rows.num_rows:
        return []
    each = math.ceil(rows.num_rows / max(1, round(size / target_size(metadata))))
    slices = [rows.slice(start, each) for start in range(0, rows.num_rows, each)]
    files = list(write_file(io, _writing(metadata, rows), _write_tasks(metadata, slices, task)))
    for file in files:  # what PyIceberg's writer leaves out
        file[SORT_ORDER_ID] = metadata.default_sort_order_id
        file.spec_id = metadata.default_spec_id
    return files


@dataclass(frozen=True)
class _KnownPartition(PartitionKey):
    """The key of a partition whose tuple is known.

    PyIceberg computes the tuple from values of columns, and can't where two fields of the spec are of one column.
    """

    values: Record

    @cached_property
    def partition(self) -> Record:
        return self.values


def _write_tasks(metadata: TableMetadata, slices: Sequence[pa.Table], task: RewriteTask) -> Iterator[WriteTask]:
    schema, spec, name = metadata.schema(), metadata.spec(), uuid4()
    key = None if spec.is_unpartitioned() else _KnownPartition([], spec, schema, task.partition[1])
    for n, rows in enumerate(slices):
        yield WriteTask(name, n, schema, rows.to_batches(), partition_key=key)


def _writing(metadata: TableMetadata, rows: pa.Table) -> TableMetadata:
    """Returns metadata for PyIceberg's writer, which knows the size of row groups in rows only, not in bytes."""
    properties = dict(metadata.properties)
    group = property_as_int(
        properties, TableProperties.PARQUET_ROW_GROUP_SIZE_BYTES, TableProperties.PARQUET_ROW_GROUP_SIZE_BYTES_DEFAULT
    )
    limit = property_as_int(
        properties, TableProperties.PARQUET_ROW_GROUP_LIMIT, TableProperties.PARQUET_ROW_GROUP_LIMIT_DEFAULT
    )
    assert group is not None, "it has a default"
    assert limit is not None, "it has a default"
    properties.pop(TableProperties.PARQUET_ROW_GROUP_SIZE_BYTES, None)
    properties[TableProperties.PARQUET_ROW_GROUP_LIMIT] = str(
        max(1, min(limit, group * rows.num_rows // max(rows.nbytes, 1)))
    )
    return metadata.model_copy(update={"properties": properties})


def _deletes_of(entry: ManifestEntry, applying: DeleteFiles) -> set[DataFile]:
    return {delete.data_file for delete in applying.applying_to(entry)}
