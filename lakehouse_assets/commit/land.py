"""Lands rewritten units on their table, as one REPLACE snapshot, and tells of each whether it landed or why not.

Each attempt looks anew which units still fit the table; the rules are in landing_rules.py. Committing is in publish.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation

from lakehouse_assets.commit import deletes, landing_rules
from lakehouse_assets.commit.change import Publishable
from lakehouse_assets.commit.deletes import DataFiles
from lakehouse_assets.commit.entries import Entries, Partitions, partition_of
from lakehouse_assets.commit.landing_rules import Dropped, Head, LandingRule, Unit
from lakehouse_assets.commit.manifest_plan import ManifestPlan, arrival, live_manifests
from lakehouse_assets.commit.publish import Published, publish
from lakehouse_assets.commit.tokens import RunToken
from lakehouse_assets.errors import PublishRefused


class NothingLeft(PublishRefused):
    """The error for a change of which nothing is left to commit.

    Nothing is wrong: mostly, others have changed what it would have replaced.
    """


@dataclass
class Compaction(Publishable):
    """The change of a rewrite."""

    units: Sequence[Unit]
    entries: Entries = field(default_factory=Entries)
    """The entries of manifests that were read before."""
    dropped: dict[int, Dropped] = field(default_factory=dict)
    """Why a unit does not land, by its ordinal, as the latest attempt found it."""
    operation = Operation.REPLACE

    def needed(self, now: TableMetadata) -> Collection[DataFile]:
        """Returns the files of all units that fit the table by its metadata."""
        fit = [unit for unit in self.units if landing_rules.by_metadata(unit, now) is None]
        return [file for unit in fit for file in unit.files]

    def plan(self, table: Table, missing: Collection[str]) -> ManifestPlan:
        """Plans the units that can land. Raises NothingLeft if none can, PublishRefused if two claim the same file."""
        paths = Counter(file.file_path for unit in self.units for file in unit.files)
        if twice := sorted(path for path, count in paths.items() if count > 1):  # both would land
            problem = f"{len(twice)} files are removed or added more than once, such as {twice[0]}"
            raise self.refused(".".join(table.name()), problem)
        found = [landing_rules.by_metadata(unit, table.metadata) for unit in self.units]
        fit = [unit for unit, reason in zip(self.units, found, strict=True) if reason is None]
        listed = _Listed.of(table, fit, self.entries)
        gone = frozenset(missing)
        head = listed.head(table.metadata.specs())
        found = [r or landing_rules.by_files(u, head, gone) for u, r in zip(self.units, found, strict=True)]
        self.dropped = {n: reason for n, reason in enumerate(found) if reason}
        if landed := [unit for unit, reason in zip(self.units, found, strict=True) if reason is None]:
            return listed.plan(landed, head)
        raise NothingLeft(
            f"table {'.'.join(table.name())}: none of {len(self.units)} rewritten partitions can land any more: "
            f"{'; '.join(sorted({d.reason for d in self.dropped.values()}))}"
        )


@dataclass(frozen=True)
class _Listed:
    """The manifests of the head."""

    read: list[tuple[ManifestFile, list[ManifestEntry]]]
    """Those that may list a file or a delete file of the units, with their live entries."""
    others: list[ManifestFile]

    @classmethod
    def of(cls, table: Table, units: Sequence[Unit], entries: Entries) -> _Listed:
        partitions = Partitions(table.metadata, chain.from_iterable(unit.partitions for unit in units))
        oldest = min((unit.base.sequence_number for unit in units), default=0)
        chosen: list[ManifestFile] = []
        others: list[ManifestFile] = []
        for manifest in live_manifests(table):
            # The format has a delete file lie where its data files do; new ones are looked at wherever they lie.
            new = manifest.content is ManifestContent.DELETES and manifest.sequence_number > oldest
            relevant = bool(units) and (new or partitions.may_be_in(manifest) or _is_global(manifest, table.specs()))
            (chosen if relevant else others).append(manifest)
        return cls(list(zip(chosen, entries.read(table.io, chosen), strict=True)), others)

    def head(self, specs: Mapping[int, PartitionSpec]) -> Head:
        data: dict[str, ManifestEntry] = {}
        deleting: dict[str, ManifestEntry] = {}
        for manifest, entries in self.read:
            kind = data if manifest.content is ManifestContent.DATA else deleting
            kind |= {entry.data_file.file_path: entry for entry in entries}
        return Head(specs, data, deleting)

    def plan(self, landed: Sequence[Unit], head: Head) -> ManifestPlan:
        added = [arrival(file, unit.base.sequence_number) for unit in landed for file in unit.added]
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
    landed: Sequence[Unit], staying: Sequence[ManifestEntry], added: Sequence[ManifestEntry], head: Head
) -> set[str]:
    """Returns the paths of delete files that the landed units applied and that no file needs which stays or is added.

    A delete file that also applies where not all files were looked at stays: otherwise rows would come back.
    """
    looked_at = set(chain.from_iterable(unit.partitions for unit in landed))
    candidates = {entry.data_file.file_path: entry for unit in landed for entry in unit.deletes}
    # Positions can't be those of a file that was written later, though its sequence number is the base's.
    old, every = DataFiles(staying, head.specs), DataFiles([*staying, *added], head.specs)
    return {
        path
        for path, delete in candidates.items()
        if partition_of(delete) in looked_at
        and not (deletes.is_global(delete, head.specs) and len(head.specs) > 1)
        and not (old if deletes.is_position(delete) else every).any_needs(delete)
    }


EARLIER = Dropped(LandingRule.CHANGED, "another call with the same token has landed: its report says what did")


@dataclass(frozen=True)
class Landing:
    """The result of land()."""

    published: Published | None
    """The commit; None if nothing was left to land."""
    units: tuple[tuple[Unit, Dropped | None], ...]
    """The units in their order, each with the reason why it did not land; None if it did."""


def land(
    catalog: Catalog,
    identifier: str,
    units: Sequence[Unit],
    token: RunToken,
    summary: Mapping[str, str],
    *,
    entries: Entries | None = None,
) -> Landing:
    """Commits the units that still fit the table, as one REPLACE snapshot; no rows change, no file is deleted.

    token: as for publish(); a second call with it changes nothing, and reports of no unit that it landed.
    entries: what was read of the table's manifests before, which need not be read again.
    The reasons are those of the last attempt. Where an attempt before it has landed after all, as its answer was lost,
    they may differ from what is in the snapshot.
    Raises as publish() does; PublishRefused also if two units claim the same file.
    """
    if not units:
        return Landing(None, ())
    compaction = Compaction(units, entries or Entries())
    try:
        published = publish(catalog, identifier, compaction, token, summary)
    except NothingLeft:
        published = None
    earlier = published is not None and published.repeated
    reasons = [EARLIER if earlier else compaction.dropped.get(n) for n in range(len(units))]
    return Landing(published, tuple(zip(units, reasons, strict=True)))
