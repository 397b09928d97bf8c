"""Finds live files missing from storage, and drops them from the metadata."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Self
from uuid import UUID

from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation

from lakehouse_assets.commit.change import Publishable
from lakehouse_assets.commit.deletes import DataFiles
from lakehouse_assets.commit.fork import refuse_other_versions
from lakehouse_assets.commit.landing import NothingLeft
from lakehouse_assets.commit.manifests import (
    Entries,
    ManifestPlan,
    live_entries,
    live_manifests,
    partition_of,
    partition_paths,
)
from lakehouse_assets.commit.staged import missing_files
from lakehouse_assets.commit.tokens import RUN_ID
from lakehouse_assets.errors import MaintenanceRefused, StorageRefused
from lakehouse_assets.maintenance.collect.needed import digest, without_links
from lakehouse_assets.maintenance.collect.trash import Trash
from lakehouse_assets.storage.place import aliases, place_of

EXAMPLES = 10
"""The most partitions that a message names."""
RESTORE, DROP_MISSING = "lakehouse_restore", "lakehouse_drop_missing"


@dataclass
class Unseen:
    """The live files that a listing has not shown."""

    table: Table
    _entries: dict[bytes, ManifestEntry] = field(default_factory=dict)
    """By digest of the file's place, without links."""

    @classmethod
    def of(cls, table: Table) -> Unseen:
        """Begins with all live files of the table. Raises as read_manifests()."""
        read = Entries(without_metrics=True).read(table.io, live_manifests(table))
        found = (entry for entries in read for entry in entries)
        return cls(table, {digest(without_links(place_of(e.data_file.file_path))): e for e in found})

    def saw(self, place_digest: bytes) -> None:
        """Removes a listed file."""
        self._entries.pop(place_digest, None)

    def problem(self, trashes: Callable[[], Iterable[Trash]]) -> str | None:
        """Describes the missing files with a cure, or returns None. Raises OSError and StorageRefused.

        Opens unlisted files: they may be newer than the listing, or outside the folders.
        """
        by_path = {entry.data_file.file_path: entry for entry in self._entries.values()}
        gone = missing_files(self.table.io, [entry.data_file for entry in by_path.values()])
        if not gone:
            return None
        back = len(in_trash(trashes(), gone))
        again = "materialize these partitions again, which replaces the files"
        cure = again.capitalize()
        if back:
            cure = f"The trash has {back} of them: bring them back with the job {RESTORE}. Otherwise, {again}"
        return (
            f"table {'.'.join(self.table.name())}: {len(gone)} of its live files are not in storage, and reading their "
            f"partitions fails: {named(self.table, [by_path[location] for location in gone])}. Something other than "
            f"this collector deleted them. {cure}. If their rows can't be computed again, the job {DROP_MISSING} drops "
            "the files from the metadata: then the partitions can be read, without these rows"
        )


def in_trash(trashes: Iterable[Trash], locations: Iterable[str]) -> set[str]:
    """Returns the restorable locations. Raises StorageRefused and UnknownStorage."""
    held = {place for trash in trashes for place in trash.held()}
    return {location for location in locations if without_links(place_of(location)) in held}


def named(table: Table, entries: Iterable[ManifestEntry]) -> str:
    """Names files by partition and run, for the first EXAMPLES partitions."""
    partitions: dict[str, list[ManifestEntry]] = defaultdict(list)
    name_of = partition_name(table.metadata)
    for entry in entries:
        partitions[name_of(entry)].append(entry)
    texts = [_named(table.metadata, partition, found) for partition, found in sorted(partitions.items())]
    more = f" and {len(texts) - EXAMPLES} more partitions" if len(texts) > EXAMPLES else ""
    return f"{'; '.join(texts[:EXAMPLES])}{more}"


def partition_name(metadata: TableMetadata) -> Callable[[ManifestEntry], str]:
    """Returns a function that names an entry's partition."""
    path_of = partition_paths(metadata)
    return lambda entry: path_of(partition_of(entry)) or "the whole table"


def _named(metadata: TableMetadata, partition: str, entries: list[ManifestEntry]) -> str:
    runs = {run_of(metadata, entry) for entry in entries}
    files = f"{len(entries)} files, such as {entries[0].data_file.file_path}" if len(entries) > 1 else ""
    written = f"written by {', '.join(sorted(runs))}"
    return f"{partition} ({files or entries[0].data_file.file_path}, {written})"


