"""Stages one chunk: registers a private fork, runs the step, appends or merges its rows, and writes the receipt.

A *fork* is a private copy of the table's metadata: nobody else sees commits to it.
"""

from __future__ import annotations

import time
from asyncio import CancelledError
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from pyiceberg.io import load_file_io
from pyiceberg.table import StaticTable
from pyiceberg.table.metadata import TableMetadata
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse_assets.files.delivered import sent_catalog
from lakehouse_assets.files.drop_zone import wrong_files_told
from lakehouse_assets.step.window import Window, take_opened
from lakehouse_assets.wire.code import step_of
from lakehouse_assets.wire.receipts import FailedCheck, Receipt
from lakehouse_assets.wire.work import Assignment, Merged
from lakehouse_assets.worker.changes import extra_columns
from lakehouse_assets.worker.failure import check_code, check_imported, no_input, root_message
from lakehouse_assets.worker.hook import ChunkContext, open_hooks
from lakehouse_assets.worker.merge import Fork, merge
from lakehouse_assets.worker.row_checks import failed_checks, find_duplicates, refuse_unreadable
from lakehouse_assets.worker.session import TableCredentials, committed_metadata, register

# These are no Exceptions: one that a step raises would end the worker without a report. KeyboardInterrupt is left out,
# as a person raises it.
EXITS = (SystemExit, CancelledError)


Offers = Mapping[str, Callable[..., DataFrame]]
"""What extensions offer to a step, by name (StageHook.offers())."""


@dataclass(frozen=True)
class StagingWindow(Window):
    """The window of a step that a worker runs. What changes() and source_rows() do, extensions offer (StageHook)."""

    table: str = field(kw_only=True, repr=False, compare=False)
    """The table's identifier, for messages."""
    offers: Offers = field(kw_only=True, repr=False, compare=False)

    def changes(self, table: str) -> DataFrame:
        """Returns an input's changes since the version up to which the table has read it."""
        if (read := self.offers.get("changes")) is None:
            raise LookupError(f"{no_input(table.removeprefix('lake.'))}. It has no inputs")
        return read(table)

    def source_rows(self) -> DataFrame:
        """Returns the source rows that this run moves."""
        if (read := self.offers.get("source_rows")) is None:
            raise LookupError(f"{self.table} has no source: declare source=KafkaTopic(…) or PostgresTable(…)")
        return read()


class StageError(RuntimeError):
    """The step did not return what it should."""


def stage(spark: SparkSession, assignment: Assignment, credentials: TableCredentials, started: float) -> Receipt:
    """Stages the assignment's chunk and writes its receipt.

    started: time.monotonic() at the worker's start. Raises what the step raises, StageError for rows that don't fit the
    table, CheckError, ChangesError, ForkError, OtherCode, InputMoved and CredentialsExpired.
    """
    with credentials.expiry_explained(), wrong_files_told(), sent_catalog(assignment.catalog):
        io_properties, files = credentials.catalog, dict(credentials.properties)
        fork = register(spark, assignment.fork_base, assignment.token, assignment.chunk)
        # A merge needs the fork as it began.
        begun = StaticTable.from_metadata(assignment.fork_base, files).metadata if assignment.merge else None
        deletes = assignment.merge.delete_when if assignment.merge else ""
        refuse_unreadable(spark.table(fork), assignment.checks, deletes)  # before the step, which may take long
        take_opened()  # forgets the files that an earlier step in this process has opened
        hooks = open_hooks(ChunkContext(spark, assignment, credentials, spark.table(fork).schema))
        with ExitStack() as reading:
            for hook in hooks.values():
                reading.enter_context(hook.reading())
            offers = {name: read for hook in hooks.values() for name, read in hook.offers().items()}
            rows = _checked(_rows(spark, assignment, offers), spark.table(fork).columns, assignment)
            for hook in hooks.values():
                hook.check(rows)
            merged, failed = _write(spark, rows, fork, begun, assignment)
        base, table = assignment.fork_base, assignment.table
        # Copy-on-write copies the files of all matched rows even if no row differs. Then the receipt names the fork
        # base, as if nothing had been written: the copies are left behind.
        idle = merged is not None and merged.is_idle
        metadata_location = base if idle else committed_metadata(spark, fork, base, table)
        # The worker's first keys may have expired during the step. Spark has renewed its own, or has failed; PyIceberg
        # needs new ones here.
        staged = StaticTable.from_metadata(metadata_location, dict(credentials.renewed()))
        receipt = Receipt.of(
            assignment,
            metadata_location=metadata_location,
            # The fork base's own snapshot would count rows that another run has added.
            rows=0 if metadata_location == assignment.fork_base else _staged_rows(staged),
            duplicates=find_duplicates(spark, fork, staged, assignment.unique),
            stage_seconds=round(time.monotonic() - started, 3),
            merged=merged,
            failed_checks=failed,
            files=take_opened(),
            extensions={name: done for name, hook in hooks.items() if (done := hook.done())},
        )
        check_code(assignment)  # again: the step, and Spark's Python workers, may have imported newer files
        receipt.write(load_file_io(dict(io_properties), assignment.receipt), assignment.receipt)
        return receipt


