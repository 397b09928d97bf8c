"""What a step reads from the table's positions on: changes of inputs, and rows of a source."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.manifest import ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BooleanType, StructField, StructType

from lakehouse_assets.environment.catalog_in_spark import LAKE
from lakehouse_assets.errors import BadValue, LakehouseError, SourceLost, SourceUnreachable
from lakehouse_assets.sources.row_source import DELETED, Offsets, RowSource, Split, client_environment
from lakehouse_assets.step.window import CHANGE_TYPE, MOVE, Window
from lakehouse_assets.wire.work import EMPTY, Assignment, Pin, Position, SourceRange
from lakehouse_assets.worker.failure import CannotReadOn, ChangesUnknown, no_input

if TYPE_CHECKING:
    import pyarrow as pa

RAISED: Mapping[str, type[LakehouseError]] = {kind.__name__: kind for kind in (SourceLost, SourceUnreachable, BadValue)}
OF_TASK = re.compile(rf"(?:\w+\.)*({'|'.join(RAISED)}): (.+)")
"""Spark keeps only the text of an error that a task raised."""


@dataclass(frozen=True)
class SplitReader:
    """Reads splits in Spark's Python workers."""

    source: RowSource
    splits: Sequence[Split]
    schema: pa.Schema
    environment: Mapping[str, str]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Yields the rows of the splits whose numbers are in the batches."""
        os.environ.update(self.environment)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self.source.read(self.splits[number], self.schema)


def read_range(
    spark: SparkSession, chosen: SourceRange, position: Offsets | None, columns: StructType
) -> tuple[DataFrame, Offsets]:
    """Returns the rows of a range that are not moved yet, and the position behind them.

    Rows are read once: an upsert meanwhile takes a row out of the range, so a second read would miss it. Raises
    SourceLost, SourceUnreachable and BadValue.
    """
    source, begin = chosen.source, chosen.left(position)
    begin = begin.widened(len(chosen.to.by_partition))
    source.prove(begin)  # before what takes long
    spans = begin.spans(chosen.to)
    more = [StructField(DELETED, BooleanType())] if source.marks_deleted else []
    schema = StructType([*(StructField(field.name, field.dataType) for field in columns), *more])
    splits = [Split(number, *span) for number, span in spans.items()]
    if not splits:
        return spark.createDataFrame([], schema), begin
    read = SplitReader(source, splits, to_arrow_schema(schema), client_environment())
    try:
        numbers = spark.range(0, len(splits), 1, len(splits))
        rows = numbers.mapInArrow(read, schema).localCheckpoint()
    except PythonException as error:
        if found := OF_TASK.search(str(error)):
            raise RAISED[found[1]](found[2]) from None
        raise
    source.prove(begin)
    if problem := source.column_problem(columns.names, may_lack=True):  # a column may be new since the plan
        raise SourceLost(problem)
    ends = (max(pair) for pair in zip(begin.by_partition, chosen.to.by_partition, strict=True))
    return rows, source.marked(Offsets(chosen.to.identity, tuple(ends)))


OF_ICEBERG = ("_change_ordinal", "_commit_snapshot_id")
WAYS_OUT = (
    "To read all of it, materialize with the run tag lakehouse/read_all: true (an Append without dedup_on then adds "
    "all rows once more: delete its rows before)"
)


@dataclass(frozen=True)
class InputChanges:
    """The changes of an assignment's inputs, and the positions that its step has read up to."""

    spark: SparkSession
    assignment: Assignment
    io_properties: Mapping[str, str]
    columns: StructType = field(default_factory=StructType)
    read_to: dict[str, str] = field(default_factory=dict)
    """Input → Position, as text."""

    def read(self, name: str) -> DataFrame:
        """Returns Window.changes(). Raises ChangesUnknown, CannotReadOn, and LookupError if it is no input."""
        work, name = self.assignment, name.removeprefix(f"{LAKE}.")
        pin = next((pin for pin in work.inputs if pin.name == name), None)
        if pin is None:
            known = ", ".join(pin.name for pin in work.inputs) or "none"
            raise LookupError(f"{no_input(name)}. Its inputs are {known}")
        if work.read_on is None:
            raise CannotReadOn(
                f"the step reads changes of {name}, which {work.table} can't keep track of: declare it Append or "
                "Merge, without Dagster partitions"
            )
        if name in work.read_on.unknown:
            raise self._unknown(name, work.read_on.unknown[name])
        if CHANGE_TYPE in self.spark.table(f"{LAKE}.{name}").columns:
            raise CannotReadOn(
                f"{name} has a column {CHANGE_TYPE}, by which its changes would be told: give it another name"
            )
        text = work.read_on.positions.get(name)
        since = Position.parse(text) if text else None
        if since is not None and since.uuid != pin.uuid:
            raise self._unknown(name, f"the table was created again since {work.table} has read it")
        self.read_to[name] = str(Position(pin.snapshot_id or EMPTY, pin.uuid))
        if since is None or since.snapshot_id == EMPTY or pin.snapshot_id is None:
            return self.spark.table(f"{LAKE}.{name}").withColumn(CHANGE_TYPE, F.lit("INSERT"))
        return self._between(pin, since.snapshot_id, pin.snapshot_id)

    def read_source(self) -> DataFrame:
        """Returns Window.source_rows(). Raises as read_range(), LookupError and ChangesUnknown."""
        work = self.assignment
        if work.source is None or work.read_on is None:
            raise LookupError(f"{work.table} has no source: declare source=KafkaTopic(…) or PostgresTable(…)")
        name = work.source.source.name
        if name in work.read_on.unknown:
            raise self._unknown(name, work.read_on.unknown[name])
        position = work.read_on.offsets(name)
        # The table's own step adds columns that the source lacks; without such a step, reading them fails.
        lacking = work.source.source.lacking(self.columns.names) if work.step != MOVE else ()
        columns = StructType([one for one in self.columns if one.name not in {*work.undeclared, *lacking}])
        rows, to = read_range(self.spark, work.source, position, columns)
        if to != position:
            self.read_to[name] = str(to)
        return rows

    def _between(self, pin: Pin, since: int, until: int) -> DataFrame:
        io = load_file_io(dict(self.io_properties), pin.metadata)
        metadata = FromInputFile.table_metadata(io.new_input(pin.metadata))
        snapshots = snapshots_between(metadata, since, until)
        if snapshots is None:
            raise self._unknown(
                pin.name,
                f"snapshot {since}, which was read, is not in the history of snapshot {until}, which this run has "
                "pinned: it or one after it has expired, main was rolled back, or another run has read on since (then "
                "materialize anew)",
            )
        if renumbered := changed_columns(metadata, since, pin.schema_id):
            raise self._unknown(pin.name, f"its columns {', '.join(renumbered)} were dropped and added again since")
        operations = {snapshot.summary.operation if snapshot.summary else None for snapshot in snapshots}
        if operations <= {Operation.APPEND, Operation.REPLACE}:
            return self._appended(pin, since, until, is_empty=Operation.APPEND not in operations)
        if with_deletes := [one.snapshot_id for one in snapshots if _has_deletes(one, io)]:
            raise self._unknown(
                pin.name,
                f"it has row-level deletes (snapshot {with_deletes[-1]}), whose changes Iceberg can't tell; a table "
                "whose changes others read is best declared copy-on-write",
            )
        return self._netted(pin, since, until)

    def _appended(self, pin: Pin, since: int, until: int, *, is_empty: bool) -> DataFrame:
        """Returns the rows of added files. Iceberg refuses to read if there are none."""
        if is_empty:
            rows = self.spark.table(f"{LAKE}.{pin.name}").limit(0)
        else:
            reader = self.spark.read.option("start-snapshot-id", since).option("end-snapshot-id", until)
            rows = reader.table(f"{LAKE}.{pin.table}")
        return rows.withColumn(CHANGE_TYPE, F.lit("INSERT"))

    def _netted(self, pin: Pin, since: int, until: int) -> DataFrame:
        """Cancels out rows that were removed and added again.

        Iceberg's own procedure (1.12) takes two equal binary values for different ones.
        """
        reader = self.spark.read.option("start-snapshot-id", since).option("end-snapshot-id", until)
        changes = reader.table(f"{LAKE}.{pin.table}.changes").drop(*OF_ICEBERG)
        columns = [F.col(f"`{name}`") for name in changes.columns if name != CHANGE_TYPE]
        added = F.when(F.col(CHANGE_TYPE) == "INSERT", 1).otherwise(-1)
        net = changes.groupBy(*columns).agg(F.sum(added).alias(CHANGE_TYPE)).where(F.col(CHANGE_TYPE) != 0)
        kind = F.when(F.col(CHANGE_TYPE) > 0, "INSERT").otherwise("DELETE")
        times = F.abs(F.col(CHANGE_TYPE)).cast("int")
        return net.select(*columns, F.explode(F.array_repeat(kind, times)).alias(CHANGE_TYPE))

    def _unknown(self, name: str, why: str) -> ChangesUnknown:
        return ChangesUnknown(
            f"what changed in {name} since {self.assignment.table} has read it can't be told: {why}. {WAYS_OUT}"
        )


