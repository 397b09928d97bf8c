"""Adds up one manifest: for each kind of file and partition the number, bytes, rows and ages of its files.

How manifests are read is in commit/manifest_reader.py, how summaries are kept in summary_cache.py.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pyiceberg.manifest import DataFileContent, ManifestEntry

from lakehouse_assets.commit.deletes import sequence
from lakehouse_assets.commit.manifests import values_of


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
    oldest: int
    """The least data sequence number."""
    newest: int
    """The greatest data sequence number."""


def summarize(spec_id: int, files: Iterable[LiveFile], limits: SizeLimits) -> list[Summary]:
    """Returns the summaries of a manifest's live files, which are all of the manifest's spec."""
    groups: dict[tuple[DataFileContent, tuple[Any, ...]], list[LiveFile]] = defaultdict(list)
    for file in files:
        groups[file.content, file.partition].append(file)
    return [_summary(spec_id, group, limits) for group in groups.values()]


def _summary(spec_id: int, files: Sequence[LiveFile], limits: SizeLimits) -> Summary:
    sizes, sequences = [file.size for file in files], [file.sequence for file in files]
    fragments = [size for size in sizes if size <= limits.fragment]
    undersized = [size for size in sizes if limits.fragment < size <= limits.undersized]
    return Summary(
        spec_id=spec_id,
        content=files[0].content.value,
        partition=files[0].partition,
        files=len(files),
        size=sum(sizes),
        rows=sum(file.rows for file in files),
        fragments=len(fragments),
        fragment_size=sum(fragments),
        undersized=len(undersized),
        undersized_size=sum(undersized),
        oldest=min(sequences),
        newest=max(sequences),
    )
