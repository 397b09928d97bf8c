"""Computes what expiring snapshots does to a table's metadata, and the update that does it.

All functions are pure functions of metadata. Which snapshots expire is decided in maintenance/expiry.py;
expire_commit.py commits the update.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot, SnapshotLogEntry
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetPropertiesUpdate,
    TableRequirement,
    TableUpdate,
    _apply_table_update,
)

from lakehouse_assets.commit.tokens import changed_marks


class ExpireSnapshotsUpdate(RemoveSnapshotsUpdate):
    """Iceberg's ``remove-snapshots``; a REST catalog is sent just that.

    A catalog whose clients write the metadata (SQL, Glue) gets what Iceberg's Java makes of it. PyIceberg 0.12 removes,
    with a snapshot, the branch or tag that was set to it meanwhile; it leaves holes in the snapshot log, into which a
    time travel finds an older snapshot than the right one; and it leaves partition statistics.
    """


@_apply_table_update.register(ExpireSnapshotsUpdate)
def _(update: ExpireSnapshotsUpdate, base_metadata: TableMetadata, context: Any) -> TableMetadata:
    gone = set(update.snapshot_ids)
    if held := [name for name, ref in base_metadata.refs.items() if ref.snapshot_id in gone]:
        raise CommitFailedException(f"Snapshots to be expired are referenced by now: {', '.join(held)}")
    if missing := gone - {s.snapshot_id for s in base_metadata.snapshots}:
        raise CommitFailedException(f"Snapshots to be expired are gone by now: {len(missing)}")
    context.add_update(update)
    return without_snapshots(base_metadata, gone)


@dataclass(frozen=True)
class Expiry:
    """The part of a table's metadata that one commit takes out."""

    snapshot_ids: tuple[int, ...] = ()
    """The ids of the snapshots, oldest first."""
    refs: tuple[str, ...] = ()
    """The branches and tags that go."""
    log: tuple[SnapshotLogEntry, ...] = ()
    """The entries cut off the beginning of the snapshot log."""
    statistics: tuple[str, ...] = ()
    """The paths of statistics files that the metadata forgets."""
    partition_statistics: tuple[str, ...] = ()
    """The paths of partition statistics files that the metadata forgets."""
    marks: Mapping[str, str] = field(default_factory=dict)
    """Token properties that go on saying whether their runs were rolled back (tokens.py)."""

    @classmethod
    def of(cls, metadata: TableMetadata, snapshot_ids: Collection[int], refs: Iterable[str] = ()) -> Expiry:
        """Finds all that goes with these snapshots and refs.

        refs: among them each one of an expired snapshot.
        """
        gone = set(snapshot_ids)
        after = without_snapshots(metadata, gone) if gone else metadata
        return cls(
            snapshot_ids=tuple(s.snapshot_id for s in oldest_first(metadata) if s.snapshot_id in gone),
            refs=tuple(refs),
            log=tuple(metadata.snapshot_log[: len(metadata.snapshot_log) - len(after.snapshot_log)]),
            statistics=tuple(s.statistics_path for s in metadata.statistics if s.snapshot_id in gone),
            partition_statistics=tuple(
                s.statistics_path for s in metadata.partition_statistics if s.snapshot_id in gone
            ),
            marks=changed_marks(metadata, after),
        )

    @property
    def is_empty(self) -> bool:
        """Whether no snapshot and no ref expires, so that there is nothing to commit."""
        return not (self.snapshot_ids or self.refs)

    def is_done(self, metadata: TableMetadata) -> bool:
        """Tells whether all its snapshots and refs are gone."""
        return metadata.refs.keys().isdisjoint(self.refs) and {s.snapshot_id for s in metadata.snapshots}.isdisjoint(
            self.snapshot_ids
        )

    def updates(self) -> tuple[TableUpdate, ...]:
        """Returns the updates that remove the refs and the snapshots and set the marks."""
        updates: list[TableUpdate] = [RemoveSnapshotRefUpdate.model_validate({"ref-name": name}) for name in self.refs]
        if self.snapshot_ids:
            updates.append(ExpireSnapshotsUpdate.model_validate({"snapshot-ids": self.snapshot_ids}))
        if self.marks:
            updates.append(SetPropertiesUpdate(updates=dict(self.marks)))
        return tuple(updates)


def unchanged(metadata: TableMetadata) -> tuple[TableRequirement, ...]:
    """Returns what a catalog must find when it expires snapshots: the same table, and each branch and tag where it was.

    Without these requirements, a table rolled back meanwhile to an expired snapshot reads 0 rows. No requirement can
    say that no ref is new.
    """
    heads: dict[str, int | None] = {name: ref.snapshot_id for name, ref in metadata.refs.items()}
    return (
        AssertTableUUID(uuid=metadata.table_uuid),
        *(
            AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": head})
            for name, head in ({MAIN_BRANCH: None} | heads).items()
        ),
    )


def without_snapshots(metadata: TableMetadata, gone: Collection[int]) -> TableMetadata:
    """Returns the metadata after these snapshots expired.

    Their children go on naming them as parents, as in Iceberg's Java: a reader that was at an expired snapshot can read
    on from its child.
    """
    snapshots = [s for s in metadata.snapshots if s.snapshot_id not in gone]
    return metadata.model_copy(
        update={
            "snapshots": snapshots,
            "snapshot_log": _without_holes(metadata.snapshot_log, {s.snapshot_id for s in snapshots}),
            "statistics": [s for s in metadata.statistics if s.snapshot_id not in gone],
            "partition_statistics": [s for s in metadata.partition_statistics if s.snapshot_id not in gone],
        }
    )


def oldest_first(metadata: TableMetadata) -> list[Snapshot]:
    """Returns all snapshots in the order in which they were committed.

    The order is that of sequence numbers: times are of many clocks and may go back.
    """
    return sorted(metadata.snapshots, key=lambda s: s.sequence_number or 0)


def _without_holes(log: list[SnapshotLogEntry], kept: Collection[int]) -> list[SnapshotLogEntry]:
    """Returns the log from behind its last entry that has no snapshot any more.

    If one in the middle were missing, a time travel to its days would find the one before.
    """
    missing = [n for n, entry in enumerate(log) if entry.snapshot_id not in kept]
    return log[missing[-1] + 1 :] if missing else log