@dataclass(frozen=True)
class ReadingWindow(Window):
    """The window of a step that a worker runs."""

    inputs: InputChanges = field(kw_only=True, repr=False, compare=False)

    def changes(self, table: str) -> DataFrame:
        """Returns the changes of an input since the table's own last commit."""
        return self.inputs.read(table)

    def source_rows(self) -> DataFrame:
        """Returns the source rows that this run moves."""
        return self.inputs.read_source()


def refuse_unhandled_deletes(rows: DataFrame, assignment: Assignment, changes: InputChanges) -> None:
    """Raises CannotReadOn if a merge would take deleted rows for inserted ones."""
    merge = assignment.merge
    if changes.read_to and merge and CHANGE_TYPE in rows.columns and CHANGE_TYPE not in merge.delete_when:
        raise CannotReadOn(
            f"{assignment.table} merges the changes of {', '.join(changes.read_to)}, and its delete_when does not say "
            f"which of them are rows that went: declare Merge(…, delete_when=\"{CHANGE_TYPE} = 'DELETE'\", "
            f'order_by="{CHANGE_TYPE}"), or drop the column in the step'
        )


def snapshots_between(metadata: TableMetadata, since: int, until: int) -> list[Snapshot] | None:
    """Returns the snapshots after ``since`` up to ``until``, newest first; None if ``since`` is not in its history.

    ``since`` itself may have expired: Iceberg's Java reads on from its child.
    """
    found: list[Snapshot] = []
    for snapshot in ancestors_of(metadata.snapshot_by_id(until), metadata):
        if snapshot.snapshot_id == since:
            return found
        found.append(snapshot)
    return found if found and found[-1].parent_snapshot_id == since else None


def changed_columns(metadata: TableMetadata, since: int, schema_id: int) -> list[str]:
    """Returns the columns whose field id has changed since: their older values read as null."""
    snapshot = metadata.snapshot_by_id(since)
    before = metadata.schema_by_id(snapshot.schema_id) if snapshot and snapshot.schema_id is not None else None
    now = metadata.schema_by_id(schema_id)
    if before is None or now is None:
        return []
    return [name for name in now.column_names if (was := _field_id(before, name)) and was != _field_id(now, name)]


def _field_id(schema: Schema, name: str) -> int | None:
    try:
        return schema.find_field(name).field_id
    except (ValueError, ValidationError):
        return None


def _has_deletes(snapshot: Snapshot, io: FileIO) -> bool:
    """Whether Iceberg's changelog refuses a snapshot, even one that has removed the last delete file.

    It skips rewrites (org.apache.iceberg.BaseIncrementalChangelogScan).
    """
    if snapshot.summary and snapshot.summary.operation is Operation.REPLACE:
        return False
    return any(manifest.content is ManifestContent.DELETES for manifest in snapshot.manifests(io))
