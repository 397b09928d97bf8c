"""Expires snapshots of a table in one commit, whatever else is committed meanwhile, and checks afterwards what it did.

Metadata only: no file is deleted here. Which snapshots may expire is decided in expiry.py.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
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

from lakehouse_assets.commit.publish import commit_persistently
from lakehouse_assets.commit.tokens import changed_marks
from lakehouse_assets.environment.catalog import with_retries
from lakehouse_assets.errors import MaintenanceContended, MaintenanceRefused

logger = logging.getLogger(__name__)


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


def made_on(expiry: Expiry, planned: Table, now: TableMetadata) -> tuple[str, TableMetadata]:
    """Returns the metadata file that an expiry was committed on, with what is in it: the newest that lacks the expiry.

    planned: the table as the plan saw it; as a rule nobody has committed since, and this is it, with no file read. It
    also stands for a file that can't be read. now: the table's metadata after the expiry, maybe after later commits.
    """
    for entry in reversed(now.metadata_log):
        location = entry.metadata_file
        if location == planned.metadata_location:
            break
        try:
            metadata = FromInputFile.table_metadata(planned.io.new_input(location))
        except Exception as error:  # torn files raise errors of all kinds; the expiry has landed whatever they are
            logger.warning("%s: whether a tag was lost with its snapshot is not known: %r", planned.name(), error)
            break
        if not expiry.is_done(metadata):
            return location, metadata
    return planned.metadata_location, planned.metadata


def lost_refs(table: str, expiry: Expiry, base: str, before: TableMetadata, after: TableMetadata) -> Iterator[str]:
    """Yields a message about the branches and tags that the catalog removed with their snapshots; nothing if none.

    table: its name. base, before: the metadata file that the expiry was committed on, and what is in it.
    """
    gone = set(expiry.snapshot_ids)
    at_expired = {name for name, ref in before.refs.items() if ref.snapshot_id in gone}
    if lost := sorted(at_expired - set(expiry.refs) - after.refs.keys()):
        yield (
            f"table {table}: {', '.join(lost)} was set to a snapshot while it expired, and the catalog removed both. "
            f"The files are there until the grace ends, and {base} is the metadata from before: take them from there"
        )


@dataclass(frozen=True)
class Expired:
    """The result of an expiry. Nothing was committed where ``expiry.is_empty``."""

    expiry: Expiry
    before: TableMetadata
    after: TableMetadata
    """The table's metadata as it was found then: where an answer was lost, others may have committed since."""
    faults: tuple[str, ...] = ()
    """What the catalog lost, to be shown red."""


def expire(catalog: Catalog, identifier: str, plan: Callable[[TableMetadata], Expiry]) -> Expired:
    """Expires the snapshots that ``plan`` chooses from the table's metadata; it is asked anew at each attempt.

    The commit requires every branch and tag to be where the plan saw it. It can't require anything of one that is new:
    where the client writes the metadata, the commit conflicts; a REST catalog may remove the new one with its snapshot,
    which is told in ``faults``. Its files are still there, until the collector's grace ends.

    After a call that died around its commit, the next one finds nothing left to do. Raises what ``plan`` raises,
    MaintenanceRefused where there is no table, MaintenanceContended when the attempts ran out or the catalog stayed out
    of reach.
    """
    return _Expiration(catalog, identifier, plan).run()


@dataclass
class _Expiration:
    """One call of expire()."""

    catalog: Catalog
    identifier: str
    plan: Callable[[TableMetadata], Expiry]
    started: float = field(default_factory=time.monotonic)
    tried: tuple[Table, Expiry] | None = None
    """The table and the plan of the last commit whose answer may be lost."""

    def run(self) -> Expired:
        return commit_persistently(
            self.identifier, "expire snapshots", self._attempt, lambda: self._landed(self._load()), self._contended
        )

    def _attempt(self) -> Expired:
        # Loaded right before the commit: a tag that is set in between is lost on some REST catalogs.
        table = self._load()
        if landed := self._landed(table):
            return landed
        expiry = self.plan(table.metadata)
        if expiry.is_empty:
            return Expired(expiry, table.metadata, table.metadata)
        self.tried = (table, expiry)
        # A transaction is not used: it deletes old metadata files where the table's properties ask for it.
        response = self.catalog.commit_table(table, unchanged(table.metadata), expiry.updates())
        return self._expired(table, expiry, response.metadata)

    def _landed(self, table: Table) -> Expired | None:
        """Returns what the last commit that was tried did; None if it is not on the table."""
        if self.tried is None:
            return None
        planned, expiry = self.tried
        if table.metadata.table_uuid != planned.metadata.table_uuid or not expiry.is_done(table.metadata):
            return None
        return self._expired(planned, expiry, table.metadata)

    def _load(self) -> Table:
        try:
            return with_retries(lambda: self.catalog.load_table(self.identifier))
        except NoSuchTableError as error:
            raise MaintenanceRefused(
                f"table {self.identifier}: expected in the catalog to expire its snapshots, but it is not there. If it "
                "was dropped on purpose, nothing is left to do"
            ) from error

    def _expired(self, planned: Table, expiry: Expiry, after: TableMetadata) -> Expired:
        base, before = made_on(expiry, planned, after)
        faults = lost_refs(self.identifier, expiry, base, before, after)
        return Expired(expiry, before, after, tuple(faults))

    def _contended(self, problem: str, failure: Exception) -> MaintenanceContended:
        seconds = time.monotonic() - self.started
        return MaintenanceContended(
            f"table {self.identifier}: expiring snapshots was {problem}, tried for {seconds:.0f} s, the last error was "
            f"{failure!r}. No rows and no files are concerned; the next maintenance finds out what is left to expire"
        )
