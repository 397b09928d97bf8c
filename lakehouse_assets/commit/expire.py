"""Expiry of snapshots: which ones expire, and the commit."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from functools import cached_property
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
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
from pyiceberg.utils.properties import property_as_bool

from lakehouse_assets.commit.positions import READER, carriers
from lakehouse_assets.commit.publish import commit_persistently
from lakehouse_assets.commit.tokens import changed_marks
from lakehouse_assets.environment.catalog import with_retries
from lakehouse_assets.errors import MaintenanceContended, MaintenanceRefused

logger = logging.getLogger(__name__)


class ExpireSnapshotsUpdate(RemoveSnapshotsUpdate):
    """Iceberg's ``remove-snapshots``, applied as in Iceberg's Java.

    PyIceberg 0.12 also removes a ref that was set to the snapshot meanwhile, leaves partition statistics, and leaves
    holes in the snapshot log, in which time travel finds too old a snapshot.
    """


@_apply_table_update.register(ExpireSnapshotsUpdate)
def _(update: ExpireSnapshotsUpdate, base_metadata: TableMetadata, context: Any) -> TableMetadata:
    gone = set(update.snapshot_ids)
    if held := [name for name, ref in base_metadata.refs.items() if ref.snapshot_id in gone]:
        raise CommitFailedException(f"Snapshots to expire are now referenced: {', '.join(held)}")
    if missing := gone - {s.snapshot_id for s in base_metadata.snapshots}:
        raise CommitFailedException(f"Snapshots to expire are already gone: {len(missing)}")
    context.add_update(update)
    return without_snapshots(base_metadata, gone)


@dataclass(frozen=True)
class Expiry:
    """What one commit removes from the metadata."""

    snapshot_ids: tuple[int, ...] = ()
    """Oldest first."""
    refs: tuple[str, ...] = ()
    """Branches and tags."""
    marks: Mapping[str, str] = field(default_factory=dict)
    """Properties of runs' tokens that note which runs were rolled back: without the expired snapshots, the history
    can't tell."""

    @classmethod
    def of(cls, metadata: TableMetadata, snapshot_ids: Collection[int], refs: Iterable[str] = ()) -> Expiry:
        """Returns the expiry of snapshots and refs.

        refs: must include each ref of an expired snapshot.
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
        """Whether there is nothing to commit."""
        return not (self.snapshot_ids or self.refs)

    def is_done(self, metadata: TableMetadata) -> bool:
        """Whether all its snapshots and refs are gone."""
        return metadata.refs.keys().isdisjoint(self.refs) and {s.snapshot_id for s in metadata.snapshots}.isdisjoint(
            self.snapshot_ids
        )

    def updates(self) -> tuple[TableUpdate, ...]:
        """Returns the updates to commit."""
        updates: list[TableUpdate] = [RemoveSnapshotRefUpdate.model_validate({"ref-name": name}) for name in self.refs]
        if self.snapshot_ids:
            updates.append(ExpireSnapshotsUpdate.model_validate({"snapshot-ids": self.snapshot_ids}))
        if self.marks:
            updates.append(SetPropertiesUpdate(updates=dict(self.marks)))
        return tuple(updates)


def unchanged(metadata: TableMetadata) -> tuple[TableRequirement, ...]:
    """Returns the requirements of an expiry: the same table, and each ref where it was.

    Otherwise a table rolled back meanwhile to an expired snapshot reads 0 rows. No requirement can exclude new refs.
    """
    # None stands for no ref: a table without main must not have got one.
    heads: dict[str, int | None] = {name: ref.snapshot_id for name, ref in metadata.refs.items()}
    return (
        AssertTableUUID(uuid=metadata.table_uuid),
        *(
            AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": head})
            for name, head in ({MAIN_BRANCH: None} | heads).items()
        ),
    )


def without_snapshots(metadata: TableMetadata, gone: Collection[int]) -> TableMetadata:
    """Returns the metadata after an expiry.

    As in Iceberg's Java, children go on naming expired parents: a reader that has read up to an expired snapshot can
    read on from its child.
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
    """Returns all snapshots in commit order, by sequence number: timestamps may go back."""
    return sorted(metadata.snapshots, key=lambda s: s.sequence_number or 0)


