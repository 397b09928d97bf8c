"""Which delete files apply to which data files, by metadata alone; and the count of live rows."""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile
from typing import TYPE_CHECKING

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from lakehouse_assets.commit.manifests import Entries, Partition, has_live_files, partition_of, read_manifest_lists
from lakehouse_assets.storage.objects import at_once

if TYPE_CHECKING:
    from pyarrow import ChunkedArray

logger = logging.getLogger(__name__)

PATH_ID = 2147483546
"""The field id of ``file_path`` (https://iceberg.apache.org/spec/#position-delete-files)."""


def is_position(delete: ManifestEntry) -> bool:
    """Whether the delete file holds position deletes, not equality deletes."""
    return delete.data_file.content is DataFileContent.POSITION_DELETES


def may_apply(delete: ManifestEntry, data: ManifestEntry, specs: Mapping[int, PartitionSpec]) -> bool:
    """Whether a reader of the data file must apply the delete file.

    See https://iceberg.apache.org/spec/#scan-planning.
    """
    if is_position(delete):
        return sequence(delete) >= sequence(data) and _may_name(delete.data_file, data.data_file)
    return sequence(delete) > sequence(data) and (
        is_global(delete, specs) or _same_partition(delete.data_file, data.data_file)
    )


def is_global(delete: ManifestEntry, specs: Mapping[int, PartitionSpec]) -> bool:
    """Whether equality deletes apply to every partition: their spec has no fields."""
    return not is_position(delete) and specs[delete.data_file.spec_id].is_unpartitioned()


def names_one_file(delete: DataFile) -> str | None:
    """Returns the only data file that position deletes name; None if their bounds leave it open."""
    lower, upper = path_bounds(delete)
    return lower.decode() if lower is not None and lower == upper else None


def path_bounds(delete: DataFile) -> tuple[bytes | None, bytes | None]:
    """Returns the bounds of the paths that position deletes name, in UTF-8, maybe truncated."""
    return (delete.lower_bounds or {}).get(PATH_ID), (delete.upper_bounds or {}).get(PATH_ID)


def sequence(entry: ManifestEntry) -> int:
    """Returns the data sequence number; 0 in files of format version 1."""
    return entry.sequence_number or 0


def _may_name(delete: DataFile, data: DataFile) -> bool:
    if (only := names_one_file(delete)) is not None:
        return only == data.file_path
    lower, upper = path_bounds(delete)
    path = data.file_path.encode()
    within = (lower is None or lower <= path) and (upper is None or path <= upper)
    return within and _same_partition(delete, data)


def _same_partition(one: DataFile, other: DataFile) -> bool:
    return one.spec_id == other.spec_id and one.partition == other.partition


class DeleteFiles:
    """An index of delete files."""

    def __init__(self, entries: Iterable[ManifestEntry], specs: Mapping[int, PartitionSpec]) -> None:
        self._specs = specs
        # Each delete file is in one: by the only data file that it names, by its partition, or if it is global.
        self._of_path: dict[str, list[ManifestEntry]] = defaultdict(list)
        self._of_partition: dict[Partition, list[ManifestEntry]] = defaultdict(list)
        self._anywhere: list[ManifestEntry] = []
        # Newest first, so that applying_to() can stop at the first one that is older than the data file.
        for entry in sorted(entries, key=sequence, reverse=True):
            self._place(entry).append(entry)

    def _place(self, entry: ManifestEntry) -> list[ManifestEntry]:
        if is_global(entry, self._specs):
            return self._anywhere
        path = names_one_file(entry.data_file) if is_position(entry) else None
        return self._of_partition[partition_of(entry)] if path is None else self._of_path[path]

    def applying_to_any(self, data: Sequence[ManifestEntry]) -> list[ManifestEntry]:
        """Returns the delete files that a reader of any of the data files must apply."""
        files = DataFiles(data, self._specs)
        named = (delete for entry in data for delete in self._of_path.get(_path(entry), ()))
        beside = (delete for at in {*map(partition_of, data)} for delete in self._of_partition.get(at, ()))
        return [delete for delete in chain(named, beside, self._anywhere) if files.any_needs(delete)]

    def applying_to(self, data: ManifestEntry) -> Iterator[ManifestEntry]:
        """Yields the delete files that a reader of the data file must apply."""
        age = sequence(data)
        lists = (self._of_path.get(data.data_file.file_path), self._of_partition.get(partition_of(data)))
        for found in (*lists, self._anywhere):
            new = takewhile(lambda delete: sequence(delete) >= age, found or ())
            yield from (delete for delete in new if may_apply(delete, data, self._specs))


