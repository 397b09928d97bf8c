"""Decides by rules whether a rewritten unit, which lands whole or not at all, lands on what its table is now.

Each rule prevents lost or doubled rows, or deleted ones that come back; the first is the proof that both sides have the
same rows, as multisets. The rules are pure functions: what they need is read in land.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from pyiceberg.manifest import DataFile, ManifestEntry
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from lakehouse_assets.commit import deletes
from lakehouse_assets.commit.deletes import DataFiles
from lakehouse_assets.commit.entries import Partition, partition_of
from lakehouse_assets.commit.fork import FORMAT_VERSION
from lakehouse_assets.commit.manifest_plan import arrival
from lakehouse_assets.wire.work import Digest


@dataclass(frozen=True)
class Proof:
    """The rows that a rewrite read, and those that were read back of what it wrote."""

    before: Digest
    after: Digest

    @property
    def holds(self) -> bool:
        """Whether the rows are the same before and after, as far as their digests tell."""
        return self.before == self.after

    def __str__(self) -> str:
        if self.holds:
            return f"{self.before.rows} rows, the same before and after"
        if self.before.rows == self.after.rows:
            return f"{self.before.rows} rows before and after, but not the same rows"
        return f"{self.before.rows} rows before, {self.after.rows} after"


@dataclass(frozen=True)
class Base:
    """The snapshot of a table that a rewrite read, and the table's metadata at that time."""

    metadata: TableMetadata
    snapshot: Snapshot

    @property
    def sequence_number(self) -> int:
        """The data sequence number of the files that the rewrite adds.

        They take part in every delete that comes later, and in none that was applied.
        """
        return self.snapshot.sequence_number or 0


@dataclass(frozen=True)
class Unit:
    """One partition whose files are all of one spec; or more partitions, where files move to another spec."""

    name: str
    """The partition's path, for people; empty for a whole table."""
    base: Base
    removed: tuple[ManifestEntry, ...]
    """The entries, at the base, of the data files that are replaced."""
    deletes: tuple[ManifestEntry, ...]
    """The entries, at the base, of all delete files that might apply to one of them."""
    added: tuple[DataFile, ...]
    """The files in their place; none if all rows were deleted."""
    proof: Proof

    def __post_init__(self) -> None:
        assert self.removed, "a rewrite replaces something"

    @property
    def partitions(self) -> set[Partition]:
        """The partitions in which its files are and will be."""
        return {partition_of(e) for e in self.removed} | {(f.spec_id, f.partition) for f in self.added}

    @property
    def files(self) -> list[DataFile]:
        """All its data files, removed and added."""
        return [*(entry.data_file for entry in self.removed), *self.added]


class LandingRule(StrEnum):
    """The reasons for which a unit does not land."""

    UNPROVED = "unproved"
    """Its rows are not those that it read."""
    EVOLVED = "evolved"
    """The table is another one, or its columns or specs no longer fit."""
    MISSING = "missing"
    """A file that it removes or adds is not in storage."""
    LANDED = "landed"
    """A file that it adds is on the table already."""
    CHANGED = "changed"
    """A file that it removes is no longer on the table, or came back as new."""
    DELETED = "deleted"
    """Rows of a file that it removes were deleted since, or deletes would reach rows that it moves."""
    RESTORED = "restored"
    """Deletes that it applied are no longer on the table."""


@dataclass(frozen=True)
class Dropped:
    """The reason for which a unit did not land, as a rule and in words."""

    rule: LandingRule
    reason: str


@dataclass(frozen=True)
class Head:
    """The live entries of the table as it is now, by path, for every partition of the units."""

    specs: Mapping[int, PartitionSpec]
    data: Mapping[str, ManifestEntry]
    """The entries of data files."""
    deletes: Mapping[str, ManifestEntry]
    """The entries of delete files."""


def by_metadata(unit: Unit, now: TableMetadata) -> Dropped | None:
    """Returns why the unit can't land, by its proof and the table's metadata alone; None if these don't forbid it."""
    if unproved := next(_unproved(unit), None):
        return Dropped(LandingRule.UNPROVED, unproved)
    if evolved := next(_evolved(unit, now), None):
        return Dropped(LandingRule.EVOLVED, evolved)
    return None