def _without_holes(log: list[SnapshotLogEntry], kept: Collection[int]) -> list[SnapshotLogEntry]:
    """Returns the log after its last expired entry: at a hole, time travel would find the snapshot before the hole."""
    missing = [n for n, entry in enumerate(log) if entry.snapshot_id not in kept]
    return log[missing[-1] + 1 :] if missing else log


def made_on(expiry: Expiry, planned: Table, now: TableMetadata) -> tuple[str, TableMetadata]:
    """Returns the location and content of the metadata file to which the catalog applied the expiry.

    It is the newest in the log that still has what expired. planned: the table when the expiry was planned; it is the
    result if nobody committed in between, or if a file can't be read.
    """
    for entry in reversed(now.metadata_log):
        location = entry.metadata_file
        if location == planned.metadata_location:
            break
        try:
            metadata = FromInputFile.table_metadata(planned.io.new_input(location))
        except Exception as error:  # torn files raise errors of all kinds; the expiry has landed whatever they are
            logger.warning("%s: can't find out whether a tag was lost with its snapshot: %r", planned.name(), error)
            break
        if not expiry.is_done(metadata):
            return location, metadata
    return planned.metadata_location, planned.metadata


def lost_refs(table: str, expiry: Expiry, base: str, before: TableMetadata, after: TableMetadata) -> Iterator[str]:
    """Yields a message if the catalog removed refs with their snapshots. base, before: from made_on()."""
    gone = set(expiry.snapshot_ids)
    at_expired = {name for name, ref in before.refs.items() if ref.snapshot_id in gone}
    if lost := sorted(at_expired - set(expiry.refs) - after.refs.keys()):
        yield (
            f"table {table}: {', '.join(lost)} was set to a snapshot while that snapshot expired, and the catalog "
            f"removed both. The files are kept until the grace ends; restore them from the earlier metadata {base}"
        )


@dataclass(frozen=True)
class Expired:
    """The result of expire(); if ``expiry.is_empty``, nothing was committed."""

    expiry: Expiry
    before: TableMetadata
    """What the catalog applied the expiry to, as far as made_on() can tell."""
    after: TableMetadata
    """Maybe after later commits, if an answer was lost."""
    faults: tuple[str, ...] = ()
    """Messages of lost_refs()."""


def expire(catalog: Catalog, identifier: str, plan: Callable[[TableMetadata], Expiry]) -> Expired:
    """Expires the snapshots that ``plan`` chooses at each attempt.

    Every ref must be where the plan saw it. A new one makes the commit conflict if the client writes the metadata; a
    REST catalog may remove it, which ``faults`` reports. Raises what ``plan`` raises, MaintenanceRefused if there is no
    table, MaintenanceContended if the attempts ran out or the catalog stayed out of reach.
    """
    return _Expiration(catalog, identifier, plan).run()


