"""What each write mode does at each step of a run, and which outdated reads of the table itself it refuses."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import singledispatch

from pyiceberg.manifest import ManifestEntry, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of

from lakehouse_assets.commit import deletes
from lakehouse_assets.commit.audit import Rule
from lakehouse_assets.commit.change import Change, FilesInRegion, RowChanges, RunChange
from lakehouse_assets.commit.commit_part import CommitPart
from lakehouse_assets.commit.fork import ForkBase, write_fork_base
from lakehouse_assets.commit.head_fork import write_head_fork
from lakehouse_assets.commit.landing import ReadSnapshot
from lakehouse_assets.commit.manifests import Entries, live_manifests
from lakehouse_assets.commit.staged import StagedChunk
from lakehouse_assets.declare.modes import MERGE_MODE, Append, Merge, Overwrite
from lakehouse_assets.declare.region import Region
from lakehouse_assets.errors import HeadMoved
from lakehouse_assets.keys_text import keys_text
from lakehouse_assets.wire.work import MergeWork

EVERY_MODE = frozenset({Rule.REQUIRED, Rule.CHECKS})


class WriteStrategy:
    """The way in which runs change their table: this one adds their rows, and removes nothing."""

    rules: Collection[Rule] = EVERY_MODE
    """The rules that the audit checks, beside those of every run."""
    at_most_changed: float | None = None
    """The share of the table's rows that a run may update and delete, by Rule.CHANGED; None for any share."""
    merge: MergeWork | None = None
    """How a worker merges the step's rows into its fork; None: it appends them."""

    def fork(self, table: IcebergTable, token: str, planned_ms: int, staged_on: int | None = None) -> ForkBase:
        """Writes the fork base of a run's workers: here one without rows.

        planned_ms: when the run was planned, in epoch ms. staged_on: the snapshot on which an earlier attempt has
            staged chunks; where they depend on it, it is taken again if it can be. Raises as write_fork_base() does.
        """
        return write_fork_base(table, token)

    def change(self, region: Region, staged: Sequence[StagedChunk]) -> RunChange:
        """Makes the change that a run publishes after it staged these chunks: here it adds their files.

        region: where its rows may be.
        """
        return Change(region, staged, Operation.APPEND)


@singledispatch
def strategy_of(mode: object) -> WriteStrategy:
    """Returns the strategy of a write mode. A further mode registers its own: ``@strategy_of.register``."""
    raise TypeError(f"no strategy is registered for the write mode {mode!r}")


class ReplacePartitions(WriteStrategy):
    """A run adds its rows to the table in place of all that are in its partitions."""

    rules = frozenset(Rule) - {Rule.CHANGED}

    def change(self, region: Region, staged: Sequence[StagedChunk]) -> Change:
        """Removes the files in the region, and adds the staged ones."""
        return Change(region, staged)


