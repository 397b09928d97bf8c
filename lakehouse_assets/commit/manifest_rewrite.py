"""The change that replaces groups of manifests by others that list the same entries, as one REPLACE snapshot.

Each attempt looks anew which groups still fit the table; the others are dropped. Committing is in publish.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation

from lakehouse_assets.commit.compaction import NothingLeft
from lakehouse_assets.commit.fork import refuse_other_versions
from lakehouse_assets.commit.manifest_plan import ManifestPlan, live_manifests
from lakehouse_assets.errors import PublishRefused

CREATED, REPLACED, KEPT, ENTRIES = "manifests-created", "manifests-replaced", "manifests-kept", "entries-processed"
"""Entries of the snapshot's summary, as Iceberg's Java names them (SnapshotSummary)."""


@dataclass(frozen=True)
class ManifestGroup:
    """Manifests that are replaced together, and those that list the same live entries in their place."""

    replaced: tuple[ManifestFile, ...]
    written: tuple[ManifestFile, ...]
    """The manifests in their place; they are in storage already."""
    entries: int
    """The number of live entries."""


@dataclass
class ManifestRewrite:
    """The change of a rewrite of manifests; see Publishable."""

    groups: Sequence[ManifestGroup]
    table_uuid: UUID
    """The UUID of the table whose manifests they are."""
    listed: Sequence[ManifestFile]
    """The live manifests of the table, as the latest attempt found them."""
    landed: list[ManifestGroup] = field(default_factory=list)
    """The groups that fit the table, as the latest attempt found them."""
    operation = Operation.REPLACE
    after_contention = "The table is as it was; the next rewrite of its manifests begins anew"

    def contradictions(self) -> Iterator[str]:
        """Yields a problem if a manifest is in two groups: its entries would be doubled."""
        paths = Counter(m.manifest_path for group in self.groups for m in (*group.replaced, *group.written))
        if twice := sorted(path for path, count in paths.items() if count > 1):
            yield f"{len(twice)} manifests are replaced or written more than once, such as {twice[0]}"

    def needed(self, now: TableMetadata) -> Collection[DataFile]:
        """Returns no files: those that the entries list stay listed."""
        return ()

    def plan(self, table: Table, missing: Collection[str]) -> ManifestPlan:
        """Plans the groups that can land.

        Raises NothingLeft if none can, PublishRefused if the table was created again or has another format version.
        """
        refuse_other_versions(table)
        name = ".".join(table.name())
        if table.metadata.table_uuid != self.table_uuid:
            raise self.refused(name, f"it was dropped and created again: UUID {self.table_uuid} before")
        self.listed = live_manifests(table)
        there = {manifest.manifest_path for manifest in self.listed}
        self.landed = [group for group in self.groups if there.issuperset(m.manifest_path for m in group.replaced)]
        if not self.landed:
            raise NothingLeft(f"table {name}: writers have replaced manifests of each of the {len(self.groups)} groups")
        return _plan(self.listed, self.landed)

    def refused(self, table: str, problem: str) -> PublishRefused:
        """Makes the error for a problem. It says that the next rewrite begins anew."""
        return PublishRefused(f"table {table}: {problem}. Nothing was changed; the next rewrite begins anew")


def _plan(listed: Sequence[ManifestFile], landed: Sequence[ManifestGroup]) -> ManifestPlan:
    going = {manifest.manifest_path for group in landed for manifest in group.replaced}
    plan = ManifestPlan(
        untouched=[manifest for manifest in listed if manifest.manifest_path not in going],
        rewritten=[manifest for group in landed for manifest in group.written],
    )
    entries = sum(group.entries for group in landed)
    counts = {CREATED: len(plan.rewritten), REPLACED: len(going), KEPT: len(plan.untouched), ENTRIES: entries}
    plan.summary = {name: str(count) for name, count in counts.items()}
    return plan
