"""The levels that rewrite files: ``deletes``, ``undersized``, ``fragments`` and ``sort``."""

from __future__ import annotations

import hashlib
import heapq
import sys
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from lakehouse_assets.declare.options import Level, Maintenance
from lakehouse_assets.maintenance.health.findings import Check, Finding, Limit, error_text, size_text
from lakehouse_assets.maintenance.level import (
    MIB,
    OPEN_COST,
    Action,
    Candidate,
    Engine,
    Gain,
    MaintenanceContext,
    MaintenanceLevel,
    Result,
    fewer_files,
)

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

    from lakehouse_assets.commit.manifests import Partition
    from lakehouse_assets.commit.tokens import RunToken
    from lakehouse_assets.maintenance.health.health import TableHealth
    from lakehouse_assets.maintenance.health.partition_health import PartitionHealth
    from lakehouse_assets.maintenance.rewrite.compact import CompactionReport, PartitionReport

SMALL = 128 * MIB
"""The most bytes of a table that a run rewrites without a JVM."""
WORST = 10
"""The most partitions that a finding names."""


def rewrite_of(partition: PartitionHealth, target: int) -> tuple[Gain, int, int]:
    """Returns the gain of a partition's rewrite, the bytes to rewrite and the number of files to read.

    target: in bytes.

    Counts the small files, or all files if rows are deleted: the health doesn't say which files the deletes apply to.
    """
    if partition.has_deletes:
        files, size = partition.files, partition.size
    else:
        files, size = partition.small_files, partition.small_size
    fewer = fewer_files(files, size * (1 - partition.deleted_share), target)
    # A scan no longer opens these files, and no longer reads the deleted rows.
    opened = fewer + partition.delete_files
    deleted = round(partition.size * partition.deleted_share)
    gain = Gain(files=fewer, delete_files=partition.delete_files, scan_work=opened * OPEN_COST + deleted)
    return gain, size, files + partition.delete_files


class RewriteLevel(MaintenanceLevel):
    """A level that rewrites files of partitions."""

    def carry_out(self, means: MaintenanceContext, action: Action) -> Result:
        """Rewrites in this process, or by workers if only now a part turns out to need Spark."""
        token = means.token(action)
        if action.engine is Engine.SPARK:
            return self._by_spark(means, action, token)
        from lakehouse_assets.maintenance.rewrite.compact import compact

        report = compact(
            means.catalog,
            action.table,
            token,
            _keys(action),
            summary=means.properties,
            min_input_files=_min_input_files(means),
            proof=means.tables[action.table].maintenance.proof,
        )
        if report.needs_spark:
            means.context.log.info(f"{action.table}, {self.name}, by Spark: {'; '.join(report.needs_spark)}")
            # A separate token: the run may also have an action by Spark.
            return self._by_spark(means, action, replace(token, text=f"{token.text}.{Engine.SPARK}"))
        return self._landed(means, action, report)

    def _by_spark(self, means: MaintenanceContext, action: Action, token: RunToken) -> Result:
        from lakehouse_assets.maintenance.rewrite.spark_rewrite import SparkRewrite

        table, sorts = means.tables[action.table], self.name == Level.SORT
        rewrite = SparkRewrite(
            means.context,
            means.lakehouse,
            table,
            token,
            _keys(action),
            everything=sorts,
            zorder=tuple(table.maintenance.zorder) if sorts else (),
            min_input_files=_min_input_files(means),
        )
        return self._landed(means, action, rewrite.run(means.properties))

    def _landed(self, means: MaintenanceContext, action: Action, report: CompactionReport) -> Result:
        try:
            metadata = means.catalog.load_table(action.table).metadata
        except Exception as error:  # the rewrite has landed
            means.context.log.warning(f"{action.table}: what the rewrite gained can't be read: {error_text(error)}")
            metadata = None
        return rewritten(metadata, report)


