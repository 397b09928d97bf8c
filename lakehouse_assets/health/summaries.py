"""Adds up one manifest: for each kind of file and partition the number, bytes, rows, sizes and ages of its files.

How manifests are read is in commit/manifest_reader.py, how summaries are kept in summary_cache.py.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyiceberg.manifest import DataFileContent, ManifestEntry

from lakehouse_assets.commit.deletes import sequence
from lakehouse_assets.commit.entries import values_of


class LiveFile(NamedTuple):
    """A file that a manifest lists as added or existing."""

    content: DataFileContent
    partition: tuple[Any, ...]
    rows: int
    size: int
    """The size in bytes."""
    sequence: int
    """The data sequence number."""

    @classmethod
    def of(cls, entry: ManifestEntry) -> LiveFile:
        """Returns what a summary counts of an entry."""
        file = entry.data_file
        # All NaNs are one object: another one is unequal to it, and would be a partition of its own.
        partition = tuple([math.nan if value != value else value for value in values_of(file.partition)])
        content = DataFileContent(file.content)  # a number where the manifest is of version 1
        return cls(content, partition, file.record_count, file.file_size_in_bytes, sequence(entry))


class SizeLimits(NamedTuple):
    """A file of at most ``fragment`` bytes is a fragment, another one of at most ``undersized`` bytes undersized."""

    fragment: int
    undersized: int


class Summary(NamedTuple):
    """The live files of one kind that one manifest lists in one partition.

    Sums of summaries are exact, since a live file is in exactly one manifest of a snapshot.
    """

    spec_id: int
    """The id of the partition's spec."""
    content: int
    """The kind of file, the value of a DataFileContent."""
    partition: tuple[Any, ...]
    """The partition's values."""
    files: int
    size: int
    """The bytes of all files."""
    rows: int
    fragments: int
    fragment_size: int
    """The bytes of the fragments."""
    undersized: int
    """How many files are undersized; a fragment does not count as one."""
    undersized_size: int
    """The bytes of the undersized files."""
    sizes: tuple[tuple[int, int], ...]
    """Pairs of n and how many files have 2**n to 2**(n+1) - 1 bytes."""
    oldest: int
    """The least data sequence number."""
    newest: int
    """The greatest data sequence number."""


def summarize(spec_id: int, files: Iterable[LiveFile], limits: SizeLimits) -> list[Summary]:
    """Returns the summaries of a manifest's live files, which are all of the manifest's spec."""
    groups: dict[tuple[DataFileContent, tuple[Any, ...]], _Group] = {}
    for file in files:
        key = file.content, file.partition
        if (group := groups.get(key)) is None:
            group = groups[key] = _Group()
        group.add(file, limits)
    return [group.summary(spec_id, *key) for key, group in groups.items()]


@dataclass(slots=True)
class _Group:
    files: int = 0
    size: int = 0
    rows: int = 0
    fragments: int = 0
    fragment_size: int = 0
    undersized: int = 0
    undersized_size: int = 0
    sizes: Counter[int] = field(default_factory=Counter)
    oldest: float = math.inf
    newest: float = -math.inf

    def add(self, file: LiveFile, limits: SizeLimits) -> None:
        self.files += 1
        self.size += file.size
        self.rows += file.rows
        if file.size <= limits.fragment:
            self.fragments += 1
            self.fragment_size += file.size
        elif file.size <= limits.undersized:
            self.undersized += 1
            self.undersized_size += file.size
        self.sizes[power_of_two(file.size)] += 1
        self.oldest = min(self.oldest, file.sequence)
        self.newest = max(self.newest, file.sequence)

    def summary(self, spec_id: int, content: DataFileContent, partition: tuple[Any, ...]) -> Summary:
        return Summary(
            spec_id=spec_id,
            content=content.value,
            partition=partition,
            files=self.files,
            size=self.size,
            rows=self.rows,
            fragments=self.fragments,
            fragment_size=self.fragment_size,
            undersized=self.undersized,
            undersized_size=self.undersized_size,
            sizes=tuple(sorted(self.sizes.items())),
            oldest=int(self.oldest),
            newest=int(self.newest),
        )


def power_of_two(size: int) -> int:
    """Returns n for a size of 2**n to 2**(n+1) - 1 bytes; 0 for an empty file too."""
    return max(size, 1).bit_length() - 1
