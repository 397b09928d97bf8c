"""Landing of rewrites, in units that land whole or not at all.

To land is to reach the table in a commit. A rewrite reads a snapshot, its base, and replaces files by others with the
same rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from lakehouse_assets.commit import deletes
from lakehouse_assets.commit.change import Publishable
from lakehouse_assets.commit.commit_part import SummaryEntries
from lakehouse_assets.commit.deletes import DataFiles
from lakehouse_assets.commit.fork import FORMAT_VERSION
from lakehouse_assets.commit.manifests import (
    Entries,
    ManifestPlan,
    Partition,
    Partitions,
    added_entry,
    live_manifests,
    partition_of,
)
from lakehouse_assets.commit.positions import PositionUpdate
from lakehouse_assets.commit.publish import Published, publish
from lakehouse_assets.commit.tokens import RunToken
from lakehouse_assets.errors import PublishRefused
from lakehouse_assets.wire.work import Digest


@dataclass(frozen=True)
class Proof:
    """Digests of the rows that a rewrite read, and of those read back from what it wrote."""

    before: Digest
    after: Digest

    @property
    def holds(self) -> bool:
        """Whether both digests are the same."""
        return self.before == self.after

    def __str__(self) -> str:
        if self.holds:
            return f"{self.before.rows} rows, the same before and after"
        if self.before.rows == self.after.rows:
            return f"{self.before.rows} rows before and after, but not the same rows"
        return f"{self.before.rows} rows before, {self.after.rows} after"


@dataclass(frozen=True)
class ReadSnapshot:
    """The snapshot that a rewrite read."""

    metadata: TableMetadata
    snapshot: Snapshot

    @property
    def sequence_number(self) -> int:
        """The added files' data sequence number: later deletes apply to them, already applied ones don't."""
        return self.snapshot.sequence_number or 0


@dataclass(frozen=True)
class RewriteUnit:
    """The files of one partition of a spec, and their replacements; of several if files move to another spec."""

    name: str
    """For people; empty for a whole table."""
    base: ReadSnapshot
    removed: tuple[ManifestEntry, ...]
    """Entries of data files at the base."""
    deletes: tuple[ManifestEntry, ...]
    """Entries at the base that may apply to ``removed``."""
    added: tuple[DataFile, ...]
    """Empty if all rows were deleted."""
    proof: Proof

    def __post_init__(self) -> None:
        assert self.removed, "a rewrite replaces something"

    @property
    def partitions(self) -> set[Partition]:
        """The old and new partitions of its files."""
        return {partition_of(e) for e in self.removed} | {(f.spec_id, f.partition) for f in self.added}

    @property
    def files(self) -> list[DataFile]:
        """All its data files."""
        return [*(entry.data_file for entry in self.removed), *self.added]


class LandingRule(StrEnum):
    """The reasons not to land a unit."""

    UNPROVED = "unproved"
    """Its rows are not those that it read."""
    EVOLVED = "evolved"
    """The table, its columns or its specs no longer fit."""
    MISSING = "missing"
    """One of its files is not in storage."""
    LANDED = "landed"
    """An added file is already on the table."""
    CHANGED = "changed"
    """A removed file is gone from the table, or came back as new."""
    DELETED = "deleted"
    """Rows of removed files were deleted since the base, or rows that it moves would be in their new partition."""
    RESTORED = "restored"
    """Deletes that it applied are no longer on the table."""


@dataclass(frozen=True)
class Dropped:
    """Why a unit did not land."""

    rule: LandingRule
    reason: str


@dataclass(frozen=True)
class CurrentFiles:
    """The live entries of the units' partitions, by path."""

    specs: Mapping[int, PartitionSpec]
    data: Mapping[str, ManifestEntry]
    deletes: Mapping[str, ManifestEntry]


def by_metadata(unit: RewriteUnit, now: TableMetadata) -> Dropped | None:
    """Returns why the proof or metadata forbids landing, if so."""
    if unproved := next(_unproved(unit), None):
        return Dropped(LandingRule.UNPROVED, unproved)
    if evolved := next(_evolved(unit, now), None):
        return Dropped(LandingRule.EVOLVED, evolved)
    return None