class LimitedLevel(RewriteLevel):
    """A level that rewrites partitions for which a number reaches a limit."""

    limit: Limit
    forced: float = sys.float_info.min
    """The limit if a person forces a rewrite: any number above 0."""

    @abstractmethod
    def number(self, partition: PartitionHealth, target: int) -> float:
        """Returns the number to compare with the limit. target: in bytes."""

    @abstractmethod
    def amount(self, number: float, health: TableHealth) -> str:
        """Formats the number."""

    @abstractmethod
    def what(self, health: TableHealth) -> str:
        """Returns what the amount is of."""

    def gains(self, partition: PartitionHealth, target: int) -> bool:
        """Whether a rewrite is sure to gain. Counts small files: large ones are rewritten only if deletes apply."""
        return fewer_files(partition.small_files, partition.small_size, target) > 0

    def asks(self, partition: PartitionHealth, health: TableHealth, *, force: bool = False) -> bool:
        """Whether to rewrite the partition."""
        least = self.forced if force else self.limit.warn
        return self.number(partition, health.target) >= least and self.gains(partition, health.target)

    def findings(self, health: TableHealth) -> Iterator[Finding]:
        """Yields one finding for all partitions."""
        found = [partition for partition in health.partitions if self.asks(partition, health)]
        worst = heapq.nlargest(WORST, found, key=lambda partition: self.number(partition, health.target))
        if not worst:
            return
        number = self.number(worst[0], health.target)
        severity = self.limit.severity(number)
        assert severity, "it has reached the limit of a warning"
        message = f"{_counted(len(found), len(health.partitions))} {self.amount(number, health)} {self.what(health)}"
        yield Finding(Check.FILES, severity, self.name, message, tuple(worst))

    def measured(self, health: TableHealth) -> str:
        """Returns the worst number that a rewrite improves, and the limit."""
        numbers = (self.number(p, health.target) for p in health.partitions if self.gains(p, health.target))
        return f"{self.amount(max(numbers, default=0), health)} of {self.amount(self.limit.warn, health)}"

    def candidates(self, health: TableHealth, care: Maintenance, *, force: bool) -> Iterator[Candidate]:
        """Yields the partitions to rewrite."""
        for partition in health.partitions:
            if self.asks(partition, health, force=force):
                gain, size, files = rewrite_of(partition, health.target)
                reasons = [*health.needs_spark, *partition.needs_spark]
                if size > SMALL:
                    reasons.append(f"more than {size_text(SMALL)} are to be rewritten")
                why = "; ".join(reasons)
                yield Candidate(health.identifier, self, "", gain, size, files, partition, why)


class FragmentsLevel(LimitedLevel):
    """Rewrites partitions with many fragments; Amoro's minor optimizing begins at 12."""

    name = Level.FRAGMENTS.value
    limit = Limit(12, 120)

    def number(self, partition: PartitionHealth, target: int) -> float:
        """Returns the fragments."""
        return partition.fragments

    def amount(self, number: float, health: TableHealth) -> str:
        """Formats the number."""
        return f"{number:,.0f}"

    def what(self, health: TableHealth) -> str:
        """Explains fragments."""
        return f"fragments (files of at most {size_text(health.limits.fragment)}, target {size_text(health.target)})"


class UndersizedLevel(LimitedLevel):
    """Rewrites partitions whose undersized files would fill a file, as Amoro's major optimizing does."""

    name = Level.UNDERSIZED.value
    limit = Limit(1, 10)

    def number(self, partition: PartitionHealth, target: int) -> float:
        """Returns the undersized bytes as a multiple of the target."""
        return partition.undersized_size / target

    def amount(self, number: float, health: TableHealth) -> str:
        """Formats the bytes."""
        return size_text(number * health.target)

    def what(self, health: TableHealth) -> str:
        """Explains undersized files."""
        limit, target = size_text(health.limits.undersized), size_text(health.target)
        return f"in files of at most {limit}, enough for files of the target {target}"


class DeletesLevel(LimitedLevel):
    """Rewrites partitions with deleted rows: a warning from a tenth of the rows, as in Amoro; an error from half."""

    name = Level.DELETES.value
    limit = Limit(0.1, 0.5)
    forced = 0.0
    """Includes 0: the share in a partition whose delete files apply to nothing."""

    def number(self, partition: PartitionHealth, target: int) -> float:
        """Returns the share of possibly deleted rows."""
        return partition.deleted_share

    def amount(self, number: float, health: TableHealth) -> str:
        """Formats the share."""
        return f"{number * 100:.3g} %"

    def what(self, health: TableHealth) -> str:
        """Explains the rows."""
        return "of the rows deleted, at most, by delete files"

    def gains(self, partition: PartitionHealth, target: int) -> bool:
        """Whether there are deletes to apply."""
        return partition.has_deletes

    def measured(self, health: TableHealth) -> str:
        """Adds the number of delete files, as those that delete few rows stay."""
        deletes = health.total("delete_files")
        files = f" of the rows of a partition, {deletes:,} delete files" if deletes else ""
        return super().measured(health) + files

    def _landed(self, means: MaintenanceContext, action: Action, report: CompactionReport) -> Result:
        """Also removes delete files no longer needed, in a separate commit."""
        from lakehouse_assets.maintenance.rewrite.manifests import remove_dangling_deletes

        result, token = super()._landed(means, action, report), means.token(action)
        token = replace(token, text=f"{token.text}.dangling")
        try:
            _, dangling = remove_dangling_deletes(means.catalog, action.table, token, means.properties)
        except Exception as error:  # the rewrite has landed
            return replace(result, faults=(*result.faults, f"delete files that apply to nothing: {error_text(error)}"))
        also = f"; removed delete files that applied to nothing: {dangling:,}" if dangling else ""
        return replace(result, gain=result.gain + Gain(delete_files=dangling), summary=result.summary + also)