@dataclass
class _Expiration:
    catalog: Catalog
    identifier: str
    plan: Callable[[TableMetadata], Expiry]
    started: float = field(default_factory=time.monotonic)
    tried: tuple[Table, Expiry] | None = None
    """The latest attempt: the table and what to expire. It may have landed although it failed."""

    def run(self) -> Expired:
        return commit_persistently(
            self.identifier, "expire snapshots", self._attempt, lambda: self._landed(self._load()), self._contended
        )

    def _attempt(self) -> Expired:
        # Loaded right before the commit: some REST catalogs lose a tag that is set between load and commit.
        table = self._load()
        if landed := self._landed(table):
            return landed
        expiry = self.plan(table.metadata)
        if expiry.is_empty:
            return Expired(expiry, table.metadata, table.metadata)
        self.tried = (table, expiry)
        # Not by a transaction, which deletes old metadata files if the table's properties ask for it.
        response = self.catalog.commit_table(table, unchanged(table.metadata), expiry.updates())
        return self._expired(table, expiry, response.metadata)

    def _landed(self, table: Table) -> Expired | None:
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
                f"table {self.identifier}: its snapshots can't be expired, because it is not in the catalog. If it was "
                "dropped on purpose, there is nothing left to do"
            ) from error

    def _expired(self, planned: Table, expiry: Expiry, after: TableMetadata) -> Expired:
        base, before = made_on(expiry, planned, after)
        faults = lost_refs(self.identifier, expiry, base, before, after)
        return Expired(expiry, before, after, tuple(faults))

    def _contended(self, problem: str, failure: Exception) -> MaintenanceContended:
        seconds = time.monotonic() - self.started
        return MaintenanceContended(
            f"table {self.identifier}: expiring snapshots: {problem}, tried for {seconds:.0f} s; the last error was "
            f"{failure!r}. No rows or files are affected; the next maintenance finds out what is left to expire"
        )


# https://iceberg.apache.org/docs/latest/configuration/#table-behavior-properties; PyIceberg has no constant for it.
MAX_REF_AGE_MS = "history.expire.max-ref-age-ms"
LONGEST_MS = timedelta.max // timedelta(milliseconds=1)
"""The longest duration that Python has."""
GC_ENABLED = "gc.enabled"


class Why(StrEnum):
    """The reason to keep a snapshot."""

    HEAD = "head of a branch"
    TAG = "tagged"
    NEWEST = "among the newest of a branch"
    YOUNG = "younger than the age, or a descendant of one that is"
    UNREAD = "not read yet by a reader"
    POSITION = "records how far the table has read its inputs, or leads to the one that does"
    PINNED = "read by a run that is alive or may be resumed"


@dataclass(frozen=True)
class ExpiryPolicy:
    """The retention rule for branches and tags that set none."""

    minimum: int = 10
    """Snapshots of each branch that stay at any age, so that a seldom-written table can be rolled back."""
    maximum: int = 1000
    """Snapshots of the table; beyond it, those kept only for age expire. A commit takes 0.27 s with 100, 0.66 s with
    2,000, 2.9 s with 10,000 (measured)."""
    age: timedelta = timedelta(days=5)
    """The age up to which a branch's snapshots stay; Iceberg's default of ``history.expire.max-snapshot-age-ms``."""
    reader_age: timedelta = timedelta(days=14)
    """The age of a reader's first unread snapshot beyond which its tag keeps nothing."""
    ref_age: timedelta | None = None
    """The age of a branch or tag; None: forever."""

    def of(self, table: str, metadata: TableMetadata) -> ExpiryPolicy:
        """Returns the policy with the table's ``history.expire.*`` properties applied.

        Raises MaintenanceRefused if one is no integer.
        """
        minimum = _number(table, metadata, TableProperties.MIN_SNAPSHOTS_TO_KEEP)
        names = {"age": TableProperties.MAX_SNAPSHOT_AGE_MS, "reader_age": MAX_REF_AGE_MS, "ref_age": MAX_REF_AGE_MS}
        given = ((field, _number(table, metadata, name)) for field, name in names.items())
        ages: dict[str, Any] = {field: _duration(ms) for field, ms in given if ms is not None}
        return replace(self, minimum=self.minimum if minimum is None else minimum, **ages)


def _number(table: str, metadata: TableMetadata, name: str) -> int | None:
    value = metadata.properties.get(name)
    try:
        return None if value is None else int(value)
    except ValueError:
        raise MaintenanceRefused(
            f"table {table}: property {name} is {value!r}, expected an integer. Correct it, or unset it to use the "
            "policy's own value. No snapshot was expired"
        ) from None