def by_files(unit: RewriteUnit, head: CurrentFiles, missing: Collection[str]) -> Dropped | None:
    """Returns why the unit can't land on the head, if so."""
    if gone := [file.file_path for file in unit.files if file.file_path in missing]:
        return Dropped(LandingRule.MISSING, f"{len(gone)} of its files are not in storage, such as {gone[0]}")
    if there := [file.file_path for file in unit.added if file.file_path in head.data]:
        return Dropped(
            LandingRule.LANDED, f"{len(there)} of the files it adds are already in the table, such as {there[0]}"
        )
    if changed := [entry for entry in unit.removed if not _is_live(entry, head)]:
        return Dropped(
            LandingRule.CHANGED, f"{len(changed)} of the files it replaces were replaced or removed meanwhile"
        )
    if restored := [path for path in map(_path, unit.deletes) if path not in head.deletes]:
        return Dropped(LandingRule.RESTORED, f"{len(restored)} delete files that it applied are no longer in the table")
    if deleting := next(_new_deletes(unit, head), None):
        return Dropped(LandingRule.DELETED, f"rows of files it replaces were deleted meanwhile, by {deleting}")
    if reaching := next(_deletes_elsewhere(unit, head), None):
        return Dropped(
            LandingRule.DELETED, f"it moves rows to a partition in which rows were deleted meanwhile, by {reaching}"
        )
    return None


def _unproved(unit: RewriteUnit) -> Iterator[str]:
    if not unit.proof.holds:
        yield f"the rewrite changed rows: {unit.proof}"
    if (written := sum(file.record_count for file in unit.added)) != unit.proof.after.rows:
        yield (
            f"the files it adds have {written} rows according to their metadata, "
            f"but {unit.proof.after.rows} were read back"
        )
    replaced = sum(entry.data_file.record_count for entry in unit.removed)
    if replaced != unit.proof.before.rows and not unit.deletes:  # with deletes, fewer rows are read
        yield (
            f"the files it replaces have {replaced} rows according to their metadata, but "
            f"{unit.proof.before.rows} were read"
        )


def _evolved(unit: RewriteUnit, now: TableMetadata) -> Iterator[str]:
    then = unit.base.metadata
    if now.table_uuid != then.table_uuid:
        yield f"the table was dropped and created again: its UUID was {then.table_uuid} and is now {now.table_uuid}"
        return
    if now.format_version != FORMAT_VERSION:
        yield f"the table's format version is {now.format_version}, not {FORMAT_VERSION}"
    specs = now.specs()
    if unknown := {spec_id for spec_id, _ in unit.partitions if specs.get(spec_id) != then.specs().get(spec_id)}:
        yield f"the table no longer has the partition specs {sorted(unknown)}"
    types = {f.field_id: f.field_type for f in now.schema().fields}
    if changed := [f.name for f in then.schema().fields if types.get(f.field_id) != f.field_type]:
        yield f"these columns were dropped or changed meanwhile: {', '.join(changed)}"
    known = {f.field_id for f in then.schema().fields}
    new = [f for f in now.schema().fields if f.field_id not in known]
    if added := [f.name for f in new if f.required or f.initial_default is not None]:
        yield f"these columns, required or with a default, were added meanwhile: {', '.join(added)}"


def _is_live(then: ManifestEntry, head: CurrentFiles) -> bool:
    """Whether the table has the file as at the base: one that came back as newer has its deleted rows back."""
    now = head.data.get(_path(then))
    return now is not None and deletes.sequence(now) == deletes.sequence(then)


def _new_deletes(unit: RewriteUnit, head: CurrentFiles) -> Iterator[str]:
    """Yields delete files whose deletes a landing would undo."""
    # The rewrite has not applied them, and readers would not apply them to the added files: position deletes name the
    # removed files, equality deletes need a higher sequence number than the added files' (the base's), and equality
    # deletes of one partition do not reach rows that have moved to another.
    applied = set(map(_path, unit.deletes))
    moved, replaced = _moves(unit), DataFiles(unit.removed, head.specs)
    for path, delete in head.deletes.items():
        if path in applied or not replaced.any_needs(delete):
            continue
        newer = deletes.sequence(delete) > unit.base.sequence_number
        if deletes.is_position(delete) or not newer or (moved and not deletes.is_global(delete, head.specs)):
            yield path