@dataclass(frozen=True)
class MergeRows(WriteStrategy):
    """A run merges its rows into the table as it is, and lands only if nobody changed the same part meanwhile."""

    merge: MergeWork
    rules: Collection[Rule] = EVERY_MODE
    at_most_changed: float | None = None
    reads: timedelta | None = None
    """How far back rows of the table are looked at, by when they were committed; None for all of them."""
    rewrites: str | None = None
    """The value of Iceberg's write.merge.mode for the workers' merges; None where rows are only inserted."""

    def fork(self, table: IcebergTable, token: str, planned_ms: int, staged_on: int | None = None) -> ForkBase:
        """Writes a fork base with the rows of the table's head, or with its recent ones.

        A resumed run takes the snapshot of its earlier attempt while that is in main's history: what was staged on it
        still fits unless others have changed the same part, which is looked at when it lands.
        """
        history = ancestors_of(table.metadata.current_snapshot(), table.metadata)
        found = (snapshot for snapshot in history if staged_on in (None, snapshot.snapshot_id))
        base = next(found, table.metadata.current_snapshot())
        if base is None:
            return write_fork_base(table, token)
        if self.reads is None:
            properties = {MERGE_MODE: self.rewrites} if self.rewrites else {}
            return write_fork_base(table, token, base, properties=properties)
        since = first_sequence(table.metadata, base, planned_ms - self.reads // timedelta(milliseconds=1))
        return write_head_fork(table, ReadSnapshot(table.metadata, base), token, recent(table, base, since))

    def change(self, region: Region, staged: Sequence[StagedChunk]) -> RowChanges:
        """Does to the table what the workers have done to their forks."""
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
    """Returns the sequence number of the first snapshot that was committed since then, of those that led to the base.

    It is one above the base's if there is none, and 0 if earlier snapshots have expired, as they may have been
    committed since then as well. Files of later rewrites have the sequence numbers of the snapshots that they read, and
    are not older by them than their rows.
    """
    found = (base.sequence_number or 0) + 1
    for snapshot in ancestors_of(base, metadata):
        if snapshot.timestamp_ms < since_ms:
            return found
        found = snapshot.sequence_number or 0
        if snapshot.parent_snapshot_id is None:
            return found
    return 0  # earlier ones have expired: they may have been committed since then as well


def recent(table: IcebergTable, base: Snapshot, first: int) -> list[ManifestEntry]:
    """Returns the base's entries of live files, deletes too, that were added with that sequence number or later."""
    manifests = [m for m in base.manifests(table.io) if m.sequence_number >= first]
    found = (entry for read in Entries().read(table.io, manifests) for entry in read)
    return [entry for entry in found if deletes.sequence(entry) >= first]


@dataclass(frozen=True)
class OwnReads(CommitPart):
    """Refuses to replace rows that a step has read of its own table, if others have changed them meanwhile."""

    read: int | None
    """The snapshot that the step has read; None if the table had none."""
    region: Region
    """The part of the table that the run owns; what it has read of other parts is a version like that of any input."""
    schema: Schema
    """Has the names of the region."""

    def refuse(self, now: Table) -> None:
        """Raises HeadMoved if rows of the region differ from those of the snapshot."""
        refuse_outdated_reads(now, self.read, self.region, self.schema)


def refuse_outdated_reads(table: Table, read: int | None, region: Region, schema: Schema) -> None:
    """Raises HeadMoved if rows of a region differ from those of the snapshot that was read."""
    if table.metadata.current_snapshot_id == read or _only_rewritten_since(table, read):
        return
    name = f"table {'.'.join(table.name())}, {keys_text(region.keys)}"
    then = table.metadata.snapshot_by_id(read) if read is not None else None
    if read is not None and then is None:
        raise HeadMoved(f"{name}: its step has read the table as of snapshot {read}, which has expired meanwhile")
    before, now = then.manifests(table.io) if then else [], live_manifests(table)
    # Manifests never change, so files that the same manifests list are the same.
    common = {manifest.manifest_path for manifest in before} & {manifest.manifest_path for manifest in now}
    place = FilesInRegion(region, table, schema)
    sides = (_files(table, place, [m for m in side if m.manifest_path not in common]) for side in (before, now))
    if changed := set.symmetric_difference(*sides):
        raise HeadMoved(
            f"{name}: its step has read the table as of snapshot {read or 'none'}, and others have changed its rows "
            f"meanwhile, in {len(changed)} files such as {min(changed)[0]}"
        )


def _only_rewritten_since(table: Table, read: int | None) -> bool:
    for snapshot in ancestors_of(table.current_snapshot(), table.metadata):
        if snapshot.snapshot_id == read:
            return True
        if snapshot.summary is None or snapshot.summary.operation is not Operation.REPLACE:
            return False
        if snapshot.parent_snapshot_id == read:
            return True
    return False


def _files(table: Table, place: FilesInRegion, manifests: Iterable[ManifestFile]) -> set[tuple[str, int]]:
    """Returns the data and delete files that may have rows of the region: the path and sequence number of each."""
    read = Entries().read(table.io, [m for m in manifests if place.may_be_in(m)])
    found = (entry for entries in read for entry in entries if place.touches(entry.data_file))
    return {(entry.data_file.file_path, deletes.sequence(entry)) for entry in found}
