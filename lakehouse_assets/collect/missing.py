"""Finds live files that are not in storage: somebody else deleted them, and every reader of their partitions fails.

Files that are there and that nobody needs are judge.py's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pyiceberg.manifest import ManifestEntry
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.collect.reachable import digest, without_links
from lakehouse_assets.collect.trash import Trash
from lakehouse_assets.commit.manifests import Entries, live_manifests, partition_of, partition_paths
from lakehouse_assets.commit.staged import missing_files
from lakehouse_assets.storage.place import place_of

EXAMPLES = 10
"""The number of partitions that a message names."""
RUN_ID = "lakehouse.run-id"
RESTORE, DROP_MISSING = "lakehouse_restore", "lakehouse_drop_missing"
"""The jobs that bring files back, and that drop missing ones from the metadata (maintenance/table_jobs.py)."""


@dataclass
class Unseen:
    """The live files of a table's current snapshot that a listing has not shown so far."""

    table: Table
    _entries: dict[bytes, ManifestEntry] = field(default_factory=dict)

    @classmethod
    def of(cls, table: Table) -> Unseen:
        """Begins with all of them. Raises as read_manifests()."""
        read = Entries(without_metrics=True).read(table.io, live_manifests(table))
        found = (entry for entries in read for entry in entries)
        return cls(table, {digest(without_links(place_of(e.data_file.file_path))): e for e in found})

    def saw(self, of_place: bytes) -> None:
        """Takes out the file at the place with this digest, which was listed."""
        self._entries.pop(of_place, None)

    def problem(self, trashes: Callable[[], Iterable[Trash]]) -> str | None:
        """Says which files are missing, by partition and run, and what to do; None where all are there.

        Each file that was not listed is opened: it may have been written since, or lie outside of the folders.
        trashes: finds where files may have gone. Raises OSError and StorageRefused.
        """
        by_path = {entry.data_file.file_path: entry for entry in self._entries.values()}
        gone = missing_files(self.table.io, [entry.data_file for entry in by_path.values()])
        if not gone:
            return None
        back = len(in_trash(trashes(), gone))
        cure = "Materialize these partitions again, which replaces the files"
        if back:
            cure = f"The trash has {back} of them: bring them back by the job {RESTORE}. Otherwise, m{cure[1:]}"
        return (
            f"table {'.'.join(self.table.name())}: {len(gone)} of its live files are not in storage, and reading their "
            f"partitions fails: {named(self.table, [by_path[location] for location in gone])}. Something else than "
            f"this collector deleted them. {cure}. If their rows can't be computed again, the job {DROP_MISSING} drops "
            "the files from the metadata: the partitions can be read then, without these rows"
        )


def in_trash(trashes: Iterable[Trash], locations: Iterable[str]) -> set[str]:
    """Returns those of the locations whose files can be brought back. Raises StorageRefused and UnknownStorage."""
    held = {place for trash in trashes for place in trash.held()}
    return {location for location in locations if without_links(place_of(location)) in held}


def named(table: Table, entries: Iterable[ManifestEntry]) -> str:
    """Names files by partition, each with the runs that wrote them: those of the first EXAMPLES partitions."""
    partitions: dict[str, list[ManifestEntry]] = defaultdict(list)
    name_of = partition_name(table.metadata)
    for entry in entries:
        partitions[name_of(entry)].append(entry)
    texts = [_named(table.metadata, partition, found) for partition, found in sorted(partitions.items())]
    more = f" and {len(texts) - EXAMPLES} more partitions" if len(texts) > EXAMPLES else ""
    return f"{'; '.join(texts[:EXAMPLES])}{more}"


def partition_name(metadata: TableMetadata) -> Callable[[ManifestEntry], str]:
    """Returns a function that names the partition of a file."""
    path_of = partition_paths(metadata)
    return lambda entry: path_of(partition_of(entry)) or "the whole table"


def _named(metadata: TableMetadata, partition: str, entries: list[ManifestEntry]) -> str:
    runs = {run_of(metadata, entry) for entry in entries}
    files = f"{len(entries)} files, such as {entries[0].data_file.file_path}" if len(entries) > 1 else ""
    written = f"written by {', '.join(sorted(runs))}"
    return f"{partition} ({files or entries[0].data_file.file_path}, {written})"


def run_of(metadata: TableMetadata, entry: ManifestEntry) -> str:
    """Names the run that wrote a file; the snapshot, where that does not say or has expired."""
    snapshot = metadata.snapshot_by_id(entry.snapshot_id) if entry.snapshot_id is not None else None
    run = snapshot.summary[RUN_ID] if snapshot and snapshot.summary else None
    return f"run {run}" if run else f"snapshot {entry.snapshot_id}"
