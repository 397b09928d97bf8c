"""Rewriting metadata only: manifests, and delete files that apply to nothing.

Decided by metadata alone, again at each attempt; no data file is opened.
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
    """The number and the size of manifests with live files of one snapshot."""

    manifests: int = 0
    """The number of manifests."""
    size: int = 0
    """The bytes in storage."""

    @classmethod
    def of(cls, manifests: Sequence[ManifestFile]) -> ManifestsSize:
        """Counts these manifests and adds up their lengths."""
        return cls(len(manifests), sum(manifest.manifest_length for manifest in manifests))


@dataclass(frozen=True)
class ManifestsReport:
    """The result of a rewrite of a table's manifests."""

    snapshot_id: int | None
    """The snapshot of the commit; None if nothing was worth it or left to land."""
    before: ManifestsSize = ManifestsSize()
    """The manifests that the commit found; without a commit, those that are there."""
    replaced: ManifestsSize = ManifestsSize()
    """The manifests that the commit replaced."""
    created: ManifestsSize = ManifestsSize()
    """The manifests that are there instead."""
    entries: int = 0
    """The number of live entries in the created manifests."""
    dropped: int = 0
    """The number of manifests that were to be replaced, but writers changed them, or others that go with them,
    meanwhile."""

    @property
    def after(self) -> ManifestsSize:
        """The manifests that are there after the commit; without a commit, the same as ``before``."""
        return ManifestsSize(
            self.before.manifests - self.replaced.manifests + self.created.manifests,
            self.before.size - self.replaced.size + self.created.size,
        )


def rewrite_manifests(
    catalog: Catalog, identifier: str, token: RunToken, summary: Mapping[str, str] | None = None
) -> ManifestsReport:
    """Lists the live files of a table in fewer manifests, each of few partitions.

    Each entry stays as it is but for its status. Manifests that writers add meanwhile are carried over; what goes
    together with one that a writer replaces is dropped. No writer waits: what is merged is written once, before the
    first attempt to commit. token: a second call with it changes nothing. No file is deleted.

    Raises as publish() does, UnreadableMetadata for a torn manifest.
    """
    table = catalog.load_table(identifier)
    earlier = find_published(identifier, table.metadata, token.text)
    if earlier is not None:
        return ManifestsReport(earlier)
    rewrite = _ManifestRewrite(table.metadata.table_uuid)
    try:
        parts = [SummaryEntries(summary or {}), PositionUpdate()]
        rewrite.plan(table, ())  # reads and writes all that is merged: what fails here is no matter of the commit
        snapshot_id = publish(catalog, identifier, rewrite, token, parts).snapshot_id
    except NothingLeft:
        snapshot_id = None
    return rewrite.report(snapshot_id)


@dataclass
class _ManifestRewrite(Publishable):
    """The change of a rewrite of manifests."""

    table_uuid: UUID
    merge: ManifestMerge = field(default_factory=lambda: ManifestMerge(least=2))
    listed: Sequence[ManifestFile] = ()
    """The live manifests of the table, as the latest attempt found them."""
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
        """Reports what the latest attempt planned: what is read after a commit could fail."""
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
    """Commits the removal of delete files that apply to no data file, and returns the commit and how many there were.

    The commit is None, and the number 0, if there are none. Rows stay the same.
    A position delete file that names one data file dangles when that file is gone or newer, by its path, wherever it
    lies; another position delete file, and an equality delete file, when its partition has no data file that is old
    enough.
    token: as for publish(); for a second call with it the number is 0. Raises as publish() does.
    """
    change = DanglingDeletes()
    try:
        published = publish(catalog, identifier, change, token, [SummaryEntries(summary), PositionUpdate()])
    except NothingLeft:
        return None, 0
    return published, change.found


@dataclass
class DanglingDeletes(Publishable):
    """The change that removes delete files."""

    found: int = 0
    """The number of delete files that dangle, as the latest attempt found it."""
    operation = Operation.REPLACE
    _data: Entries = field(default_factory=lambda: Entries(without_metrics=True))
    _deletes: Entries = field(default_factory=Entries)

    def plan(self, table: Table, missing: Collection[str]) -> ManifestPlan:
        """Plans the removal. Raises NothingLeft if no delete file dangles."""
        refuse_other_versions(table)
        listed = live_manifests(table)
        plan = ManifestPlan(untouched=[m for m in listed if m.content is ManifestContent.DATA])
        deleting = [m for m in listed if m.content is ManifestContent.DELETES]
        # The data manifests, which take long, are not read if there is nothing to remove.
        data = self._data.read(table.io, plan.untouched) if deleting else ()
        live = DataFiles(chain.from_iterable(data), table.specs())
        for manifest, entries in zip(deleting, self._deletes.read(table.io, deleting), strict=True):
            plan.split(manifest, entries, lambda entry: not live.any_needs(entry))
        self.found = len(plan.removed)
        if not self.found:
            raise NothingLeft(f"table {'.'.join(table.name())}: each delete file may apply to a live data file")
        return plan
