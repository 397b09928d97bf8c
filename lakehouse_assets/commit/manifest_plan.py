"""A plan of manifests: what one attempt to commit adds, removes, rewrites and carries over.
How it is written is in snapshot.py; how a rewrite's files are chosen in compaction.py, a run's in change.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table


@dataclass
class ManifestPlan:
    """added: entries of the files to add that are not on the table yet; one without a sequence number gets the
    commit's. removed: entries of the files to remove, data and delete files. untouched: manifests that stay as they
    are. kept: live entries that share a manifest with a removed one and move to a new manifest, with the old one.
    rewritten: manifests that were written before, with live entries of manifests that are in none of these. summary:
    what the snapshot says of it.
    """

    added: list[ManifestEntry] = field(default_factory=list)
    removed: list[ManifestEntry] = field(default_factory=list)
    untouched: list[ManifestFile] = field(default_factory=list)
    kept: list[tuple[ManifestFile, list[ManifestEntry]]] = field(default_factory=list)
    rewritten: list[ManifestFile] = field(default_factory=list)
    summary: dict[str, str] = field(default_factory=dict)

    def split(self, manifest: ManifestFile, kept: list[ManifestEntry], removed: Sequence[ManifestEntry]) -> None:
        """Plan a manifest that was read: what of its live entries stays and what goes."""
        self.removed += removed
        if not removed:
            self.untouched.append(manifest)
        elif kept:
            self.kept.append((manifest, kept))


class Removals(Protocol):
    """Chooses among the live data files of a table, for one attempt."""

    def may_be_in(self, manifest: ManifestFile) -> bool:
        """Whether the manifest must be read. False: by its partition summaries it lists no file to remove."""

    def include(self, file: DataFile) -> bool:
        """Whether the file is removed."""

    def check(self) -> None:
        """Called after the last file; raises PublishRefused if the files forbid the change."""


def plan_manifests(table: Table, files: Sequence[DataFile], removals: Removals) -> ManifestPlan:
    """Add these files to the current snapshot and remove those that ``removals`` includes.

    Each manifest is read once, and only if it may list a file to remove. A file that was published with a part of its
    run stays as it is: if a snapshot removed it and added it again, expiring that snapshot would delete it.
    Raises PublishRefused as ``removals.check()`` does.
    """
    plan = ManifestPlan()
    arriving = {file.file_path for file in files}
    for manifest in live_manifests(table):
        if manifest.content is not ManifestContent.DATA or not removals.may_be_in(manifest):
            plan.untouched.append(manifest)
            continue
        removed: list[ManifestEntry] = []
        kept: list[ManifestEntry] = []
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            path = entry.data_file.file_path
            stays = path in arriving or not removals.include(entry.data_file)
            arriving.discard(path)
            (kept if stays else removed).append(entry)
        plan.split(manifest, kept, removed)
    removals.check()
    plan.added = [arrival(file) for file in files if file.file_path in arriving]
    return plan


def live_manifests(table: Table) -> list[ManifestFile]:
    """The manifests of the current snapshot, without those that only list deletions of an earlier one: these are left
    out of the next snapshot, as Iceberg's Java does."""
    snapshot = table.metadata.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot else []
    return [m for m in manifests if m.has_added_files() or m.has_existing_files()]


def arrival(file: DataFile, sequence_number: int | None = None) -> ManifestEntry:
    """The entry of a file to add. sequence_number: the data's; None for the commit's."""
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED,
        snapshot_id=None,
        sequence_number=sequence_number,
        file_sequence_number=None,
        data_file=file,
    )
