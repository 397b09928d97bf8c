"""Rewrites manifests, and removes delete files that apply to nothing; reads metadata only.

Each attempt to commit checks again what still fits the table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from uuid import UUID

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from lakehouse_assets.commit.change import Publishable
from lakehouse_assets.commit.commit_part import SummaryEntries
from lakehouse_assets.commit.deletes import DataFiles
from lakehouse_assets.commit.fork import refuse_other_versions
from lakehouse_assets.commit.landing import NothingLeft
from lakehouse_assets.commit.manifest_merge import ManifestMerge
from lakehouse_assets.commit.manifests import Entries, ManifestPlan, live_manifests
from lakehouse_assets.commit.positions import PositionUpdate
from lakehouse_assets.commit.publish import Published, publish
from lakehouse_assets.commit.tokens import RunToken, find_published


@dataclass(frozen=True)
class ManifestsSize:
    """Live manifests and their bytes."""

    manifests: int = 0
    size: int = 0

    @classmethod
    def of(cls, manifests: Sequence[ManifestFile]) -> ManifestsSize:
        """Returns their totals."""
        return cls(len(manifests), sum(manifest.manifest_length for manifest in manifests))


@dataclass(frozen=True)
class ManifestsReport:
    """The result of a rewrite of manifests."""

    snapshot_id: int | None
    """None if nothing was worth it or landed."""
    before: ManifestsSize = ManifestsSize()
    """Before the commit; without one, the current manifests."""
    replaced: ManifestsSize = ManifestsSize()
    created: ManifestsSize = ManifestsSize()
    entries: int = 0
    """In the created manifests."""
    dropped: int = 0
    """Manifests not replaced, because writers changed them, or one that they were to be merged with."""

    @property
    def after(self) -> ManifestsSize:
        """Live manifests after the commit; as ``before`` without one."""
        return ManifestsSize(
            self.before.manifests - self.replaced.manifests + self.created.manifests,
            self.before.size - self.replaced.size + self.created.size,
        )


def rewrite_manifests(
    catalog: Catalog, identifier: str, token: RunToken, summary: Mapping[str, str] | None = None
) -> ManifestsReport:
    """Lists a table's live files in fewer manifests, each of few partitions.

    Entries change only in status. Manifests that writers add meanwhile are carried over; a merge with one that a writer
    replaces is dropped. A second call with the token changes nothing. Raises as publish(), and UnreadableMetadata for a
    torn manifest.
    """
    table = catalog.load_table(identifier)
    earlier = find_published(identifier, table.metadata, token.text)
    if earlier is not None:
        return ManifestsReport(earlier)
    rewrite = _ManifestRewrite(table.metadata.table_uuid)
    try:
        parts = [SummaryEntries(summary or {}), PositionUpdate()]
        rewrite.plan(table, ())  # reads and writes all merges, so that failures here aren't the commit's
        snapshot_id = publish(catalog, identifier, rewrite, token, parts).snapshot_id
    except NothingLeft:
        snapshot_id = None
    return rewrite.report(snapshot_id)


@dataclass
class _ManifestRewrite(Publishable):
    table_uuid: UUID
    merge: ManifestMerge = field(default_factory=lambda: ManifestMerge(least=2))
    listed: Sequence[ManifestFile] = ()
    operation = Operation.REPLACE

    def plan(self, table: Table, missing: Collection[str]) -> ManifestPlan:
        refuse_other_versions(table)
        name = ".".join(table.name())
        if table.metadata.table_uuid != self.table_uuid:
            raise self.refused(name, f"it was dropped and created again: UUID {self.table_uuid} before")
        self.listed = live_manifests(table)
        plan = ManifestPlan(untouched=list(self.listed))
        self.merge.apply(table, plan)
        if not plan.rewritten:
            raise NothingLeft(f"table {name}: none of its {len(self.listed)} manifests can be merged")
        return plan

    def report(self, snapshot_id: int | None) -> ManifestsReport:
        """Reports the latest plan, as a read after the commit could fail."""
        landed = self.merge.landed if snapshot_id else []
        replaced = [manifest for each in landed for manifest in each.sources]
        return ManifestsReport(
            snapshot_id,
            before=ManifestsSize.of(self.listed),
            replaced=ManifestsSize.of(replaced),
            created=ManifestsSize.of([manifest for each in landed for manifest in each.written]),
            entries=sum(each.entries for each in landed),
            dropped=sum(len(each.sources) for each in self.merge.merged or ()) - len(replaced),
        )


def remove_dangling_deletes(
    catalog: Catalog, identifier: str, token: RunToken, summary: Mapping[str, str]
) -> tuple[Published | None, int]:
    """Removes delete files that apply to no data file; returns the commit, if any, and their number.

    A position delete file that names one data file dangles if that file is gone or newer, in whichever partition. Any
    other dangles if its partition has no data file old enough. A second call with the token returns 0.

    Raises as publish().
    """
    change = DanglingDeletes()
    try:
        published = publish(catalog, identifier, change, token, [SummaryEntries(summary), PositionUpdate()])
    except NothingLeft:
        return None, 0
    return published, change.found


@dataclass
class DanglingDeletes(Publishable):
    """Removes dangling delete files."""

    found: int = 0
    """At the latest attempt."""
    operation = Operation.REPLACE
    _data: Entries = field(default_factory=lambda: Entries(without_metrics=True))
    # With metrics: the entries that stay must keep them, and their bounds tell which data files they name.
    _deletes: Entries = field(default_factory=Entries)

    def plan(self, table: Table, missing: Collection[str]) -> ManifestPlan:
        """Plans to remove all delete files that dangle now. Raises NothingLeft if none does."""
        refuse_other_versions(table)
        listed = live_manifests(table)
        plan = ManifestPlan(untouched=[m for m in listed if m.content is ManifestContent.DATA])
        deleting = [m for m in listed if m.content is ManifestContent.DELETES]
        # Data manifests take long: don't read them if there is nothing to remove.
        data = self._data.read(table.io, plan.untouched) if deleting else ()
        live = DataFiles(chain.from_iterable(data), table.specs())
        for manifest, entries in zip(deleting, self._deletes.read(table.io, deleting), strict=True):
            plan.split(manifest, entries, lambda entry: not live.any_needs(entry))
        self.found = len(plan.removed)
        if not self.found:
            raise NothingLeft(f"table {'.'.join(table.name())}: each delete file may apply to a live data file")
        return plan
