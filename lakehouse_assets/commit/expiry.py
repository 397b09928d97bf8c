"""Decides which snapshots, branches and tags of a table expire, and for which reasons the others stay.

Pure: from the table's metadata alone. What goes with a snapshot, and the commit, is the business of commit/.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from functools import cached_property
from typing import Any

from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.utils.properties import property_as_bool

from lakehouse_assets.commit.expire_commit import Expiry, oldest_first
from lakehouse_assets.commit.positions import READER, carriers
from lakehouse_assets.errors import MaintenanceRefused

# https://iceberg.apache.org/docs/latest/configuration/#table-behavior-properties; PyIceberg has no constant for it.
MAX_REF_AGE_MS = "history.expire.max-ref-age-ms"
LONGEST_MS = timedelta.max // timedelta(milliseconds=1)
GC_ENABLED = "gc.enabled"


class Why(StrEnum):
    """The reason for which a snapshot is kept."""

    HEAD = "head of a branch"
    TAG = "tagged"
    NEWEST = "among the newest of a branch"
    YOUNG = "younger than the age, or a descendant of one that is"
    UNREAD = "not read yet by a reader"
    POSITION = "says how far the table has read its inputs, or leads to the one that does"
    PINNED = "read by a run that is alive or may be resumed"


@dataclass(frozen=True)
class ExpiryPolicy:
    """The rule for what is kept where branches and tags say nothing else."""

    minimum: int = 10
    """Snapshots of each branch, so that a table written once a month can be rolled back."""
    maximum: int = 1000
    """Snapshots of the table; beyond it, only those stay that are kept for another reason than their age. A commit
    reads and writes all of them: 0.27 s with 100, 0.66 s with 2,000, 2.9 s with 10,000 (measured)."""
    age: timedelta = timedelta(days=5)
    """The age of a snapshot; Iceberg's default of ``history.expire.max-snapshot-age-ms``."""
    reader_age: timedelta = timedelta(days=14)
    """How far a reader may be behind."""
    ref_age: timedelta | None = None
    """The age of a branch or tag; None: for ever."""

    def of(self, table: str, metadata: TableMetadata) -> ExpiryPolicy:
        """Returns the policy of one table: what its properties (``history.expire.*``) say, else this.

        Raises MaintenanceRefused for a property that is no integer. table: its name, for that message.
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
            f"table {table}: property {name} is {value!r}, expected an integer. Set it anew, or unset it to have the "
            "policy's own. No snapshot was expired"
        ) from None


@dataclass
class Retention:
    """The rules of what is kept, applied to one version of a table's metadata."""

    metadata: TableMetadata
    policy: ExpiryPolicy
    """That of the table."""
    now_ms: int
    """Milliseconds since 1970."""

    @cached_property
    def _snapshots(self) -> dict[int, Snapshot]:
        return {s.snapshot_id: s for s in self.metadata.snapshots}

    @cached_property
    def _lines(self) -> dict[str, list[Snapshot]]:
        """The history of each branch, newest first."""
        branches = {n: r for n, r in self.metadata.refs.items() if r.snapshot_ref_type is SnapshotRefType.BRANCH}
        return {name: list(self._line(ref.snapshot_id)) for name, ref in branches.items()}

    def _line(self, head: int) -> Iterator[Snapshot]:
        here = self._snapshots.get(head)
        while here is not None:
            yield here
            here = self._snapshots.get(here.parent_snapshot_id or 0)

    def is_outlived(self, name: str, ref: SnapshotRef) -> bool:
        """Tells whether a branch or tag is older than it may become.

        It is as old as its snapshot. A reader's tag is only as old as the first snapshot that it has not read, so that
        a reader of a table that is seldom written keeps its place.
        """
        reads = name.startswith(READER)
        age = _age(ref.max_ref_age_ms) or (self.policy.reader_age if reads else self.policy.ref_age)
        since = self._first_unread(ref) if reads else self._snapshots.get(ref.snapshot_id)
        return name != MAIN_BRANCH and age is not None and since is not None and not self._is_young(since, age)

    def _first_unread(self, ref: SnapshotRef) -> Snapshot | None:
        unread = self._unread(MAIN_BRANCH, ref)
        if unread is None:  # main was rolled back behind the reader
            return self._snapshots.get(ref.snapshot_id)
        return unread[-1] if unread else None

    def _unread(self, branch: str, ref: SnapshotRef) -> list[Snapshot] | None:
        """Returns the branch's snapshots after the reader's, newest first; None if the reader's is not on it."""
        line = self._lines.get(branch, [])
        place = next((n for n, snapshot in enumerate(line) if snapshot.snapshot_id == ref.snapshot_id), None)
        return None if place is None else line[:place]

    def reasons(self, outlived: Collection[str], protected: Collection[int]) -> Iterator[tuple[int, Why]]:
        """Yields each snapshot that is kept, with a reason; some several times, with different reasons.

        outlived: refs that keep nothing any more. protected: the snapshots that runs have pinned.
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
        for snapshot in self.metadata.snapshots:  # what was rolled back, or was on a branch that is gone
            if snapshot.snapshot_id not in on_branches and self._is_young(snapshot, self.policy.age):
                yield snapshot.snapshot_id, Why.YOUNG

    def _of_branch(self, name: str, ref: SnapshotRef) -> Iterator[tuple[int, Why]]:
        line = self._lines[name]
        minimum = ref.min_snapshots_to_keep or self.policy.minimum
        age = _age(ref.max_snapshot_age_ms) or self.policy.age
        # Times are of many clocks. Iceberg's Java stops at the first old one, and removes younger ones behind it.
        young = max((n for n, snapshot in enumerate(line) if self._is_young(snapshot, age)), default=-1)
        for n, snapshot in enumerate(line[: max(1, minimum, young + 1)]):
            yield snapshot.snapshot_id, Why.HEAD if n == 0 else Why.NEWEST if n < minimum else Why.YOUNG

    def _of_reader(self, ref: SnapshotRef, refs: Collection[str]) -> Iterator[tuple[int, Why]]:
        """Yields all snapshots after the reader's: changes are read from snapshot to snapshot."""
        for branch in self._lines.keys() & set(refs):
            for snapshot in self._unread(branch, ref) or ():
                yield snapshot.snapshot_id, Why.UNREAD

    def _is_young(self, snapshot: Snapshot, age: timedelta) -> bool:
        return timedelta(milliseconds=self.now_ms - snapshot.timestamp_ms) <= age


