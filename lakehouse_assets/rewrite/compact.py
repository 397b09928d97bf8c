"""Compacts partitions of a table without a JVM, end to end: plans, rewrites, proves and lands.

When and which partitions is the policy's question; Dagster is not known here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from lakehouse_assets.commit.landing import Base, Dropped, LandingRule, Proof, Unit, land
from lakehouse_assets.commit.manifests import Entries, Partition
from lakehouse_assets.commit.tokens import RunToken, find_published
from lakehouse_assets.declare.options import RowProof
from lakehouse_assets.environment.launchers.base import Usage
from lakehouse_assets.health.needs_spark import reasons_of_table
from lakehouse_assets.rewrite.rewrite import rewrite
from lakehouse_assets.rewrite.rewrite_plan import MIN_INPUT_FILES, RewriteTask, plan_rewrites


class Outcome(StrEnum):
    """The ways in which the rewrite of a partition can end."""

    LANDED = "landed"
    DROPPED = "dropped"
    """Somebody changed what would have been replaced. Nothing is wrong."""
    UNPROVED = "unproved"
    """The rewrite changed rows. It did not land; its cause must be found."""
    FAILED = "failed"
    """Its files could not be rewritten; other partitions may still succeed."""


@dataclass(frozen=True)
class PartitionReport:
    """The result for one partition, or for several that had to land together."""

    partition: str
    """Their path."""
    outcome: Outcome
    files_before: int
    """The number of data files that were rewritten, or were to be."""
    bytes_before: int
    """The bytes of these files."""
    files_after: int = 0
    """The number of data files that were written instead."""
    bytes_after: int = 0
    """The bytes of these files."""
    proof: Proof | None = None
    """The proof of the rewrite; None if nothing was rewritten."""
    reason: str = ""
    """The reason why it did not land; empty if it did."""


@dataclass(frozen=True)
class CompactionReport:
    """The result of a compaction."""

    partitions: tuple[PartitionReport, ...]
    """Those that would gain by a rewrite; empty if none would, if all of it was left to Spark, or if an earlier call
    with the same token landed."""
    snapshot_id: int | None
    """The snapshot of the commit, or that of the earlier call; None if there is none."""
    usages: tuple[Usage, ...] = ()
    """What the workers used, if there were any."""
    needs_spark: tuple[str, ...] = ()
    """The reasons why all of it was left to Spark, of whichever partitions; empty if it was not."""

    @property
    def landed(self) -> list[PartitionReport]:
        """The reports of the partitions whose rewrite landed."""
        return [p for p in self.partitions if p.outcome is Outcome.LANDED]

    @property
    def faults(self) -> list[PartitionReport]:
        """The partitions whose rewrite changed rows or failed; to be shown in red."""
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
    """Rewrites small files, and files with deleted rows, of these partitions. Rows stay the same.

    If one of them needs Spark, nothing is rewritten: a worker that is started for it does the others in passing.

    partitions: spec ids and partition tuples; None for all. token: a second call with it changes nothing.
    min_input_files: how many small files of a partition are worth a rewrite. proof: how each is proved.
    No file is deleted; what did not land stays in storage until it is collected. Raises as land() does.
    """
    table = catalog.load_table(identifier)
    earlier = find_published(identifier, table.metadata, token.text)
    snapshot = table.metadata.current_snapshot()
    if earlier is not None or snapshot is None:
        return CompactionReport((), earlier)
    base, entries = Base(table.metadata, snapshot), Entries()
    tasks = plan_rewrites(base, table.io, entries, partitions, min_input_files=min_input_files)
    of_table = reasons_of_table(base.metadata)
    if reasons := {reason for task in tasks for reason in (*of_table, *task.needs_spark)}:
        return CompactionReport((), None, needs_spark=tuple(sorted(reasons)))
    rewritten = [_rewritten(base, table, task, proof) for task in tasks]
    units = [unit for unit in rewritten if isinstance(unit, Unit)]
    landing = land(catalog, identifier, units, token, summary or {}, entries=entries)
    fates = iter(landing.units)
    reports = [r if isinstance(r, PartitionReport) else report_of_unit(*next(fates)) for r in rewritten]
    published = landing.published
    return CompactionReport(tuple(reports), published.snapshot_id if published else None)


def _rewritten(base: Base, table: Table, task: RewriteTask, proof: RowProof) -> Unit | PartitionReport:
    """Returns the unit to land, or a report of why there is none."""
    try:
        return rewrite(base, table.io, task, proof)
    except FileNotFoundError as error:
        return _not_rewritten(task, Outcome.DROPPED, f"a file was removed while it was read: {error}")
    except Exception as error:  # whatever it is: the other partitions must not lose their rewrites
        return _not_rewritten(task, Outcome.FAILED, f"{type(error).__name__}: {error}")


def _not_rewritten(task: RewriteTask, outcome: Outcome, reason: str) -> PartitionReport:
    files = [entry.data_file for entry in task.entries]
    return PartitionReport(task.name, outcome, len(files), _bytes(files), reason=reason)


def report_of_unit(unit: Unit, dropped: Dropped | None) -> PartitionReport:
    """Reports what became of a unit. dropped: why it did not land; None if it did."""
    old = [entry.data_file for entry in unit.removed]
    outcomes = {None: Outcome.LANDED, LandingRule.UNPROVED: Outcome.UNPROVED}
    return PartitionReport(
        unit.name,
        outcomes.get(dropped.rule if dropped else None, Outcome.DROPPED),
        files_before=len(old),
        bytes_before=_bytes(old),
        files_after=len(unit.added),
        bytes_after=_bytes(unit.added),
        proof=unit.proof,
        reason=dropped.reason if dropped else "",
    )


def _bytes(files: Collection[DataFile]) -> int:
    return sum(file.file_size_in_bytes for file in files)