def by_files(unit: Unit, head: Head, missing: Collection[str]) -> Dropped | None:
    """Returns why the unit can't land on the head; None if it can.

    missing: paths that are not in storage.
    """
    if gone := [file.file_path for file in unit.files if file.file_path in missing]:
        return Dropped(LandingRule.MISSING, f"{len(gone)} of its files are not in storage, such as {gone[0]}")
    if there := [file.file_path for file in unit.added if file.file_path in head.data]:
        return Dropped(
            LandingRule.LANDED, f"{len(there)} of the files it adds are on the table already, such as {there[0]}"
        )
    if changed := [entry for entry in unit.removed if not _is_live(entry, head)]:
        return Dropped(
            LandingRule.CHANGED, f"{len(changed)} of the files it replaces were replaced or removed meanwhile"
        )
    if restored := [path for path in map(_path, unit.deletes) if path not in head.deletes]:
        return Dropped(LandingRule.RESTORED, f"{len(restored)} delete files that it applied are no longer on the table")
    if deleting := next(_new_deletes(unit, head), None):
        return Dropped(LandingRule.DELETED, f"rows of files it replaces were deleted meanwhile, by {deleting}")
    if reaching := next(_deletes_elsewhere(unit, head), None):
        return Dropped(LandingRule.DELETED, f"it moves rows to where others were deleted meanwhile, by {reaching}")
    return None


def _unproved(unit: Unit) -> Iterator[str]:
    if not unit.proof.holds:
        yield f"the rewrite changed rows: {unit.proof}"
    if (written := sum(file.record_count for file in unit.added)) != unit.proof.after.rows:
        yield f"the files it adds have {written} rows by their metadata, {unit.proof.after.rows} were read back"
    replaced = sum(entry.data_file.record_count for entry in unit.removed)
    if replaced != unit.proof.before.rows and not unit.deletes:
        yield f"the files it replaces have {replaced} rows by their metadata, {unit.proof.before.rows} were read"


def _evolved(unit: Unit, now: TableMetadata) -> Iterator[str]:
    then = unit.base.metadata
    if now.table_uuid != then.table_uuid:
        yield f"the table was dropped and created again: UUID {then.table_uuid}, now {now.table_uuid}"
        return
    if now.format_version != FORMAT_VERSION:
        yield f"the table's format version is {now.format_version}, not {FORMAT_VERSION}"
    specs = now.specs()
    if unknown := {spec_id for spec_id, _ in unit.partitions if specs.get(spec_id) != then.specs().get(spec_id)}:
        yield f"the table has no partition specs {sorted(unknown)} any more"
    types = {f.field_id: f.field_type for f in now.schema().fields}
    if changed := [f.name for f in then.schema().fields if types.get(f.field_id) != f.field_type]:
        yield f"these columns were dropped or changed meanwhile: {', '.join(changed)}"
    known = {f.field_id for f in then.schema().fields}
    new = [f for f in now.schema().fields if f.field_id not in known]
    if added := [f.name for f in new if f.required or f.initial_default is not None]:
        yield f"these columns were added meanwhile, required or with a default: {', '.join(added)}"


def _is_live(then: ManifestEntry, head: Head) -> bool:
    """Tells whether the file is on the table as the rewrite found it.

    A file that was removed and came back under a new sequence number has rows back that were deleted before.
    """
    now = head.data.get(_path(then))
    return now is not None and deletes.sequence(now) == deletes.sequence(then)


def _new_deletes(unit: Unit, head: Head) -> Iterator[str]:
    """Yields the paths of delete files that the rewrite did not apply and that won't apply to what it adds.

    Equality deletes that are newer than the base delete rows of the added files too, since these have the base's
    sequence number; unless the files move to another spec, whose partitions the deletes do not reach.
    """
    applied = set(map(_path, unit.deletes))
    moved, replaced = _moves(unit), DataFiles(unit.removed, head.specs)
    for path, delete in head.deletes.items():
        if path in applied or not replaced.any_needs(delete):
            continue
        newer = deletes.sequence(delete) > unit.base.sequence_number
        if deletes.is_position(delete) or not newer or (moved and not deletes.is_global(delete, head.specs)):
            yield path


def _deletes_elsewhere(unit: Unit, head: Head) -> Iterator[str]:
    """Yields the paths of equality deletes that would delete rows which they did not reach where these were.

    There are such only where files move to another spec. What is older than the base, or of no partition, holds there
    as it did here.
    """
    if not _moves(unit):
        return
    added = DataFiles((arrival(file, unit.base.sequence_number) for file in unit.added), head.specs)
    for path, delete in head.deletes.items():
        of_partition = not (deletes.is_position(delete) or deletes.is_global(delete, head.specs))
        if of_partition and added.any_needs(delete):
            yield path


def _moves(unit: Unit) -> bool:
    """Tells whether the unit adds files to a partition where it removes none."""
    return not {(file.spec_id, file.partition) for file in unit.added} <= set(map(partition_of, unit.removed))


def _path(entry: ManifestEntry) -> str:
    return entry.data_file.file_path
