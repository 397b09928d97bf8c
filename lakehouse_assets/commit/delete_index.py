"""Finds which of many delete files apply to which of many data files without comparing each with each.

Whether one may apply to another is decided in deletes.py; what follows from it, by the caller.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, takewhile

from pyiceberg.manifest import ManifestEntry
from pyiceberg.partitioning import PartitionSpec

from lakehouse_assets.commit import deletes
from lakehouse_assets.commit.entries import Partition, partition_of


class DeleteFiles:
    """An index of delete files that finds those which apply to a data file."""

    def __init__(self, entries: Iterable[ManifestEntry], specs: Mapping[int, PartitionSpec]) -> None:
        self._specs = specs
        self._of_path: dict[str, list[ManifestEntry]] = defaultdict(list)
        self._of_partition: dict[Partition, list[ManifestEntry]] = defaultdict(list)
        self._anywhere: list[ManifestEntry] = []
        # The newest first: an older data file needs them all, a new one none.
        for entry in sorted(entries, key=deletes.sequence, reverse=True):
            self._place(entry).append(entry)

    def _place(self, entry: ManifestEntry) -> list[ManifestEntry]:
        if deletes.is_global(entry, self._specs):
            return self._anywhere
        path = deletes.names_one_file(entry.data_file) if deletes.is_position(entry) else None
        return self._of_partition[partition_of(entry)] if path is None else self._of_path[path]

    def applying_to_any(self, data: Sequence[ManifestEntry]) -> list[ManifestEntry]:
        """Returns the delete files that a reader of at least one of the data files must look into."""
        files = DataFiles(data, self._specs)
        named = (delete for entry in data for delete in self._of_path.get(_path(entry), ()))
        beside = (delete for at in {*map(partition_of, data)} for delete in self._of_partition.get(at, ()))
        return [delete for delete in chain(named, beside, self._anywhere) if files.any_needs(delete)]

    def applying_to(self, data: ManifestEntry) -> Iterator[ManifestEntry]:
        """Yields the delete files that a reader of the data file must look into."""
        age = deletes.sequence(data)
        lists = (self._of_path.get(data.data_file.file_path), self._of_partition.get(partition_of(data)))
        for found in (*lists, self._anywhere):
            new = takewhile(lambda delete: deletes.sequence(delete) >= age, found or ())
            yield from (delete for delete in new if deletes.may_apply(delete, data, self._specs))


class DataFiles:
    """An index of data files that tells whether a delete file applies to one of them."""

    def __init__(self, entries: Iterable[ManifestEntry], specs: Mapping[int, PartitionSpec]) -> None:
        self._specs = specs
        self._of_partition: dict[Partition, list[ManifestEntry]] = defaultdict(list)
        self._of_path: dict[str, ManifestEntry] = {}
        for entry in sorted(entries, key=_path):
            self._of_path[_path(entry)] = entry
            self._of_partition[partition_of(entry)].append(entry)
        self._oldest = {at: min(map(deletes.sequence, found)) for at, found in self._of_partition.items()}

    def any_needs(self, delete: ManifestEntry) -> bool:
        """Tells whether a reader of one of the data files must look into the delete file."""
        if not deletes.is_position(delete):
            oldest = self._oldest.values() if deletes.is_global(delete, self._specs) else self._oldest_beside(delete)
            return any(age < deletes.sequence(delete) for age in oldest)
        return any(deletes.may_apply(delete, data, self._specs) for data in self._named(delete))

    def _oldest_beside(self, delete: ManifestEntry) -> list[int]:
        found = self._oldest.get(partition_of(delete))
        return [] if found is None else [found]

    def _named(self, delete: ManifestEntry) -> list[ManifestEntry]:
        """Returns the data files whose paths are within the bounds of the paths that position deletes name."""
        if (only := deletes.names_one_file(delete.data_file)) is not None:
            return [self._of_path[only]] if only in self._of_path else []
        beside = self._of_partition.get(partition_of(delete), [])
        lower, upper = deletes.path_bounds(delete.data_file)
        first = 0 if lower is None else bisect_left(beside, lower, key=_path_bytes)
        last = len(beside) if upper is None else bisect_right(beside, upper, key=_path_bytes)
        return beside[first:last]


def _path(entry: ManifestEntry) -> str:
    return entry.data_file.file_path


def _path_bytes(entry: ManifestEntry) -> bytes:
    """Returns the path in UTF-8; strings of Unicode are in the order of their UTF-8."""
    return _path(entry).encode()