def _age(ms: int | None) -> timedelta | None:
    return _duration(ms) if ms else None


def _duration(ms: int) -> timedelta:
    """Returns an age that Iceberg has as a 64-bit number, whose largest one means for ever; Python's end before."""
    return timedelta(milliseconds=max(-LONGEST_MS, min(ms, LONGEST_MS)))


Kept = Mapping[int, tuple[Why, ...]]


@dataclass(frozen=True)
class ExpiryPlan:
    """The snapshots, branches and tags that go, and the reasons of those that stay."""

    expiry: Expiry
    """What to commit."""
    kept: Kept
    """The reasons of each snapshot that stays, by its id."""


def plan_expiry(
    table: str, metadata: TableMetadata, policy: ExpiryPolicy, now_ms: int, protected: Collection[int] = ()
) -> ExpiryPlan:
    """Plans what may expire: all that has no reason to stay, and beyond the policy's maximum what only its age keeps.

    table: its name, for messages. now_ms: milliseconds since 1970.
    protected: the snapshots that runs have pinned to read them.
    Raises MaintenanceRefused for a table whose snapshots must not expire, or whose properties can't be read.
    """
    _refuse(table, metadata)
    retention = Retention(metadata, policy.of(table, metadata), now_ms)
    outlived = [name for name, ref in metadata.refs.items() if retention.is_outlived(name, ref)]
    reasons: dict[int, list[Why]] = defaultdict(list)
    for snapshot_id, reason in retention.reasons(outlived, protected):
        reasons[snapshot_id].append(reason)
    kept = {snapshot_id: tuple(found) for snapshot_id, found in reasons.items()}
    gone = {s.snapshot_id for s in metadata.snapshots} - kept.keys() | _surplus(metadata, kept, policy.maximum)
    stay = {snapshot_id: found for snapshot_id, found in kept.items() if snapshot_id not in gone}
    return ExpiryPlan(Expiry.of(metadata, gone, outlived), stay)


def _surplus(metadata: TableMetadata, kept: Kept, maximum: int) -> set[int]:
    """Returns the oldest snapshots that only their age keeps, as many as there are beyond the maximum."""
    only_young = [
        s.snapshot_id
        for s in oldest_first(metadata)
        if s.snapshot_id in kept and all(why is Why.YOUNG for why in kept[s.snapshot_id])
    ]
    return set(only_young[: max(0, len(kept) - maximum)])


def _refuse(table: str, metadata: TableMetadata) -> None:
    if metadata.format_version != 2:
        raise MaintenanceRefused(
            f"table {table}: its format version is {metadata.format_version}, expected 2, the version whose metadata "
            "PyIceberg 0.12 writes in full. Expire its snapshots by Spark"
        )
    if not property_as_bool(metadata.properties, GC_ENABLED, True):
        raise MaintenanceRefused(
            f"table {table}: {GC_ENABLED} is false, so other tables may use its files, and its snapshots stay. Set it "
            "to true where that is no longer so"
        )
