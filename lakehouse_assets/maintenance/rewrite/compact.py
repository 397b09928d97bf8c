"""Compaction of data files in this process, without Spark."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import groupby
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ArrowScan, write_file
from pyiceberg.manifest import DATA_FILE_TYPE, DEFAULT_READ_VERSION, DataFile, ManifestEntry
from pyiceberg.partitioning import PartitionKey
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table, TableProperties, WriteTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.typedef import Record
from pyiceberg.utils.properties import property_as_int

from lakehouse_assets.commit.deletes import DeleteFiles
from lakehouse_assets.commit.landing import Dropped, LandingRule, Proof, ReadSnapshot, RewriteUnit, land
from lakehouse_assets.commit.manifests import Entries, Partition
from lakehouse_assets.commit.tokens import RunToken, find_published
from lakehouse_assets.declare.options import RowProof
from lakehouse_assets.environment.launchers.base import Usage
from lakehouse_assets.maintenance.health.health import target_size
from lakehouse_assets.maintenance.health.needs_spark import reasons_of_table
from lakehouse_assets.maintenance.rewrite.digest import digest
from lakehouse_assets.maintenance.rewrite.plan import MIN_INPUT_FILES, RewriteTask, plan_rewrites
from lakehouse_assets.wire.work import Digest


def sort(rows: pa.Table, order: SortOrder, schema: Schema) -> pa.Table:
    """Sorts the rows, stably."""
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
    """Ranks nulls, numbers and NaNs, to sort by the rank before the value; None if there are only numbers.

    PyArrow puts nulls and NaNs at one end; Iceberg puts NaN above all numbers, and nulls where the order says.
    """
    is_nan = pc.is_nan(column).fill_null(False) if pa.types.is_floating(column.type) else None
    if not column.null_count and not (is_nan is not None and pc.any(is_nan).as_py()):
        return None
    # Sorted in ascending order in any case: for a descending order, NaN's rank is the lower one.
    null = 0 if field.null_order is NullOrder.NULLS_FIRST else 3
    number, nan = (1, 2) if field.direction is SortDirection.ASC else (2, 1)
    of_numbers = pa.scalar(number, pa.int8()) if is_nan is None else pc.if_else(is_nan, _small(nan), _small(number))
    return pc.if_else(column.is_null(), _small(null), of_numbers)


def _small(number: int) -> pa.Scalar:
    return pa.scalar(number, pa.int8())


SORT_ORDER_ID = [field.name for field in DATA_FILE_TYPE[DEFAULT_READ_VERSION].fields].index("sort_order_id")


def rewrite(base: ReadSnapshot, io: FileIO, task: RewriteTask, by: RowProof = RowProof.ROWS) -> RewriteUnit:
    """Writes the task's rows to new files, and proves them; commits nothing.

    by: what the proof compares. One group of files is in memory at a time, uncompressed. Raises FileNotFoundError if a
    file of the base is gone.
    """
    before, added, applying = Digest(), list[DataFile](), DeleteFiles(task.deletes, base.metadata.specs())
    for group in task.groups:
        rows = read(base.metadata, io, [FileScanTask(entry.data_file, _deletes_of(entry, applying)) for entry in group])
        before += digest([rows]) if by == RowProof.ROWS else Digest(rows.num_rows)
        size = sum(entry.data_file.file_size_in_bytes for entry in group)
        added += write(base.metadata, io, sort(rows, base.metadata.sort_order(), base.metadata.schema()), size, task)
    if by == RowProof.ROWS:
        # Read the rows from storage, not from what the writer was given.
        after = digest(read(base.metadata, io, [FileScanTask(file)]) for file in added)
    else:
        after = Digest(sum(file.record_count for file in added))
    return RewriteUnit(task.name, base, tuple(task.entries), task.deletes, tuple(added), Proof(before, after))


def read(metadata: TableMetadata, io: FileIO, tasks: Iterable[FileScanTask]) -> pa.Table:
    """Reads the live rows of files, under the table's current schema.

    PyIceberg applies all position deletes of a scan to each of its files, even deletes older than the file: a file that
    was removed and added again would lose rows. So each file with deletes is scanned separately.
    """
    scan = ArrowScan(metadata, io, metadata.schema(), AlwaysTrue())
    tables: list[pa.Table] = []
    for deleted, group in groupby(tasks, key=lambda task: bool(task.delete_files)):
        together = list(group)
        tables += [scan.to_table([task]) for task in together] if deleted else [scan.to_table(together)]
    return pa.concat_tables(tables, promote_options="permissive")  # strings of a file without rows are large_string


def write(metadata: TableMetadata, io: FileIO, rows: pa.Table, size: int, task: RewriteTask) -> list[DataFile]:
    """Writes the rows, in order, to files near the target size, with the table's Parquet properties.

    size: of the source files, in bytes.
    """
    if not rows.num_rows:
        return []
    # As many files as the bytes of the sources fill.
    each = math.ceil(rows.num_rows / max(1, round(size / target_size(metadata))))
    slices = [rows.slice(start, each) for start in range(0, rows.num_rows, each)]
    files = list(write_file(io, _with_row_group_limit(metadata, rows), _write_tasks(metadata, slices, task)))
    for file in files:  # what PyIceberg's writer leaves out
        file[SORT_ORDER_ID] = metadata.default_sort_order_id
        file.spec_id = metadata.default_spec_id
    return files


@dataclass(frozen=True)
class _KnownPartition(PartitionKey):
    """PyIceberg computes a partition from its columns, but can't if two partition fields share a column."""

    values: Record

    @cached_property
    def partition(self) -> Record:
        return self.values


