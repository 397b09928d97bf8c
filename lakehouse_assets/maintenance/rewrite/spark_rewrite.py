"""Rewrites partitions by Spark workers in private forks; proves them, and lands all at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

from pyiceberg.table import Table as IcebergTable

from lakehouse_assets.commit.head_fork import rewritten_units, write_head_fork
from lakehouse_assets.commit.landing import ReadSnapshot, RewriteUnit, land
from lakehouse_assets.commit.manifests import Entries, Partition
from lakehouse_assets.commit.tokens import RunToken, find_published
from lakehouse_assets.declare.options import RowProof
from lakehouse_assets.declare.table import Table
from lakehouse_assets.drive.chunks import Chunk, Journal, Results
from lakehouse_assets.drive.liveness import Context
from lakehouse_assets.drive.loop import driving
from lakehouse_assets.environment.catalog import with_retries, worker_properties
from lakehouse_assets.environment.env_reader import public
from lakehouse_assets.environment.launchers.base import Attempt
from lakehouse_assets.errors import LakehouseError
from lakehouse_assets.maintenance.rewrite.compact import CompactionReport, Outcome, PartitionReport, report_of_unit
from lakehouse_assets.maintenance.rewrite.plan import (
    MIN_INPUT_FILES,
    WORKER_BYTES,
    PlannedChunk,
    RewritePlan,
    cut,
    listed,
    plan_rewrites,
    planned,
)
from lakehouse_assets.run.attempts import attempt_of
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.wire.receipts import read_json
from lakehouse_assets.wire.work import RewriteAssignment


def first_attempts(
    table: Table, lakehouse: Lakehouse, plan: RewritePlan, token: str, journal: Journal, run_id: str
) -> dict[int, Attempt]:
    """Returns the first attempt at each chunk, by ordinal."""
    settings = lakehouse.settings
    catalog = worker_properties(settings)
    spark_conf = public({**table.spark_conf, **settings.spark_conf})

    def attempt(n: int, chunk: PlannedChunk) -> Attempt:
        assignment = RewriteAssignment(
            table=table.identifier,
            token=token,
            chunk=n,
            fork_base=chunk.fork_base,
            receipt=journal.receipt_location(n),
            sorts=plan.sorts,
            zorder=plan.zorder,
            counts_only=table.maintenance.proof == RowProof.COUNTS,
            compute=table.compute or settings.compute,
            catalog=catalog,
            spark_conf=spark_conf,
        )
        return attempt_of(table, assignment, run_id, [partition.name for partition in chunk.partitions])

    return {n: attempt(n, chunk) for n, chunk in enumerate(plan.chunks)}


@dataclass
class SparkRewrite:
    """One rewrite of one table by workers."""

    context: Context
    lakehouse: Lakehouse
    table: Table
    token: RunToken
    """A second rewrite with it changes nothing, or resumes the first."""
    partitions: Collection[Partition] | None = None
    everything: bool = False
    """Whether to rewrite files of the right size without deletes, too."""
    zorder: tuple[str, ...] = ()
    """Columns to order by instead of the table's sort order."""
    worker_bytes: int = WORKER_BYTES
    min_input_files: int = MIN_INPUT_FILES
    entries: Entries = field(default_factory=Entries)

    def run(self, properties: Mapping[str, str]) -> CompactionReport:
        """Rewrites, proves and lands. Rows stay the same; no file is deleted; no writer waits.

        Partitions that a worker could not rewrite are reported as failed; the others land. properties: of the
        snapshot's summary. Raises as land(), and LakehouseError if the table can't be forked.
        """
        metadata = self._target.metadata
        earlier = find_published(self.table.identifier, metadata, self.token.text)
        if earlier is not None or metadata.current_snapshot_id is None:
            return CompactionReport((), earlier)
        results = self._work()
        units, reports = self._units(results)
        catalog, identifier = self.lakehouse.catalog(), self.table.identifier
        landing = land(catalog, identifier, units, self.token, properties, entries=self.entries)
        reports += [report_of_unit(*fate) for fate in landing.units]
        reports.sort(key=lambda report: report.partition)
        published = landing.published
        snapshot_id = published.snapshot_id if published else None
        return CompactionReport(tuple(reports), snapshot_id, tuple(results.usages))

    @cached_property
    def _target(self) -> IcebergTable:
        return with_retries(lambda: self.lakehouse.catalog().load_table(self.table.identifier))

    @cached_property
    def _journal(self) -> Journal:
        # The token begins with the run's id. A folder of this name tells the collector whose receipts they are.
        run, _, part = self.token.text.partition(".")
        folder = f"{self.lakehouse.settings.staging}/{self.table.identifier}/{run}/{part}"
        return Journal(self.lakehouse.staging_io(), folder)

    @cached_property
    def _plan(self) -> RewritePlan:
        """The plan, as an earlier process of this run wrote it, if one did."""
        io, location = self._journal.io, f"{self._journal.folder}/plan.json"
        if found := read_json(io, location, RewritePlan.from_json):
            return found
        plan = RewritePlan(not self._target.sort_order().is_unsorted, self.zorder, tuple(self._forks()))
        plan.write(io, location)
        return plan

    def _forks(self) -> Iterable[PlannedChunk]:
        table, snapshot = self._target, self._target.current_snapshot()
        assert snapshot, "run() has looked"
        base = ReadSnapshot(table.metadata, snapshot)
        everything, least = self.everything, self.min_input_files
        tasks = plan_rewrites(
            base, table.io, self.entries, self.partitions, everything=everything, min_input_files=least
        )
        for chunk in cut(tasks, table.metadata, self.worker_bytes):
            # The run's id, in the fork base's name, tells the collector whose the fork is.
            fork = write_head_fork(table, base, self.token.text.partition(".")[0], listed(chunk))
            yield PlannedChunk(fork.location, tuple(map(planned, chunk)))

    def _work(self) -> Results:
        """Runs a worker for each chunk without a receipt. A failed chunk doesn't stop the others."""
        chunks = [Chunk(n, tuple(part.name for part in c.partitions)) for n, c in enumerate(self._plan.chunks)]
        token, run_id = self.token.text, self.context.run.run_id
        first = first_attempts(self.table, self.lakehouse, self._plan, token, self._journal, run_id)
        launcher = self.lakehouse.launcher(self.table.compute)
        with driving(self.context, launcher, self._journal, lambda _: None) as drive:
            drive.run(drive.resume(chunks, first), first, keep_on=True)
            return drive.results  # leaving waits for the last workers, whose usage is then known

    def _units(self, results: Results) -> tuple[list[RewriteUnit], list[PartitionReport]]:
        # Load again: credentials that the catalog vended at the start may have expired.
        io = with_retries(lambda: self.lakehouse.catalog().load_table(self.table.identifier)).io
        units: list[RewriteUnit] = []
        reports = list(chain.from_iterable(self._failed(f.chunk.ordinal, f.message) for f in results.failures))
        for n, receipt in sorted(results.receipts.items()):
            try:
                units += rewritten_units(io, receipt)
            except (LakehouseError, FileNotFoundError) as error:
                reports += self._failed(n, str(error))
        return units, reports

    def _failed(self, ordinal: int, reason: str) -> Iterable[PartitionReport]:
        for part in self._plan.chunks[ordinal].partitions:
            yield PartitionReport(part.name, Outcome.FAILED, part.files, part.size, reason=reason)