@dataclass
class Retention:
    """The retention rules for a table's metadata."""

    metadata: TableMetadata
    policy: ExpiryPolicy
    now_ms: int
    changes_ms: int | None = None
    """The earliest time at which a snapshot found young so far grows old; set by _is_young()."""

    @cached_property
    def _snapshots(self) -> dict[int, Snapshot]:
        return {s.snapshot_id: s for s in self.metadata.snapshots}

    @cached_property
    def _lines(self) -> dict[str, list[Snapshot]]:
        """The snapshots of each branch, newest first."""
        branches = {n: r for n, r in self.metadata.refs.items() if r.snapshot_ref_type is SnapshotRefType.BRANCH}
        return {name: list(self._line(ref.snapshot_id)) for name, ref in branches.items()}

    def _line(self, head: int) -> Iterator[Snapshot]:
        here = self._snapshots.get(head)
        while here is not None:
            yield here
            here = self._snapshots.get(here.parent_snapshot_id or 0)

    def is_outlived(self, name: str, ref: SnapshotRef) -> bool:
        """Whether a branch or tag is older than its maximum age.

        A reader's tag is as old as its first unread snapshot, so a reader of a seldom-written table keeps its place.
        """
        reads = name.startswith(READER)
        age = _age(ref.max_ref_age_ms) or (self.policy.reader_age if reads else self.policy.ref_age)
        since = self._first_unread(ref) if reads else self._snapshots.get(ref.snapshot_id)
        return name != MAIN_BRANCH and age is not None and since is not None and not self._is_young(since, age)

    def _first_unread(self, ref: SnapshotRef) -> Snapshot | None:
        """Returns the first snapshot that a reader has not read; None if it has read all."""
        unread = self._unread(MAIN_BRANCH, ref)
        # Main was rolled back behind the reader: its own snapshot is the nearest one known.
        if unread is None:
            return self._snapshots.get(ref.snapshot_id)
        return unread[-1] if unread else None

    def _unread(self, branch: str, ref: SnapshotRef) -> list[Snapshot] | None:
        """Returns the branch's snapshots after the reader's, newest first; None if that one is not on the branch."""
        line = self._lines.get(branch, [])
        place = next((n for n, snapshot in enumerate(line) if snapshot.snapshot_id == ref.snapshot_id), None)
        return None if place is None else line[:place]

    def reasons(self, outlived: Collection[str], protected: Collection[int]) -> Iterator[tuple[int, Why]]:
        """Yields each kept snapshot with a reason; some repeatedly.

        outlived: refs that keep nothing. protected: snapshots that runs have pinned.
        """
        refs = {name: ref for name, ref in self.metadata.refs.items() if name not in outlived}
        for name, ref in refs.items():
            if name in self._lines:
                yield from self._of_branch(name, ref)
            elif ref.snapshot_id in self._snapshots:
                yield ref.snapshot_id, Why.TAG
            if name.startswith(READER):
                yield from self._of_reader(ref, refs)
        yield from ((snapshot_id, Why.POSITION) for snapshot_id in carriers(self.metadata))
        yield from ((snapshot_id, Why.PINNED) for snapshot_id in protected if snapshot_id in self._snapshots)
        on_branches = {s.snapshot_id for name in refs for s in self._lines.get(name, ())}
        for snapshot in self.metadata.snapshots:  # rolled back, or on a branch that is gone
            if snapshot.snapshot_id not in on_branches and self._is_young(snapshot, self.policy.age):
                yield snapshot.snapshot_id, Why.YOUNG

    def _of_branch(self, name: str, ref: SnapshotRef) -> Iterator[tuple[int, Why]]:
        line = self._lines[name]
        minimum = ref.min_snapshots_to_keep or self.policy.minimum
        age = _age(ref.max_snapshot_age_ms) or self.policy.age
        # Timestamps come from many clocks. Iceberg's Java stops at the first old one, and removes younger ones behind
        # it.
        young = max((n for n, snapshot in enumerate(line) if self._is_young(snapshot, age)), default=-1)
        for n, snapshot in enumerate(line[: max(1, minimum, young + 1)]):
            yield snapshot.snapshot_id, Why.HEAD if n == 0 else Why.NEWEST if n < minimum else Why.YOUNG

    def _of_reader(self, ref: SnapshotRef, refs: Collection[str]) -> Iterator[tuple[int, Why]]:
        """Yields all snapshots after the reader's, because changes are read snapshot by snapshot."""
        for branch in self._lines.keys() & set(refs):
            for snapshot in self._unread(branch, ref) or ():
                yield snapshot.snapshot_id, Why.UNREAD

    def _is_young(self, snapshot: Snapshot, age: timedelta) -> bool:
        # + 1: a snapshot that is exactly as old as the age is still young.
        ends_ms = snapshot.timestamp_ms + age // timedelta(milliseconds=1) + 1
        if self.now_ms >= ends_ms:
            return False
        self.changes_ms = ends_ms if self.changes_ms is None else min(self.changes_ms, ends_ms)
        return True


