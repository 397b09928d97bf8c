"""A step's inputs in a worker: the versions pinned for the run, and their changes since the table's positions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.manifest import ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse_assets.environment.catalog import with_retries
from lakehouse_assets.environment.catalog_in_spark import LAKE
from lakehouse_assets.step.window import CHANGE_TYPE
from lakehouse_assets.wire.work import EMPTY, Pin, Position, ReadOn, decode
from lakehouse_assets.worker.failure import CannotReadOn, InputDropped, InputMoved, changes_unknown, no_input
from lakehouse_assets.worker.hook import ChunkContext, StageHook
from lakehouse_assets.worker.session import TableCredentials, register_inputs

OF_ICEBERG = ("_change_ordinal", "_commit_snapshot_id")
"""Columns of Iceberg's changelog that mean nothing once the changes of several snapshots are netted."""


class ReadInputs(StageHook):
    """A step's pinned inputs, and their changes."""

    def __init__(self, chunk: ChunkContext, told: Any) -> None:
        super().__init__(chunk, told)
        self.spark, self.table = chunk.spark, chunk.assignment.table
        self.pins = decode(tuple[Pin, ...], told["pins"])
        self.read_on = decode(ReadOn | None, told["read_on"])
        # How far the step has read each input's changes: done() reports it.
        self.read_to: dict[str, str] = {}

    def offers(self) -> Mapping[str, Callable[..., DataFrame]]:
        """Returns Window.changes()."""
        return {"changes": self.changes}

    def reading(self) -> AbstractContextManager[None]:
        """Provides the pinned tables. Raises InputMoved and InputDropped."""
        return reading(self.spark, self.pins, self.chunk.credentials)

    def check(self, rows: DataFrame) -> None:
        """Raises CannotReadOn if a merge would take deleted rows for inserted ones."""
        merge = self.chunk.assignment.merge
        if self.read_to and merge and CHANGE_TYPE in rows.columns and CHANGE_TYPE not in merge.delete_when:
            raise CannotReadOn(
                f"{self.table} merges the changes of {', '.join(self.read_to)}, but its delete_when does not say which "
                f"of them are deleted rows: declare Merge(…, delete_when=\"{CHANGE_TYPE} = 'DELETE'\", "
                f'order_by="{CHANGE_TYPE}"), or drop the column in the step'
            )

    def done(self) -> Mapping[str, Any]:
        """Returns the positions of inputs read as changes."""
        return {"read_to": self.read_to}

    def changes(self, name: str) -> DataFrame:
        """Returns an input's changes. Raises ChangesUnknown, CannotReadOn, and LookupError if it is no input."""
        name = name.removeprefix(f"{LAKE}.")
        pin = next((pin for pin in self.pins if pin.name == name), None)
        if pin is None:
            raise LookupError(f"{no_input(name)}. Its inputs are {', '.join(pin.name for pin in self.pins)}")
        if self.read_on is None:
            raise CannotReadOn(
                f"the step reads changes of {name}, which {self.table} can't keep track of: declare it Append or "
                "Merge, without Dagster partitions"
            )
        if name in self.read_on.unknown:
            raise changes_unknown(name, self.table, self.read_on.unknown[name])
        if CHANGE_TYPE in self.spark.table(f"{LAKE}.{name}").columns:
            raise CannotReadOn(
                f"{name} has a column {CHANGE_TYPE}, which is reserved for the kind of change: give it another name"
            )
        text = self.read_on.positions.get(name)
        since = Position.parse(text) if text else None
        if since is not None and since.uuid != pin.uuid:
            raise changes_unknown(name, self.table, f"the table was created again after {self.table} read it")
        self.read_to[name] = str(Position(pin.snapshot_id or EMPTY, pin.uuid))
        if since is None or since.snapshot_id == EMPTY or pin.snapshot_id is None:
            return self.spark.table(f"{LAKE}.{name}").withColumn(CHANGE_TYPE, F.lit("INSERT"))
        return self._between(pin, since.snapshot_id, pin.snapshot_id)

    def _between(self, pin: Pin, since: int, until: int) -> DataFrame:
        """Returns what changed after one snapshot, up to another. Raises ChangesUnknown."""
        io = load_file_io(dict(self.chunk.credentials.catalog), pin.metadata)
        metadata = FromInputFile.table_metadata(io.new_input(pin.metadata))
        snapshots = snapshots_between(metadata, since, until)
        if snapshots is None:
            raise changes_unknown(
                pin.name,
                self.table,
                f"snapshot {since}, which was read last, is not in the history of snapshot {until}, which this run has "
                "pinned: it or a later one has expired, main was rolled back, or another run has read further since "
                "(then materialize again in a new run)",
            )
        if renumbered := changed_columns(metadata, since, pin.schema_id):
            raise changes_unknown(
                pin.name, self.table, f"its columns {', '.join(renumbered)} were dropped and added again since"
            )
        # Appends and rewrites remove no rows; for all else, Iceberg's changelog is needed.
        operations = {snapshot.summary.operation if snapshot.summary else None for snapshot in snapshots}
        if operations <= {Operation.APPEND, Operation.REPLACE}:
            return self._appended(pin, since, until, is_empty=Operation.APPEND not in operations)
        if with_deletes := [one.snapshot_id for one in snapshots if _has_deletes(one, io)]:
            raise changes_unknown(
                pin.name,
                self.table,
                f"it has row-level deletes (snapshot {with_deletes[-1]}), and Iceberg can't report their changes; "
                "declare a table copy-on-write if others read its changes",
            )
        return self._netted(pin, since, until)

    def _appended(self, pin: Pin, since: int, until: int, *, is_empty: bool) -> DataFrame:
        """Returns the rows of appended files. is_empty: nothing was appended, which Iceberg refuses to read."""
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
        # In ``net``, the column holds how often a row came minus how often it went.
        added = F.when(F.col(CHANGE_TYPE) == "INSERT", 1).otherwise(-1)
        net = changes.groupBy(*columns).agg(F.sum(added).alias(CHANGE_TYPE)).where(F.col(CHANGE_TYPE) != 0)
        kind = F.when(F.col(CHANGE_TYPE) > 0, "INSERT").otherwise("DELETE")
        times = F.abs(F.col(CHANGE_TYPE)).cast("int")
        return net.select(*columns, F.explode(F.array_repeat(kind, times)).alias(CHANGE_TYPE))