def run_of(metadata: TableMetadata, entry: ManifestEntry) -> str:
    """Names the run that wrote a file, else the snapshot."""
    snapshot = metadata.snapshot_by_id(entry.snapshot_id) if entry.snapshot_id is not None else None
    run = snapshot.summary[RUN_ID] if snapshot and snapshot.summary else None
    return f"run {run}" if run else f"snapshot {entry.snapshot_id}"


DROPPED = "lakehouse.missing-files-dropped"
"""The summary entry that names the dropped files."""


@dataclass
class DropMissing(Publishable):
    """Drops missing files. At each attempt, publish() asks the storage again for the files of needed()."""

    uuid: UUID
    missing: Sequence[ManifestEntry] = ()
    """Missing at the first look."""
    dropped: Sequence[ManifestEntry] = ()
    """By the latest attempt."""
    operation = Operation.DELETE
    consequence = "Nothing was dropped"
    after_contention = "Run the job again: it checks which files are still missing"
    _entries: Entries = field(default_factory=lambda: Entries(without_metrics=True))

    @classmethod
    def look(cls, table: Table) -> Self:
        """Asks the storage for every live file of the table.

        Raises StorageRefused if the storage gives no answer, MaintenanceRefused if a file may exist under another
        reading of its name, and as read_manifests().
        """
        change, name = cls(table.metadata.table_uuid), ".".join(table.name())
        read = change._entries.read(table.io, live_manifests(table))
        try:
            gone = missing_files(table.io, [entry.data_file for entry in chain.from_iterable(read)])
        except OSError as error:
            raise StorageRefused(
                f"table {name}: the storage can't tell whether its files are there: {error}. An error never counts as "
                "a missing file, so nothing was dropped. Make sure that the storage answers, then run the job again"
            ) from error
        if unclear := [location for location in gone if len(aliases(location)) > 1]:
            raise MaintenanceRefused(
                f"table {name}: {len(unclear)} of its files were not found and have names that mean different files to "
                f"different clients (# or // in them, say), so they may be there: {unclear[0]}. Nothing was dropped; "
                "replace them by materializing their partitions"
            )
        change.missing = change._without(table, gone).removed
        return change

    def needed(self, now: TableMetadata) -> Collection[DataFile]:
        """Returns the missing files; none if the table was replaced."""
        return [entry.data_file for entry in self.missing] if now.table_uuid == self.uuid else ()

    def plan(self, table: Table, missing: Collection[str]) -> ManifestPlan:
        """Plans to remove the files that are still missing and live.

        Raises NothingLeft without any, PublishRefused if a missing delete file is needed or the table was replaced.
        """
        refuse_other_versions(table)
        name = ".".join(table.name())
        if table.metadata.table_uuid != self.uuid:
            raise self.refused(name, f"it was dropped and created again: UUID {self.uuid} before")
        plan = self._without(table, missing)
        if not plan.removed:
            raise NothingLeft(f"table {name}: none of its live files is missing now")
        if needed := self._needed_deletes(table, plan.removed):
            raise self.refused(
                name,
                f"{len(needed)} of the missing files are delete files of data files that are there, and without them "
                f"deleted rows would come back: {named(table, needed)}. Materialize these partitions, which replaces "
                "the data files, then run the job again; or roll the table back to a snapshot before these deletes",
            )
        self.dropped = plan.removed
        plan.summary[DROPPED] = named(table, self.dropped)
        return plan

    def _without(self, table: Table, gone: Collection[str]) -> ManifestPlan:
        plan, paths, listed = ManifestPlan(), frozenset(gone), live_manifests(table)

        def goes(entry: ManifestEntry) -> bool:
            return entry.data_file.file_path in paths

        for manifest, entries in zip(listed, self._entries.read(table.io, listed), strict=True):
            if any(map(goes, entries)):
                # Read again with metrics, which the entries that stay must keep.
                plan.split(manifest, live_entries(table.io, manifest), goes)
            else:
                plan.untouched.append(manifest)
        return plan

    def _needed_deletes(self, table: Table, removed: Sequence[ManifestEntry]) -> list[ManifestEntry]:
        deletes = [entry for entry in removed if not is_data(entry)]
        if not deletes:
            return []
        gone = {entry.data_file.file_path for entry in removed}
        read = chain.from_iterable(self._entries.read(table.io, live_manifests(table)))
        staying = (entry for entry in read if is_data(entry) and entry.data_file.file_path not in gone)
        index = DataFiles(staying, table.specs())
        return [entry for entry in deletes if index.any_needs(entry)]


def is_data(entry: ManifestEntry) -> bool:
    """Whether it lists a data file."""
    return entry.data_file.content is DataFileContent.DATA