def _deletes_elsewhere(unit: RewriteUnit, head: CurrentFiles) -> Iterator[str]:
    """Yields equality deletes that would newly apply to moved rows.

    Position deletes name other files; global equality deletes applied before the move, too.
    """
    if not _moves(unit):
        return
    added = DataFiles((added_entry(file, unit.base.sequence_number) for file in unit.added), head.specs)
    for path, delete in head.deletes.items():
        of_partition = not (deletes.is_position(delete) or deletes.is_global(delete, head.specs))
        if of_partition and added.any_needs(delete):
            yield path


def _moves(unit: RewriteUnit) -> bool:
    """Whether the unit adds files to a partition from which it removes none."""
    return not {(file.spec_id, file.partition) for file in unit.added} <= set(map(partition_of, unit.removed))


def _path(entry: ManifestEntry) -> str:
    return entry.data_file.file_path


class NothingLeft(PublishRefused):
    """Nothing is left to commit, mostly because others changed the files."""


@dataclass
class Compaction(Publishable):
    """The change of a rewrite."""

    units: Sequence[RewriteUnit]
    entries: Entries = field(default_factory=Entries)
    """The manifests read so far: a later attempt reads only new ones."""
    dropped: dict[int, Dropped] = field(default_factory=dict)
    """Why units did not land at the latest attempt, by the unit's index."""
    operation = Operation.REPLACE

    def needed(self, now: TableMetadata) -> Collection[DataFile]:
        """Returns the files of units that fit the metadata."""
        fit = [unit for unit in self.units if by_metadata(unit, now) is None]
        return [file for unit in fit for file in unit.files]

    def plan(self, table: Table, missing: Collection[str]) -> ManifestPlan:
        """Plans the units that can land. Raises NothingLeft if none can, PublishRefused if two claim the same file."""
        paths = Counter(file.file_path for unit in self.units for file in unit.files)
        if twice := sorted(path for path, count in paths.items() if count > 1):  # each fits, so both would land
            problem = f"{len(twice)} files are removed or added more than once, such as {twice[0]}"
            raise self.refused(".".join(table.name()), problem)
        reasons = [by_metadata(unit, table.metadata) for unit in self.units]
        fit = [unit for unit, reason in zip(self.units, reasons, strict=True) if reason is None]
        listed = _Listed.of(table, fit, self.entries)
        gone = frozenset(missing)
        head = listed.head(table.metadata.specs())
        reasons = [r or by_files(u, head, gone) for u, r in zip(self.units, reasons, strict=True)]
        self.dropped = {n: reason for n, reason in enumerate(reasons) if reason}
        if landed := [unit for unit, reason in zip(self.units, reasons, strict=True) if reason is None]:
            return listed.plan(landed, head)
        raise NothingLeft(
            f"table {'.'.join(table.name())}: none of {len(self.units)} rewritten partitions can still land: "
            f"{'; '.join(sorted({d.reason for d in self.dropped.values()}))}"
        )