@contextmanager
def reading(spark: SparkSession, pins: Sequence[Pin], credentials: TableCredentials) -> Iterator[None]:
    """Provides the pinned tables as ``lake``. Raises InputMoved and InputDropped.

    If the catalog vends credentials by table, only it can open the files. Then ``lake`` is the live catalog, so the
    pins are compared with it before and after.
    """
    if not credentials.vended:
        register_inputs(spark, {pin.table: pin.metadata for pin in pins})
        yield
        _refuse_dropped(spark, dict.fromkeys(pin.table for pin in pins))
        return
    _refuse_moved(pins, credentials.catalog)
    yield
    _refuse_moved(pins, credentials.catalog)


def _refuse_dropped(spark: SparkSession, tables: Iterable[str]) -> None:
    """Raises InputDropped: a step that drops a table of its catalog meant everybody's."""
    for table in tables:
        try:
            # Not SHOW TABLES, which needs LIMIT: Derby has none.
            spark.table(f"{LAKE}.{table}")
        except AnalysisException:
            raise InputDropped(
                f"the step dropped {table} (only the worker's own copy): a step may only read the lake"
            ) from None


def _refuse_moved(pins: Sequence[Pin], properties: Mapping[str, str]) -> None:
    """Raises InputMoved if the catalog no longer has an input at its pinned snapshot."""
    if not pins:
        return
    catalog = with_retries(lambda: load_catalog(LAKE, **properties))
    for pin in pins:
        metadata = with_retries(partial(catalog.load_table, pin.table)).metadata
        ref = metadata.refs.get(pin.ref)
        found = (metadata.table_uuid, ref and ref.snapshot_id)
        if found != (pin.uuid, pin.snapshot_id):
            raise InputMoved(f"{pin.table} now has snapshot {found[1]}, but the run has pinned {pin.snapshot_id}")


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
    """Returns the columns whose field id has changed: their older values read as null."""
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

    The changelog skips rewrites (org.apache.iceberg.BaseIncrementalChangelogScan).
    """
    if snapshot.summary and snapshot.summary.operation is Operation.REPLACE:
        return False
    return any(manifest.content is ManifestContent.DELETES for manifest in snapshot.manifests(io))
