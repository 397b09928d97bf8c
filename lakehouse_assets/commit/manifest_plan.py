"""A plan of manifests: what one attempt to commit adds, removes, rewrites and carries over.

How it is written is in snapshot.py; how a rewrite's files are chosen in land.py, a run's in change.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table

from lakehouse_assets.commit.manifest_reader import current_manifests, has_live_files, live_entries


@dataclass
class ManifestPlan:
    """The manifests and entries of one attempt to commit."""

    added: list[ManifestEntry] = field(default_factory=list)
    """Entries of the files to add that are not on the table yet; one without a sequence number gets the commit's."""
    removed: list[ManifestEntry] = field(default_factory=list)
    """Entries of the data files and delete files to remove."""
    untouched: list[ManifestFile] = field(default_factory=list)
    """Manifests that stay as they are."""
    kept: list[tuple[ManifestFile, list[ManifestEntry]]] = field(default_factory=list)
    """Live entries that share a manifest with a removed one and move to a new manifest, each list with the old
    manifest."""
    rewritten: list[ManifestFile] = field(default_factory=list)
    """Manifests that were written before, with live entries of manifests that are in none of these fields."""
    summary: dict[str, str] = field(default_factory=dict)
    """Further entries of the snapshot's summary."""

    def split(
        self, manifest: ManifestFile, entries: Iterable[ManifestEntry], goes: Callable[[ManifestEntry], bool]
    ) -> None:
        """Plans a manifest that was read: which of its live entries stay, and which go."""
        parts: tuple[list[ManifestEntry], list[ManifestEntry]] = ([], [])
        for entry in entries:
            parts[goes(entry)].append(entry)
        kept, removed = parts
        self.removed += removed
        if not removed:
            self.untouched.append(manifest)
        elif kept:
            self.kept.append((manifest, kept))


class Removals(Protocol):
    """Chooses the files to remove among the live data files of a table, for one attempt."""

    def may_be_in(self, manifest: ManifestFile) -> bool:
        """Tells whether the manifest must be read. If not, it lists no file to remove, by its partition summaries."""

    def include(self, file: DataFile) -> bool:
        """Tells whether the file is removed."""

    def check(self) -> None:
        """Raises PublishRefused if the files forbid the change. It is called after the last file."""


def plan_manifests(table: Table, files: Sequence[DataFile], removals: Removals) -> ManifestPlan:
    """Plans to add these files to the current snapshot and to remove those that ``removals`` includes.

    Each manifest is read once, and only if it may list a file to remove. A file that was published with a part of its
    run stays as it is: if a snapshot removed it and added it again, expiring that snapshot would delete it.
    Raises PublishRefused as ``removals.check()`` does.
    """
    plan = ManifestPlan()
    arriving = {file.file_path for file in files}

    def goes(entry: ManifestEntry) -> bool:
        path = entry.data_file.file_path
        stays = path in arriving or not removals.include(entry.data_file)
        arriving.discard(path)
        return not stays

    for manifest in live_manifests(table):
        if manifest.content is not ManifestContent.DATA or not removals.may_be_in(manifest):
            plan.untouched.append(manifest)
        else:
            plan.split(manifest, live_entries(table.io, manifest), goes)
    removals.check()
    plan.added = [arrival(file) for file in files if file.file_path in arriving]
    return plan


def live_manifests(table: Table) -> list[ManifestFile]:
    """Returns the manifests of the current snapshot, except those that only list deletions of an earlier one.

    These are left out of the next snapshot, as Iceberg's Java does.
    """
    return [manifest for manifest in current_manifests(table) if has_live_files(manifest)]


def arrival(file: DataFile, sequence_number: int | None = None) -> ManifestEntry:
    """Makes the entry of a file to add.

    sequence_number: the data sequence number; None for the commit's.
    """
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED,
        snapshot_id=None,
        sequence_number=sequence_number,
        file_sequence_number=None,
        data_file=file,
    )
