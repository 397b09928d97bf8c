"""Write strategies: for each write mode, the forks that workers start from, the audit's rules, and the change."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import singledispatch

from pyiceberg.manifest import ManifestEntry, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of

from lakehouse_assets.commit import deletes
from lakehouse_assets.commit.audit import Rule
from lakehouse_assets.commit.change import Change, FilesInRegion, RowChanges, RunChange
from lakehouse_assets.commit.commit_part import CommitPart
from lakehouse_assets.commit.fork import ForkBase, all_optional, write_fork_base
from lakehouse_assets.commit.head_fork import write_head_fork
from lakehouse_assets.commit.landing import ReadSnapshot
from lakehouse_assets.commit.manifests import Entries, live_manifests
from lakehouse_assets.commit.staged import StagedChunk
from lakehouse_assets.declare.modes import MERGE_MODE, Append, Merge, Overwrite
from lakehouse_assets.declare.region import Region
from lakehouse_assets.errors import StageAgain
from lakehouse_assets.keys_text import keys_text
from lakehouse_assets.wire.work import MergeWork

EVERY_MODE = frozenset({Rule.REQUIRED, Rule.CHECKS})
"""The rules that all write modes have."""


class WriteStrategy:
    """Adds a run's rows, and removes nothing."""

    rules: Collection[Rule] = EVERY_MODE
    """What the audit checks besides OWN_COMMITS and TEXT, the rules of every run."""
    at_most_changed: float | None = None
    """The share of the table's rows that a run may change; None: any."""
    merge: MergeWork | None = None
    """How workers merge rows into their forks; None: they append them."""

    def fork(self, table: IcebergTable, token: str, planned_ms: int, staged_on: int | None = None) -> ForkBase:
        """Writes the fork base of a run's workers. Raises as write_fork_base().

        planned_ms: the run's plan, epoch ms. staged_on: the snapshot on which the run has staged chunks before.
        """
        return write_fork_base(table, token)

    def change(self, region: Region, staged: Sequence[StagedChunk]) -> RunChange:
        """Returns the change that publishes the chunks."""
        return Change(region, staged, Operation.APPEND)


@singledispatch
def strategy_of(mode: object) -> WriteStrategy:
    """Returns the strategy of a write mode; each registers its own."""
    raise TypeError(f"no strategy is registered for the write mode {mode!r}")


class ReplacePartitions(WriteStrategy):
    """Replaces all rows in the run's partitions."""

    rules = frozenset(Rule) - {Rule.CHANGED}

    def change(self, region: Region, staged: Sequence[StagedChunk]) -> Change:
        """Replaces the files in the region."""
        return Change(region, staged)


