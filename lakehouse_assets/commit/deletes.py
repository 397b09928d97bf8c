"""Tells which delete files may delete rows of which data files, by metadata alone, without comparing each with each.

Pure functions of manifest entries; what follows from it for a rewrite is decided in land.py.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, takewhile

from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry
from pyiceberg.partitioning import PartitionSpec

from lakehouse_assets.commit.entries import Partition, partition_of

PATH_ID = 2147483546
"""The field id of the column file_path in files of position deletes
(https://iceberg.apache.org/spec/#position-delete-files)."""


def is_position(delete: ManifestEntry) -> bool:
    """Tells whether the delete file names positions in data files; otherwise its rows are compared with theirs."""
    return delete.data_file.content is DataFileContent.POSITION_DELETES


def may_apply(delete: ManifestEntry, data: ManifestEntry, specs: Mapping[int, PartitionSpec]) -> bool:
    """Tells whether a reader of the data file must look into the delete file.

    The rules are those of https://iceberg.apache.org/spec/#scan-planning.
    """
    if is_position(delete):
        return sequence(delete) >= sequence(data) and _may_name(delete.data_file, data.data_file)
    return sequence(delete) > sequence(data) and (
        is_global(delete, specs) or _same_partition(delete.data_file, data.data_file)
    )


def is_global(delete: ManifestEntry, specs: Mapping[int, PartitionSpec]) -> bool:
    """Tells whether an equality delete file applies to every partition: its spec has no partition fields."""
    return not is_position(delete) and specs[delete.data_file.spec_id].is_unpartitioned()


def names_one_file(delete: DataFile) -> str | None:
    """Returns the path of the only data file that the position deletes name, if their bounds say so."""
    lower, upper = path_bounds(delete)
    return lower.decode() if lower is not None and lower == upper else None


def path_bounds(delete: DataFile) -> tuple[bytes | None, bytes | None]:
    """Returns the bounds of the paths that position deletes name, in UTF-8.

    A writer may truncate bounds; they are below and above the path all the same.
    """
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
    """An index of delete files that finds those which apply to a data file."""

    def __init__(self, entries: Iterable[ManifestEntry], specs: Mapping[int, PartitionSpec]) -> None:
        self._specs = specs
        self._of_path: dict[str, list[ManifestEntry]] = defaultdict(list)
        self._of_partition: dict[Partition, list[ManifestEntry]] = defaultdict(list)
        self._anywhere: list[ManifestEntry] = []
        # The newest first: an older data file needs them all, a new one none.
        for entry in sorted(entries, key=sequence, reverse=True):
            self._place(entry).append(entry)

    def _place(self, entry: ManifestEntry) -> list[ManifestEntry]:
        if is_global(entry, self._specs):
            return self._anywhere
        path = names_one_file(entry.data_file) if is_position(entry) else None
        return self._of_partition[partition_of(entry)] if path is None else self._of_path[path]

    def applying_to_any(self, data: Sequence[ManifestEntry]) -> list[ManifestEntry]:
        """Returns the delete files that a reader of at least one of the data files must look into."""
        files = DataFiles(data, self._specs)
        named = (delete for entry in data for delete in self._of_path.get(_path(entry), ()))
        beside = (delete for at in {*map(partition_of, data)} for delete in self._of_partition.get(at, ()))
        return [delete for delete in chain(named, beside, self._anywhere) if files.any_needs(delete)]

    def applying_to(self, data: ManifestEntry) -> Iterator[ManifestEntry]:
        """Yields the delete files that a reader of the data file must look into."""
        age = sequence(data)
        lists = (self._of_path.get(data.data_file.file_path), self._of_partition.get(partition_of(data)))
        for found in (*lists, self._anywhere):
            new = takewhile(lambda delete: sequence(delete) >= age, found or ())
            yield from (delete for delete in new if may_apply(delete, data, self._specs))


class DataFiles:
    """An index of data files that tells whether a delete file applies to one of them."""

    def __init__(self, entries: Iterable[ManifestEntry], specs: Mapping[int, PartitionSpec]) -> None:
        self._specs = specs
        self._of_partition: dict[Partition, list[ManifestEntry]] = defaultdict(list)
        self._of_path: dict[str, ManifestEntry] = {}
        for entry in sorted(entries, key=_path):
            self._of_path[_path(entry)] = entry
            self._of_partition[partition_of(entry)].append(entry)
        self._oldest = {at: min(map(sequence, found)) for at, found in self._of_partition.items()}

    def any_needs(self, delete: ManifestEntry) -> bool:
        """Tells whether a reader of one of the data files must look into the delete file."""
        if not is_position(delete):
            oldest = self._oldest.values() if is_global(delete, self._specs) else self._oldest_beside(delete)
            return any(age < sequence(delete) for age in oldest)
        return any(may_apply(delete, data, self._specs) for data in self._named(delete))

    def _oldest_beside(self, delete: ManifestEntry) -> list[int]:
        found = self._oldest.get(partition_of(delete))
        return [] if found is None else [found]

    def _named(self, delete: ManifestEntry) -> list[ManifestEntry]:
        """Returns the data files whose paths are within the bounds of the paths that position deletes name."""
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
    """Returns the path in UTF-8; strings of Unicode are in the order of their UTF-8."""
    return _path(entry).encode()