def _rows(spark: SparkSession, assignment: Assignment, offers: Offers) -> object:
    """Returns what the step returns. Raises StageError for an exit in the step: it would end this process silently."""
    try:
        step = step_of(assignment.step).load()
        check_imported(assignment)
        return step(spark, StagingWindow(**vars(assignment.window), table=assignment.table, offers=offers))
    except EXITS as error:
        problem = (
            f"the step {assignment.step} raised {error!r}, expected a DataFrame; to fail the step, raise an Exception"
        )
        raise StageError(problem).with_traceback(error.__traceback__) from None


def _checked(rows: object, expected: list[str], assignment: Assignment) -> DataFrame:
    """Returns the rows with the table's spelling of column names. Raises StageError for missing and unknown columns.

    Spark would fill missing columns with nulls. expected: the table's columns.
    """
    found = rows.columns if isinstance(rows, DataFrame) else []
    returned = ", ".join(found) or type(rows).__name__
    extra = extra_columns(assignment.merge, found) if assignment.merge else set()
    declared = _without(expected, [*assignment.undeclared])
    missing, unknown = _without(declared, found), _without(found, [*declared, *extra, *assignment.left_out])
    beside = ". A merge also accepts the columns that delete_when and order_by name" if assignment.merge else ""
    if not isinstance(rows, DataFrame) or missing or unknown:
        raise StageError(
            f"the step {assignment.step} returned {returned}, expected the columns of {assignment.table}: "
            f"missing {', '.join(missing) or 'none'}, unknown {', '.join(unknown) or 'none'}{beside}"
        )
    own = {name.lower(): name for name in expected}
    return rows.withColumnsRenamed({name: own.get(name.lower(), name) for name in found})


def _without(names: list[str], others: list[str]) -> list[str]:
    known = {other.lower() for other in others}  # names in Spark ignore case
    return [name for name in names if name.lower() not in known]


def _write(
    spark: SparkSession, rows: DataFrame, fork: str, base: TableMetadata | None, assignment: Assignment
) -> tuple[Merged | None, tuple[FailedCheck, ...]]:
    """Appends the rows to the fork, or merges them. Returns what a merge did, and the failed checks.

    base: the fork's metadata, for a merge. Raises StageError for types that don't fit, CheckError and ChangesError.
    """
    try:
        if assignment.merge and base:
            private = Fork(fork, base, assignment.token, assignment.table)
            return merge(spark, private, rows, assignment.merge, assignment.checks, assignment.undeclared)
        rows = rows.drop(*assignment.left_out)
        if assignment.undeclared:
            schema = spark.table(fork).schema
            rows = rows.withColumns({name: F.lit(None).cast(schema[name].dataType) for name in assignment.undeclared})
        writer = rows.writeTo(fork).option("snapshot-property.lakehouse.token", assignment.token)
        writer.option("snapshot-property.lakehouse.chunk", str(assignment.chunk)).append()
        return None, failed_checks(spark.table(fork), assignment.checks)
    except AnalysisException as error:
        # Spark's message names the fork; a person knows only the table.
        quoted = ".".join(f"`{part}`" for part in fork.split("."))
        raise StageError(root_message(str(error)).replace(quoted, assignment.table)) from None


def _staged_rows(staged: StaticTable) -> int:
    snapshot = staged.current_snapshot()
    # A Summary returns None for a missing key and ignores get()'s default.
    return int(snapshot.summary["added-records"] or 0) if snapshot and snapshot.summary else 0