@dataclass(frozen=True)
class _Listed:
    """The table's live manifests, with the entries of those that concern the units."""

    read: list[tuple[ManifestFile, list[ManifestEntry]]]
    """Manifests that may list files of the units."""
    others: list[ManifestFile]
    """All other live manifests."""

    @classmethod
    def of(cls, table: Table, units: Sequence[RewriteUnit], entries: Entries) -> _Listed:
        partitions = Partitions(table.metadata, chain.from_iterable(unit.partitions for unit in units))
        oldest = min((unit.base.sequence_number for unit in units), default=0)
        chosen: list[ManifestFile] = []
        others: list[ManifestFile] = []
        for manifest in live_manifests(table):
            # By the format, a delete file lies in its data files' partition; new ones are checked wherever they lie.
            new = manifest.content is ManifestContent.DELETES and manifest.sequence_number > oldest
            relevant = bool(units) and (new or partitions.may_be_in(manifest) or _is_global(manifest, table.specs()))
            (chosen if relevant else others).append(manifest)
        return cls(list(zip(chosen, entries.read(table.io, chosen), strict=True)), others)

    def head(self, specs: Mapping[int, PartitionSpec]) -> CurrentFiles:
        data: dict[str, ManifestEntry] = {}
        deleting: dict[str, ManifestEntry] = {}
        for manifest, entries in self.read:
            kind = data if manifest.content is ManifestContent.DATA else deleting
            kind |= {entry.data_file.file_path: entry for entry in entries}
        return CurrentFiles(specs, data, deleting)

    def plan(self, landed: Sequence[RewriteUnit], head: CurrentFiles) -> ManifestPlan:
        added = [added_entry(file, unit.base.sequence_number) for unit in landed for file in unit.added]
        going = {entry.data_file.file_path for unit in landed for entry in unit.removed}
        staying = [entry for path, entry in head.data.items() if path not in going]
        going |= _superfluous(landed, staying, added, head)
        plan = ManifestPlan(added=added, untouched=list(self.others))
        for manifest, entries in self.read:
            plan.split(manifest, entries, lambda entry: entry.data_file.file_path in going)
        return plan


def _is_global(manifest: ManifestFile, specs: Mapping[int, PartitionSpec]) -> bool:
    return manifest.content is ManifestContent.DELETES and specs[manifest.partition_spec_id].is_unpartitioned()


def _superfluous(
    landed: Sequence[RewriteUnit], staying: Sequence[ManifestEntry], added: Sequence[ManifestEntry], head: CurrentFiles
) -> set[str]:
    """Returns delete files that the landed units applied and that no remaining file needs.

    A delete file that may also apply elsewhere stays: without it, deleted rows would come back.
    """
    looked_at = set(chain.from_iterable(unit.partitions for unit in landed))
    candidates = {entry.data_file.file_path: entry for unit in landed for entry in unit.deletes}
    # Position deletes name files that were in the table when they were written. Added files are newer than the
    # position deletes, although their sequence number, the base's, does not show it.
    staying_files, all_files = DataFiles(staying, head.specs), DataFiles([*staying, *added], head.specs)
    return {
        path
        for path, delete in candidates.items()
        if partition_of(delete) in looked_at
        # A global delete file also applies to files of other specs, which were not all looked at.
        and not (deletes.is_global(delete, head.specs) and len(head.specs) > 1)
        and not (staying_files if deletes.is_position(delete) else all_files).any_needs(delete)
    }


EARLIER = Dropped(LandingRule.CHANGED, "another call with the same token has already landed; see its report")


@dataclass(frozen=True)
class Landing:
    """The result of land()."""

    published: Published | None
    """None if nothing landed."""
    units: tuple[tuple[RewriteUnit, Dropped | None], ...]
    """Each with the reason if it did not land."""


def land(
    catalog: Catalog,
    identifier: str,
    units: Sequence[RewriteUnit],
    token: RunToken,
    summary: Mapping[str, str],
    *,
    entries: Entries | None = None,
) -> Landing:
    """Commits the units that still fit the table as one REPLACE snapshot.

    summary: entries for its summary. entries: manifests that were read before.

    A second call with the token changes nothing and reports no unit as landed. If an attempt committed but its answer
    was lost, the reasons may not match the snapshot. Raises as publish(); PublishRefused also if two units claim the
    same file.
    """
    if not units:
        return Landing(None, ())
    compaction = Compaction(units, entries or Entries())
    try:
        # PositionUpdate() copies how far the table has read its inputs.
        published = publish(catalog, identifier, compaction, token, [SummaryEntries(summary), PositionUpdate()])
    except NothingLeft:
        published = None
    earlier = published is not None and published.repeated
    reasons = [EARLIER if earlier else compaction.dropped.get(n) for n in range(len(units))]
    return Landing(published, tuple(zip(units, reasons, strict=True)))