class DataFiles:
    """An index of data files."""

    def __init__(self, entries: Iterable[ManifestEntry], specs: Mapping[int, PartitionSpec]) -> None:
        self._specs = specs
        self._of_partition: dict[Partition, list[ManifestEntry]] = defaultdict(list)
        self._of_path: dict[str, ManifestEntry] = {}
        for entry in sorted(entries, key=_path):  # _named() bisects the paths of a partition
            self._of_path[_path(entry)] = entry
            self._of_partition[partition_of(entry)].append(entry)
        # The lowest sequence number in each partition: newer equality deletes apply to at least this file.
        self._oldest = {at: min(map(sequence, found)) for at, found in self._of_partition.items()}

    def any_needs(self, delete: ManifestEntry) -> bool:
        """Whether a reader of any of the data files must apply the delete file."""
        if not is_position(delete):
            oldest = self._oldest.values() if is_global(delete, self._specs) else self._oldest_beside(delete)
            return any(age < sequence(delete) for age in oldest)
        return any(may_apply(delete, data, self._specs) for data in self._named(delete))

    def _oldest_beside(self, delete: ManifestEntry) -> list[int]:
        """Returns the lowest sequence number in the delete file's partition; nothing if it has no data files."""
        found = self._oldest.get(partition_of(delete))
        return [] if found is None else [found]

    def _named(self, delete: ManifestEntry) -> list[ManifestEntry]:
        """Returns the data files that position deletes may name."""
        if (only := names_one_file(delete.data_file)) is not None:
            return [self._of_path[only]] if only in self._of_path else []
        beside = self._of_partition.get(partition_of(delete), [])
        lower, upper = path_bounds(delete.data_file)
        first = 0 if lower is None else bisect_left(beside, lower, key=_path_bytes)
        last = len(beside) if upper is None else bisect_right(beside, upper, key=_path_bytes)
        return beside[first:last]


def _path(entry: ManifestEntry) -> str:
    return entry.data_file.file_path


def _path_bytes(entry: ManifestEntry) -> bytes:
    """Paths sorted as strings are sorted by these bytes too."""
    return _path(entry).encode()


MOST_FILES, MOST_DELETE_FILES, MOST_POSITIONS = 10_000, 500, 5_000_000
"""With more, deleted rows are not counted. Up to these limits, counting takes a few seconds and 100 MB."""


@dataclass(frozen=True)
class LiveRows:
    """The rows of a snapshot."""

    count: int
    is_exact: bool = True
    """If false, deleted rows are not subtracted."""

    def __str__(self) -> str:
        return f"{self.count:,}" if self.is_exact else f"at most {self.count:,}"

    @property
    def exactly(self) -> int | None:
        """The count; None for an upper bound."""
        return self.count if self.is_exact else None


def live_rows(metadata: TableMetadata, snapshot: Snapshot, io: FileIO) -> LiveRows | None:
    """Counts the rows of a snapshot; an upper bound if there are too many files or equality deletes.

    Raises nothing: logs what can't be read, and returns the summary's upper bound, if any.
    """
    try:
        return _count_live(metadata, snapshot, io)
    except Exception as error:  # libraries raise errors of all kinds for files that are torn or foreign
        logger.warning("can't count the rows of snapshot %s: %r", snapshot.snapshot_id, error)
    total = snapshot.summary["total-records"] if snapshot.summary else None
    return LiveRows(int(total), is_exact=False) if total and total.isdecimal() else None


def _count_live(metadata: TableMetadata, snapshot: Snapshot, io: FileIO) -> LiveRows:
    manifests = [m for m in next(read_manifest_lists(io, [snapshot.manifest_list])) if has_live_files(m)]
    data = [m for m in manifests if m.content is ManifestContent.DATA]
    deleting = [m for m in manifests if m.content is ManifestContent.DELETES]
    rows = sum((m.added_rows_count or 0) + (m.existing_rows_count or 0) for m in data)
    if not deleting:
        return LiveRows(rows)
    if _files(data) > MOST_FILES or _files(deleting) > MOST_DELETE_FILES:
        return LiveRows(rows, is_exact=False)
    # Not total-position-deletes of the summary: it also counts deletes of rows in files that are gone.
    deleted = _count_deleted(metadata, data, deleting, io)
    return LiveRows(rows, is_exact=False) if deleted is None else LiveRows(rows - deleted)


def _files(manifests: Sequence[ManifestFile]) -> int:
    return sum((m.added_files_count or 0) + (m.existing_files_count or 0) for m in manifests)


def _count_deleted(
    metadata: TableMetadata, data: Sequence[ManifestFile], deleting: Sequence[ManifestFile], io: FileIO
) -> int | None:
    """Counts each deleted row once; returns None for equality deletes or too many positions."""
    found = [*chain.from_iterable(Entries().read(io, deleting))]
    if not all(map(is_position, found)) or sum(one.data_file.record_count for one in found) > MOST_POSITIONS:
        return None
    index = DeleteFiles(found, metadata.specs())
    deletes_of: dict[str, list[str]] = {}
    files: dict[str, DataFile] = {}
    entry: ManifestEntry
    for entry in chain.from_iterable(Entries().read(io, data)):
        if applying := [delete.data_file for delete in index.applying_to(entry)]:
            deletes_of[entry.data_file.file_path] = [file.file_path for file in applying]
            files |= {file.file_path: file for file in applying}
    read = dict(zip(files, at_once(lambda file: _positions(io, file), [*files.values()]), strict=True))
    rows = 0
    for path, deletes in deletes_of.items():
        rows += _distinct([read[delete][path] for delete in deletes if path in read[delete]])
    return rows


def _positions(io: FileIO, file: DataFile) -> dict[str, ChunkedArray]:
    """Returns a delete file's positions, by data file."""
    from pyiceberg.io.pyarrow import _read_deletes

    return _read_deletes(io, file)


def _distinct(positions: Sequence[ChunkedArray]) -> int:
    from pyarrow import chunked_array

    chunks = [chunk for one in positions for chunk in one.chunks]
    return len(chunked_array(chunks).unique()) if chunks else 0
