"""A plan of manifests: what one attempt to commit adds, removes, rewrites and carries over.

How it is written is in snapshot.py; how a rewrite's files are chosen in land.py, a run's in change.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pyiceberg.manifest import DataFile, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table

from lakehouse_assets.commit.manifest_reader import current_manifests, has_live_files


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