def _age(ms: int | None) -> timedelta | None:
    return _duration(ms) if ms else None


def _duration(ms: int) -> timedelta:
    """Iceberg's largest age means forever, and exceeds Python's range."""
    return timedelta(milliseconds=max(-LONGEST_MS, min(ms, LONGEST_MS)))


Kept = Mapping[int, tuple[Why, ...]]
"""Snapshot id → why it stays."""


@dataclass(frozen=True)
class ExpiryPlan:
    """What expires, and why the rest stays."""

    expiry: Expiry
    kept: Kept
    changes_ms: int | None
    """When more may expire by age alone, at the earliest; None: never."""


def plan_expiry(
    table: str, metadata: TableMetadata, policy: ExpiryPolicy, now_ms: int, protected: Collection[int] = ()
) -> ExpiryPlan:
    """Plans to expire all without a reason to stay and, beyond the maximum, those kept only for age.

    Raises MaintenanceRefused if snapshots must not expire or properties can't be read.
    """
    _refuse(table, metadata)
    retention = Retention(metadata, policy.of(table, metadata), now_ms)
    outlived = [name for name, ref in metadata.refs.items() if retention.is_outlived(name, ref)]
    reasons: dict[int, list[Why]] = defaultdict(list)
    for snapshot_id, reason in retention.reasons(outlived, protected):
        reasons[snapshot_id].append(reason)
    kept = {snapshot_id: tuple(found) for snapshot_id, found in reasons.items()}
    gone = ({s.snapshot_id for s in metadata.snapshots} - kept.keys()) | _surplus(metadata, kept, policy.maximum)
    stay = {snapshot_id: found for snapshot_id, found in kept.items() if snapshot_id not in gone}
    return ExpiryPlan(Expiry.of(metadata, gone, outlived), stay, retention.changes_ms)


def _surplus(metadata: TableMetadata, kept: Kept, maximum: int) -> set[int]:
    """Returns the oldest snapshots kept only for their age, as many as exceed the maximum."""
    only_young = [
        s.snapshot_id
        for s in oldest_first(metadata)
        if s.snapshot_id in kept and all(why is Why.YOUNG for why in kept[s.snapshot_id])
    ]
    return set(only_young[: max(0, len(kept) - maximum)])


def _refuse(table: str, metadata: TableMetadata) -> None:
    if metadata.format_version != 2:
        raise MaintenanceRefused(
            f"table {table}: its format version is {metadata.format_version}, expected 2, the only version whose "
            "metadata PyIceberg 0.12 writes in full. Expire its snapshots with Spark"
        )
    if not property_as_bool(metadata.properties, GC_ENABLED, True):
        raise MaintenanceRefused(
            f"table {table}: {GC_ENABLED} is false, so other tables may use its files, and no snapshot was expired. "
            "Set it to true once no other table uses them"
        )