@dataclass(frozen=True)
class MergeRows(WriteStrategy):
    """Merges rows into the table; lands only if nobody changed the same part meanwhile."""

    merge: MergeWork
    rules: Collection[Rule] = EVERY_MODE
    at_most_changed: float | None = None
    reads: timedelta | None = None
    """How far back to look, by commit time; None: at all rows."""
    rewrites: str | None = None
    """Iceberg's ``write.merge.mode``."""

    def fork(self, table: IcebergTable, token: str, planned_ms: int, staged_on: int | None = None) -> ForkBase:
        """Writes a fork base with the head's rows, or recent ones.

        A resumed run takes ``staged_on`` if main's history still has it, so that chunks staged on it still count;
        publishing them checks for conflicts.
        """
        history = ancestors_of(table.metadata.current_snapshot(), table.metadata)
        # Begins with the head: without staged_on, the head is the base.
        found = (snapshot for snapshot in history if staged_on in (None, snapshot.snapshot_id))
        base = next(found, table.metadata.current_snapshot())
        if base is None:
            return write_fork_base(table, token)
        if self.reads is None:
            properties = {MERGE_MODE: self.rewrites} if self.rewrites else {}
            return write_fork_base(table, token, base, properties=properties)
        since = first_sequence(table.metadata, base, planned_ms - self.reads // timedelta(milliseconds=1))
        # As in write_fork_base(): a worker may stage nulls, which the audit then reports.
        read = ReadSnapshot(all_optional(table.metadata), base)
        return write_head_fork(table, read, token, recent(table, base, since))

    def change(self, region: Region, staged: Sequence[StagedChunk]) -> RowChanges:
        """Repeats the workers' changes on the table."""
        inserts = self.merge.only_inserts
        return RowChanges(staged, Operation.APPEND if inserts else Operation.OVERWRITE, only_inserts=inserts)


@strategy_of.register
def _(mode: Overwrite) -> WriteStrategy:  # FullRefresh too
    return ReplacePartitions()


@strategy_of.register
def _(mode: Append) -> WriteStrategy:
    if not mode.dedup_on:
        return WriteStrategy()
    return MergeRows(MergeWork(tuple(mode.dedup_on), only_inserts=True), reads=mode.within)


@strategy_of.register
def _(mode: Merge) -> WriteStrategy:
    rules = {Rule.PARTITIONS} if mode.by_partition else set()
    rules |= set() if mode.at_most_changed is None else {Rule.CHANGED}
    work = MergeWork(tuple(mode.keys), mode.delete_when, mode.order_by)
    return MergeRows(work, EVERY_MODE | rules, mode.at_most_changed, rewrites=str(mode.rewrites))


def first_sequence(metadata: TableMetadata, base: Snapshot, since_ms: int) -> int:
    """Returns the sequence number of the first snapshot since ``since_ms`` in the base's history; else the next number.

    Returns 0 if snapshots before that one have expired.
    """
    # A rewrite gives its files the sequence number of the snapshot that it read, and all their rows were committed by
    # then, so no file with recent rows is missed.
    found = (base.sequence_number or 0) + 1
    for snapshot in ancestors_of(base, metadata):
        if snapshot.timestamp_ms < since_ms:
            return found
        found = snapshot.sequence_number or 0
        if snapshot.parent_snapshot_id is None:
            return found
    # The snapshots before it have expired. They too may have been committed since since_ms.
    return 0


def recent(table: IcebergTable, base: Snapshot, first: int) -> list[ManifestEntry]:
    """Returns the base's live entries from that sequence number on."""
    # No manifest is older than one of its entries, so older manifests need not be read.
    manifests = [m for m in base.manifests(table.io) if m.sequence_number >= first]
    found = (entry for read in Entries().read(table.io, manifests) for entry in read)
    return [entry for entry in found if deletes.sequence(entry) >= first]


@dataclass(frozen=True)
class OwnReads(CommitPart):
    """Refuses to replace rows that a step read of its own table, if others changed them meanwhile."""

    read: int | None
    """The snapshot that the step read, if any."""
    region: Region
    """Reads of other parts are not checked."""
    schema: Schema

    @property
    def may_stage_again(self) -> bool:
        """True: refuse() may raise it."""
        return True

    def refuse(self, now: IcebergTable) -> None:
        """Raises StageAgain if others have changed the region's rows since the read snapshot, or if it has expired.

        If all commits since were rewrites, even an expired snapshot is fine.
        """
        read = self.read
        if now.metadata.current_snapshot_id == read or _only_rewritten_since(now, read):
            return
        name = f"table {'.'.join(now.name())}, {keys_text(self.region.keys)}"
        then = now.metadata.snapshot_by_id(read) if read is not None else None
        if read is not None and then is None:
            raise StageAgain(f"{name}: its step read the table at snapshot {read}, which has expired since")
        before, after = then.manifests(now.io) if then else [], live_manifests(now)
        # Manifests are immutable: files listed by the same manifests are the same.
        common = {manifest.manifest_path for manifest in before} & {manifest.manifest_path for manifest in after}
        place = FilesInRegion(self.region, now, self.schema)
        sides = (_files(now, place, [m for m in side if m.manifest_path not in common]) for side in (before, after))
        if changed := set.symmetric_difference(*sides):
            raise StageAgain(
                f"{name}: its step read the table at snapshot {read or 'none'}, and others have changed its rows "
                f"since, in {len(changed)} files such as {min(changed)[0]}"
            )


def _only_rewritten_since(table: IcebergTable, read: int | None) -> bool:
    """Whether history proves that all commits since this snapshot were rewrites, which change no rows."""
    for snapshot in ancestors_of(table.current_snapshot(), table.metadata):
        if snapshot.snapshot_id == read:
            return True
        if snapshot.summary is None or snapshot.summary.operation is not Operation.REPLACE:
            return False
        # The snapshot itself may have expired; its child still names it.
        if snapshot.parent_snapshot_id == read:
            return True
    return False


def _files(table: IcebergTable, place: FilesInRegion, manifests: Iterable[ManifestFile]) -> set[tuple[str, int]]:
    """Returns the path and sequence number of each file that may have rows of the region."""
    read = Entries().read(table.io, [m for m in manifests if place.may_be_in(m)])
    found = (entry for entries in read for entry in entries if place.touches(entry.data_file))
    return {(entry.data_file.file_path, deletes.sequence(entry)) for entry in found}