class SortLevel(RewriteLevel):
    """Sorts whole partitions by Spark; only on request, as metadata doesn't tell whether rows are sorted."""

    name = Level.SORT.value
    order = 2
    by_itself = False

    def candidates(self, health: TableHealth, care: Maintenance, *, force: bool) -> Iterator[Candidate]:
        """Yields all partitions of a table with an order. Their gain is unknown, so they rank last."""
        if not health.is_sorted and not care.zorder:
            return
        for partition in health.partitions:
            files = partition.files + partition.delete_files
            why = "; ".join([*health.needs_spark, *partition.needs_spark, "whole partitions are sorted by Spark only"])
            yield Candidate(health.identifier, self, "", Gain(), partition.size, files, partition, why)


def rewrite_reason(candidates: Iterable[Candidate]) -> str:
    """Returns why, with numbers."""
    found = [(candidate.partition, candidate.why_spark) for candidate in candidates if candidate.partition]
    deletes = sum(partition.delete_files for partition, _ in found)
    files = sum(partition.small_files for partition, _ in found)
    also = f", {deletes:,} delete files" if deletes else ""
    spark = "".join(f"; by Spark: {why}" for why in sorted({why for _, why in found if why}))
    return f"{files:,} small files{also} in {len(found):,} partition{'s' if len(found) > 1 else ''}{spark}"


def rewritten(metadata: TableMetadata | None, report: CompactionReport) -> Result:
    """Returns the result. metadata: of the table afterwards, if it can be read."""
    from lakehouse_assets.maintenance.rewrite.compact import Outcome

    outcomes = Counter(p.outcome for p in report.partitions)
    return Result(
        gain=_gain(metadata, report),
        # What has a proof was rewritten, even if it did not land.
        size=sum(p.bytes_before for p in report.partitions if p.proof),
        summary=_summary(report),
        proof=_proof(report),
        dropped=tuple(_named(p) for p in report.partitions if p.reason),
        faults=tuple(_named(p) for p in report.faults),
        nothing_landed=bool(outcomes) and not outcomes[Outcome.LANDED],
        usages=report.usages,
    )


def _gain(metadata: TableMetadata | None, report: CompactionReport) -> Gain:
    """Reads the snapshot's summary, because the report doesn't tell how many delete files went.

    Other data files may still need those that were applied.
    """
    snapshot = metadata.snapshot_by_id(report.snapshot_id) if metadata and report.snapshot_id is not None else None
    if snapshot is None or snapshot.summary is None:
        return Gain(files=sum(p.files_before - p.files_after for p in report.landed))
    removed, added, deletes = (
        int(snapshot.summary[name] or 0) for name in ("deleted-data-files", "added-data-files", "removed-delete-files")
    )
    return Gain(files=removed - added, delete_files=deletes)


def _summary(report: CompactionReport) -> str:
    landed = report.landed
    files = f"{sum(p.files_before for p in landed):,} → {sum(p.files_after for p in landed):,} files"
    size = " → ".join(map(size_text, (sum(p.bytes_before for p in landed), sum(p.bytes_after for p in landed))))
    numbers = f"{files}, {size}; " if landed else ""
    outcomes = Counter(p.outcome.value for p in report.partitions)
    counts = ", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.items()) or "no partition gains any more"
    return f"{numbers}partitions: {counts}"


def _proof(report: CompactionReport) -> str:
    from lakehouse_assets.wire.work import Digest

    proofs = [p.proof for p in report.landed if p.proof]
    total = sum((proof.after for proof in proofs), Digest())
    digest = hashlib.sha256(repr(total).encode()).hexdigest()[:16]
    # A proof that only counted has no hashes. Without rows, no proof has any.
    counted = Digest(total.rows) == total and total.rows
    return f"{total.rows:,} rows, {'counted' if counted else f'digest {digest}'}" if proofs else ""


def _named(report: PartitionReport) -> str:
    return f"{report.partition or 'whole table'}: {report.reason}"


def _counted(found: int, of: int) -> str:
    if of == 1:
        return "it has"
    return f"{found:,} of {of:,} partitions have up to" if found > 1 else f"1 of {of:,} partitions has"


def _min_input_files(means: MaintenanceContext) -> int:
    from lakehouse_assets.maintenance.rewrite.plan import LEAST_INPUT_FILES, MIN_INPUT_FILES

    return LEAST_INPUT_FILES if means.force else MIN_INPUT_FILES


def _keys(action: Action) -> set[Partition]:
    from pyiceberg.typedef import Record

    return {(partition.spec_id, Record(*partition.values)) for partition in action.partitions}
