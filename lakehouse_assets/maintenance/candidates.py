"""What an expiry left without an owner: the files that only expired snapshots needed, found without listing storage.
Manifest lists and manifests are read. Nothing is deleted: whether a candidate goes, the collector decides."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot


@dataclass(frozen=True)
class Candidates:
    """Paths as metadata has them. files: data and delete files. unread: manifest lists and manifests of expired
    snapshots that are gone already, so that what only they named is found by listing alone."""

    manifest_lists: frozenset[str]
    manifests: frozenset[str]
    files: frozenset[str]
    statistics: frozenset[str]
    unread: frozenset[str]


def candidates(before: TableMetadata, after: TableMetadata, io: FileIO) -> Candidates:
    """What metadata ``before`` needed and ``after``, a later version of it, does not.

    Every manifest of every snapshot that is left is read, one at a time, so memory is that of the candidates. Raises
    FileNotFoundError where one of those is missing: then the table is broken, and nothing can be said.
    """
    left = {snapshot.snapshot_id for snapshot in after.snapshots}
    unread: set[str] = set()
    dead = [snapshot for snapshot in before.snapshots if snapshot.snapshot_id not in left]
    lists = {s.manifest_list for s in dead} - {s.manifest_list for s in after.snapshots}
    live_manifests = _manifests(after.snapshots, io, None)
    dead_manifests = {p: m for p, m in _manifests(dead, io, unread).items() if p not in live_manifests}
    files: set[str] = set()
    for manifest in dead_manifests.values():
        files |= _paths(manifest, io, unread)
    for manifest in live_manifests.values():
        if not files:
            break
        files -= _paths(manifest, io, None)
    return Candidates(
        manifest_lists=frozenset(lists),
        manifests=frozenset(dead_manifests),
        files=frozenset(files),
        statistics=frozenset(_statistics(before) - _statistics(after)),
        unread=frozenset(unread),
    )


def _manifests(snapshots: Iterable[Snapshot], io: FileIO, unread: set[str] | None) -> dict[str, ManifestFile]:
    """By path. unread: takes the names of lists that are missing; without it they are an error."""
    found: dict[str, ManifestFile] = {}
    for snapshot in snapshots:
        try:
            found |= {manifest.manifest_path: manifest for manifest in snapshot.manifests(io)}
        except FileNotFoundError:
            if unread is None:
                raise
            unread.add(snapshot.manifest_list)
    return found


def _paths(manifest: ManifestFile, io: FileIO, unread: set[str] | None) -> set[str]:
    """The files that a manifest names: if it is dead, those that its snapshot removed too; else those that are live."""
    try:
        entries = manifest.fetch_manifest_entry(io, discard_deleted=unread is None)
    except FileNotFoundError:
        if unread is None:
            raise
        unread.add(manifest.manifest_path)
        return set()
    return {entry.data_file.file_path for entry in entries}


def _statistics(metadata: TableMetadata) -> set[str]:
    return {s.statistics_path for s in [*metadata.statistics, *metadata.partition_statistics]}
