"""Counts the rows of a snapshot that readers get: Iceberg's ``total-records`` counts those that are deleted as well.

Read are the list of manifests and, where there are delete files, manifests and delete files; never data files.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from lakehouse_assets.commit.deletes import DeleteFiles, is_position
from lakehouse_assets.commit.entries import Entries
from lakehouse_assets.commit.manifest_reader import has_live_files, read_manifest_lists
from lakehouse_assets.storage.objects import at_once

if TYPE_CHECKING:
    from pyarrow import ChunkedArray

logger = logging.getLogger(__name__)

MOST_FILES, MOST_DELETE_FILES, MOST_POSITIONS = 10_000, 500, 5_000_000
"""The most data files, delete files and positions in these of a snapshot whose deleted rows are counted: a few seconds
and 100 MB. It is a number to be shown, which no run may wait for."""


@dataclass(frozen=True)
class LiveRows:
    """The rows of a snapshot."""

    count: int
    is_exact: bool = True
    """Whether it is not only an upper bound, from which deleted rows are not subtracted."""

    def __str__(self) -> str:
        return f"{self.count:,}" if self.is_exact else f"at most {self.count:,}"

    @property
    def exactly(self) -> int | None:
        """The count; None for an upper bound."""
        return self.count if self.is_exact else None


def live_rows(metadata: TableMetadata, snapshot: Snapshot, io: FileIO) -> LiveRows | None:
    """Counts the rows of a snapshot. It is an upper bound where rows are deleted by too many files, or by equality.

    metadata: the table's. io: for its files. Raises nothing: what can't be read is logged, and the count is an upper
    bound by the snapshot's summary; None where that does not say it.
    """
    try:
        return _counted(metadata, snapshot, io)
    except Exception as error:  # libraries raise errors of all kinds for files that are torn or foreign
        logger.warning("the rows of snapshot %s can't be counted: %r", snapshot.snapshot_id, error)
    total = snapshot.summary["total-records"] if snapshot.summary else None
    return LiveRows(int(total), is_exact=False) if total else None


def _counted(metadata: TableMetadata, snapshot: Snapshot, io: FileIO) -> LiveRows:
    manifests = [m for m in next(read_manifest_lists(io, [snapshot.manifest_list])) if has_live_files(m)]
    data = [m for m in manifests if m.content is ManifestContent.DATA]
    deleting = [m for m in manifests if m.content is ManifestContent.DELETES]
    rows = sum((m.added_rows_count or 0) + (m.existing_rows_count or 0) for m in data)
    if not deleting:
        return LiveRows(rows)
    if _files(data) > MOST_FILES or _files(deleting) > MOST_DELETE_FILES:
        return LiveRows(rows, is_exact=False)
    deleted = _deleted(metadata, data, deleting, io)
    return LiveRows(rows, is_exact=False) if deleted is None else LiveRows(rows - deleted)


def _files(manifests: Sequence[ManifestFile]) -> int:
    return sum((m.added_files_count or 0) + (m.existing_files_count or 0) for m in manifests)


def _deleted(
    metadata: TableMetadata, data: Sequence[ManifestFile], deleting: Sequence[ManifestFile], io: FileIO
) -> int | None:
    """Counts the rows that position deletes take from live files, each once; None where there are other deletes."""
    found = [*chain.from_iterable(Entries().read(io, deleting))]
    specs = metadata.specs()
    if not all(map(is_position, found)) or sum(one.data_file.record_count for one in found) > MOST_POSITIONS:
        return None
    index = DeleteFiles(found, specs)
    applying: dict[str, list[str]] = {}
    files: dict[str, DataFile] = {}
    entry: ManifestEntry
    for entry in chain.from_iterable(Entries().read(io, data)):
        if of_file := [one.data_file for one in index.applying_to(entry)]:
            applying[entry.data_file.file_path] = [file.file_path for file in of_file]
            files |= {file.file_path: file for file in of_file}
    read = dict(zip(files, at_once(lambda file: _positions(io, file), [*files.values()]), strict=True))
    return sum(_distinct([read[one][path] for one in of if path in read[one]]) for path, of in applying.items())


def _positions(io: FileIO, file: DataFile) -> dict[str, ChunkedArray]:
    from pyiceberg.io.pyarrow import _read_deletes

    return _read_deletes(io, file)


def _distinct(positions: Sequence[ChunkedArray]) -> int:
    from pyarrow import chunked_array

    chunks = [chunk for one in positions for chunk in one.chunks]
    return len(chunked_array(chunks).unique()) if chunks else 0
