"""The change that drops live files from a table's metadata that are not in storage, as one DELETE snapshot.

How such files are named is missing.py's; when a person may drop them is decided in maintenance/table_jobs.py.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Self
from uuid import UUID

from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation

from lakehouse_assets.collect.missing import named
from lakehouse_assets.commit.change import Publishable
from lakehouse_assets.commit.deletes import DataFiles
from lakehouse_assets.commit.fork import refuse_other_versions
from lakehouse_assets.commit.landing import NothingLeft
from lakehouse_assets.commit.manifests import Entries, ManifestPlan, live_entries, live_manifests
from lakehouse_assets.commit.staged import missing_files
from lakehouse_assets.errors import MaintenanceRefused, StorageRefused
from lakehouse_assets.storage.place import meanings

DROPPED = "lakehouse.missing-files-dropped"
"""The entry of the snapshot's summary that names what was dropped."""


@dataclass
class DropMissing(Publishable):
    """The change. publish() asks the storage once more for each file, at each attempt; only what is missing goes."""

    uuid: UUID
    """The table's."""
    missing: Sequence[ManifestEntry] = ()
    """The data files and delete files that the first look has missed."""
    dropped: Sequence[ManifestEntry] = ()
    """The files that the latest attempt drops."""
    operation = Operation.DELETE
    consequence = "Nothing was dropped"
    after_contention = "Run the job again: it looks which files are still missing"
    _entries: Entries = field(default_factory=lambda: Entries(without_metrics=True))

    @classmethod
    def look(cls, table: Table) -> Self:
        """Asks the storage for every live file of the table.

        Raises StorageRefused if it can't tell of a file, MaintenanceRefused for a file that may be there under another
        meaning of its name, and as read_manifests().
        """
        change, name = cls(table.metadata.table_uuid), ".".join(table.name())
        read = change._entries.read(table.io, live_manifests(table))
        try:
            gone = missing_files(table.io, [entry.data_file for entry in chain.from_iterable(read)])
        except OSError as error:
            raise StorageRefused(
                f"table {name}: the storage can't tell whether its files are there: {error}. An error never counts as "
                "a missing file, so nothing was dropped. See that the storage answers, then run the job again"
            ) from error
        if unclear := [location for location in gone if len(meanings(location)) > 1]:
            raise MaintenanceRefused(
                f"table {name}: {len(unclear)} of its files were not found and have names that mean different files to "
                f"different clients (# or // in them, say), so they may be there: {unclear[0]}. Nothing was dropped; "
                "replace them by materializing their partitions"
            )
        change.missing = change._without(table, gone).removed
        return change

    def needed(self, now: TableMetadata) -> Collection[DataFile]:
        """Returns what the first look has missed; nothing if the table is another one by now."""
        return [entry.data_file for entry in self.missing] if now.table_uuid == self.uuid else ()

    def plan(self, table: Table, missing: Collection[str]) -> ManifestPlan:
        """Plans to remove the missing files that are live.

        Raises NothingLeft if there are none, PublishRefused if a missing delete file is needed, or the table is another
        one.
        """
        refuse_other_versions(table)
        name = ".".join(table.name())
        if table.metadata.table_uuid != self.uuid:
            raise self.refused(name, f"it was dropped and created again: UUID {self.uuid} before")
        plan = self._without(table, missing)
        if not plan.removed:
            raise NothingLeft(f"table {name}: none of its live files is missing any more")
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
        """Plans the table without these files. Only manifests that list one of them are read with all metrics."""
        plan, paths, listed = ManifestPlan(), frozenset(gone), live_manifests(table)

        def goes(entry: ManifestEntry) -> bool:
            return entry.data_file.file_path in paths

        for manifest, entries in zip(listed, self._entries.read(table.io, listed), strict=True):
            if any(map(goes, entries)):
                plan.split(manifest, live_entries(table.io, manifest), goes)
            else:
                plan.untouched.append(manifest)
        return plan

    def _needed_deletes(self, table: Table, removed: Sequence[ManifestEntry]) -> list[ManifestEntry]:
        """Returns the delete files among the removed that may apply to a data file that stays."""
        deletes = [entry for entry in removed if not is_data(entry)]
        if not deletes:
            return []
        gone = {entry.data_file.file_path for entry in removed}
        read = chain.from_iterable(self._entries.read(table.io, live_manifests(table)))
        staying = (entry for entry in read if is_data(entry) and entry.data_file.file_path not in gone)
        index = DataFiles(staying, table.specs())
        return [entry for entry in deletes if index.any_needs(entry)]


def is_data(entry: ManifestEntry) -> bool:
    """Tells data files from delete files."""
    return entry.data_file.content is DataFileContent.DATA
