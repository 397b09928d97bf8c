"""Finds what work a table's health asks for, piece by piece, each with what speaks against doing it now.

Pure. Which pieces the budget allows is decided in policy.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from lakehouse_assets.commit.fork import FORMAT_VERSION
from lakehouse_assets.declare.care import MANAGED_LEVELS, Level, Maintenance
from lakehouse_assets.health.demand import demand, long_history, manifests_needed, too_many_manifests
from lakehouse_assets.health.gain import MIB, OPEN_COST, Gain, PartitionWork, work_of
from lakehouse_assets.health.health import TableHealth
from lakehouse_assets.health.partition_health import PartitionHealth
from lakehouse_assets.health.text import size_text
from lakehouse_assets.health.thresholds import DEFAULTS, Thresholds
from lakehouse_assets.maintenance.costs import Rates
from lakehouse_assets.maintenance.memory import Memory
from lakehouse_assets.maintenance.planned import REWRITES, Engine
from lakehouse_assets.run.in_flight import Flight, meet

SMALL = 128 * MIB
"""The most bytes of one table that one run rewrites in its own process, without a JVM."""
S3_TABLES = "--table-s3"
"""The suffix of the names of the buckets that S3 Tables makes for its tables."""
Writing = Mapping[str, Sequence[Flight]]
"""The runs that write a table or are about to, by its identifier."""


class LeftOut(StrEnum):
    """The reason why a level is left out of a table for ever: time and other work change nothing about it."""

    DECLARED = "the table's declaration leaves this level out"
    MANAGED = "the catalog's own optimizer does it"
    OTHER_FORMAT = f"its format version is not {FORMAT_VERSION}, the only one that is written"


@dataclass(frozen=True)
class Policy:
    """The choices that a plan follows: levels, rates, thresholds, and what the tables declare."""

    levels: Collection[Level]
    """The levels that may be done."""
    rates: Rates
    tables: Mapping[str, Maintenance]
    """How the owners want their tables maintained, by identifier."""
    thresholds: Thresholds = DEFAULTS
    patient: bool = True
    """Whether what was written or done a short while ago is left for later."""

    def care(self, identifier: str) -> Maintenance:
        """Returns how the owner wants a table maintained; the defaults for a table that is not in ``tables``."""
        return self.tables.get(identifier, Maintenance())


@dataclass(frozen=True)
class Candidate:
    """A piece of work: on one partition, or on the whole table."""

    table: str
    level: Level
    work: PartitionWork | None
    """The rewrite of one partition; None for work on the whole table."""
    reason: str
    gain: Gain
    size: int
    """Bytes that are rewritten."""
    files: int
    """Files that are read, or manifests."""
    why_spark: str | None = None
    """Why Spark is needed; None if it is not."""
    why_not: str | None = None
    """What speaks against the work; None if nothing does."""

    @property
    def engine(self) -> Engine:
        """The engine that does the work: Spark where there is a reason for it, else Python."""
        return Engine.SPARK if self.why_spark else Engine.PYTHON


@dataclass(frozen=True)
class Subject:
    """One table as it is looked at."""

    health: TableHealth
    policy: Policy
    memory: Memory
    """What is remembered of the table; empty where its cool-downs and breakers are not to be waited for."""
    writing: Sequence[Flight]
    """The runs that write the table or are about to."""
    now: float
    """Seconds since 1970."""

    def candidates(self) -> Iterator[Candidate]:
        """Yields all that the table's health asks for."""
        yield from self._of_history()
        for partition in self.health.partitions:
            if found := self._of_partition(partition):
                yield found
        yield from self._of_manifests()
        if Level.COLLECT in self.policy.levels:
            reason = "its storage is looked through for files that nobody needs"
            yield self._of_table(Level.COLLECT, reason, Gain(), 0)

    def _of_history(self) -> Iterator[Candidate]:
        health = self.health
        if Level.EXPIRE in self.policy.levels and long_history(health, self.policy.thresholds):
            reason = f"{health.snapshots:,} snapshots in a metadata.json of {size_text(health.metadata_size)}"
            yield self._of_table(Level.EXPIRE, reason, Gain(snapshots=health.snapshots, scan_work=health.metadata_size))

    def _of_manifests(self) -> Iterator[Candidate]:
        health, thresholds = self.health, self.policy.thresholds
        if Level.MANIFESTS in self.policy.levels and too_many_manifests(health, thresholds):
            files, needed = health.total("files") + health.total("delete_files"), manifests_needed(health, thresholds)
            fewer = health.manifests - needed
            reason = f"{health.manifests:,} manifests list {files:,} files; {needed:,} would do"
            gain = Gain(manifests=fewer, scan_work=fewer * OPEN_COST)
            yield self._of_table(Level.MANIFESTS, reason, gain, health.manifest_size, health.manifests)

    def _of_table(self, level: Level, reason: str, gain: Gain, size: int = 0, files: int = 0) -> Candidate:
        why_not = self._left(level) or self.memory.wait_of_level(level, self.now, by_partition=False)
        return Candidate(self.health.identifier, level, None, reason, gain, size, files, why_not=why_not)

    def _of_partition(self, partition: PartitionHealth) -> Candidate | None:
        """Returns the partition's rewrite, for the first level that asks and may be done; else for the first that asks.

        None where no level asks.
        """
        asking = [level for level in (*REWRITES, Level.SORT) if self._asks(level, partition)]
        allowed = [level for level in asking if not self._left(level)]
        if not asking:
            return None
        level = (allowed or asking)[0]
        work = work_of(partition, self.health.target)
        if level is Level.SORT:  # all of it; what a sort gains only its readers know
            work = PartitionWork(partition, Gain(), partition.size, partition.files + partition.delete_files)
        spark, why_not = self._needs_spark(level, work), self._left(level) or self._too_soon(level, partition)
        return Candidate(self.health.identifier, level, work, "", work.gain, work.size, work.files, spark, why_not)

    def _asks(self, level: Level, partition: PartitionHealth) -> bool:
        if level not in self.policy.levels:
            return False
        if level is Level.SORT:
            return self.health.is_sorted or bool(self.policy.care(self.health.identifier).zorder)
        return demand(level, partition, self.health.target, self.policy.thresholds) is not None

    def _needs_spark(self, level: Level, work: PartitionWork) -> str | None:
        """Tells why the partition can't be rewritten without Spark; None if it can."""
        reasons = [*self.health.needs_spark, *work.partition.needs_spark]
        if work.size > SMALL:
            reasons.append(f"more than {size_text(SMALL)} are to be rewritten")
        if level is Level.SORT:
            reasons.append("whole partitions are sorted by Spark only")
        return "; ".join(reasons) or None

    def _left(self, level: Level) -> LeftOut | None:
        """Tells why the level is left out of this table; None if it is not."""
        care = self.policy.care(self.health.identifier)
        if level in care.without:
            return LeftOut.DECLARED
        bucket = self.health.location.partition("://")[2].partition("/")[0]
        if level in MANAGED_LEVELS and (care.managed or bucket.endswith(S3_TABLES)):
            return LeftOut.MANAGED
        # The collector commits nothing, so it may.
        if level is not Level.COLLECT and self.health.format_version != FORMAT_VERSION:
            return LeftOut.OTHER_FORMAT
        return None

    def _too_soon(self, level: Level, partition: PartitionHealth) -> str | None:
        """Tells why the partition is left for later: it is too soon, or a run is about to write it; None if neither.

        A rewrite of files that a writer replaces meanwhile would be in vain.
        """
        if wait := self.memory.wait_of_level(level, self.now, by_partition=True):
            return wait
        keys = None if partition.key is None else [partition.key]
        if writer := next((flight.name for flight in self.writing if meet(flight.keys, keys)), None):
            return f"a run that writes it is queued or under way: {writer}"
        quiet = self.policy.care(self.health.identifier).quiet_period
        if self.policy.patient and partition.written_ms is not None and self._age(partition.written_ms) < quiet:
            return f"written less than {quiet.total_seconds() / 60:g} minutes ago"
        return self.memory.wait_of_partition(partition, self.now)

    def _age(self, at_ms: int) -> timedelta:
        return timedelta(seconds=self.now - at_ms / 1000)