def _write_tasks(metadata: TableMetadata, slices: Sequence[pa.Table], task: RewriteTask) -> Iterator[WriteTask]:
    schema, spec, name = metadata.schema(), metadata.spec(), uuid4()
    key = None if spec.is_unpartitioned() else _KnownPartition([], spec, schema, task.partition[1])
    for n, rows in enumerate(slices):
        yield WriteTask(name, n, schema, rows.to_batches(), partition_key=key)


def _with_row_group_limit(metadata: TableMetadata, rows: pa.Table) -> TableMetadata:
    """Converts the row group size from bytes to rows, because PyIceberg's writer ignores the bytes."""
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


class Outcome(StrEnum):
    """How a rewrite ended."""

    LANDED = "landed"
    DROPPED = "dropped"
    """Somebody changed the files to replace; nothing is wrong."""
    UNPROVED = "unproved"
    """The rewrite changed rows, so it did not land; find the cause."""
    FAILED = "failed"
    """Other partitions may still succeed."""


@dataclass(frozen=True)
class PartitionReport:
    """The result for one partition, or for several that land together."""

    partition: str
    """The path; empty for a whole table."""
    outcome: Outcome
    files_before: int
    bytes_before: int
    files_after: int = 0
    bytes_after: int = 0
    proof: Proof | None = None
    reason: str = ""
    """Why it did not land."""


@dataclass(frozen=True)
class CompactionReport:
    """The result of a compaction."""

    partitions: tuple[PartitionReport, ...]
    """Empty if none gains, if Spark is needed, or if an earlier call with the token landed."""
    snapshot_id: int | None
    """Of this call's commit, or the earlier one's."""
    usages: tuple[Usage, ...] = ()
    needs_spark: tuple[str, ...] = ()
    """Why all was left to Spark."""

    @property
    def landed(self) -> list[PartitionReport]:
        """Rewrites that landed."""
        return [p for p in self.partitions if p.outcome is Outcome.LANDED]

    @property
    def faults(self) -> list[PartitionReport]:
        """Rewrites that changed rows or failed."""
        return [p for p in self.partitions if p.outcome in (Outcome.UNPROVED, Outcome.FAILED)]


def compact(
    catalog: Catalog,
    identifier: str,
    token: RunToken,
    partitions: Collection[Partition] | None = None,
    *,
    summary: Mapping[str, str] | None = None,
    min_input_files: int = MIN_INPUT_FILES,
    proof: RowProof = RowProof.ROWS,
) -> CompactionReport:
    """Rewrites small files, and files with deleted rows, of these partitions (None for all). Rows stay the same.

    If one partition needs Spark, rewrites nothing: the worker that is started for it can do the others too. Deletes no
    file; the collector removes what did not land. A second call with the token changes nothing. Raises as land().
    """
    table = catalog.load_table(identifier)
    earlier = find_published(identifier, table.metadata, token.text)
    snapshot = table.metadata.current_snapshot()
    if earlier is not None or snapshot is None:
        return CompactionReport((), earlier)
    base, entries = ReadSnapshot(table.metadata, snapshot), Entries()
    tasks = plan_rewrites(base, table.io, entries, partitions, min_input_files=min_input_files)
    of_table = reasons_of_table(base.metadata)
    if reasons := {reason for task in tasks for reason in (*of_table, *task.needs_spark)}:
        return CompactionReport((), None, needs_spark=tuple(sorted(reasons)))
    rewritten = [_rewritten(base, table, task, proof) for task in tasks]
    units = [unit for unit in rewritten if isinstance(unit, RewriteUnit)]
    landing = land(catalog, identifier, units, token, summary or {}, entries=entries)
    # land() reports the units in their order; partitions without a unit have their report already.
    fates = iter(landing.units)
    reports = [r if isinstance(r, PartitionReport) else report_of_unit(*next(fates)) for r in rewritten]
    published = landing.published
    return CompactionReport(tuple(reports), published.snapshot_id if published else None)


def _rewritten(base: ReadSnapshot, table: Table, task: RewriteTask, proof: RowProof) -> RewriteUnit | PartitionReport:
    try:
        return rewrite(base, table.io, task, proof)
    except FileNotFoundError as error:
        return _not_rewritten(task, Outcome.DROPPED, f"a file was removed while it was read: {error}")
    except Exception as error:  # the other partitions must not lose their rewrites
        return _not_rewritten(task, Outcome.FAILED, f"{type(error).__name__}: {error}")


def _not_rewritten(task: RewriteTask, outcome: Outcome, reason: str) -> PartitionReport:
    files = [entry.data_file for entry in task.entries]
    return PartitionReport(task.name, outcome, len(files), _bytes(files), reason=reason)


def report_of_unit(unit: RewriteUnit, dropped: Dropped | None) -> PartitionReport:
    """Reports a unit. dropped: why it did not land."""
    old = [entry.data_file for entry in unit.removed]
    if dropped is None:
        outcome = Outcome.LANDED
    elif dropped.rule is LandingRule.UNPROVED:
        outcome = Outcome.UNPROVED
    else:
        outcome = Outcome.DROPPED
    return PartitionReport(
        unit.name,
        outcome,
        files_before=len(old),
        bytes_before=_bytes(old),
        files_after=len(unit.added),
        bytes_after=_bytes(unit.added),
        proof=unit.proof,
        reason=dropped.reason if dropped else "",
    )


def _bytes(files: Collection[DataFile]) -> int:
    return sum(file.file_size_in_bytes for file in files)
