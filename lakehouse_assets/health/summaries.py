"""What one manifest adds up to: for each kind of file and partition their number, bytes, rows, sizes and ages.
How manifests are read is in commit/manifest_reader.py, how summaries are kept in summary_cache.py."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyiceberg.manifest import DataFileContent

from lakehouse_assets.commit.manifest_reader import LiveFile


class SizeLimits(NamedTuple):
    """A file of at most ``fragment`` bytes is a fragment, another one of at most ``undersized`` bytes undersized."""

    fragment: int
    undersized: int


class Summary(NamedTuple):
    """The live files of one kind that one manifest lists in one partition.

    Exact, since a live file is in exactly one manifest of a snapshot. spec_id, partition: the Iceberg partition.
    content: a DataFileContent. size: all bytes. fragment_size, undersized_size: bytes of those files; a fragment does
    not count as undersized. sizes: by n, how many files have 2**n to 2**(n+1) - 1 bytes. oldest, newest: least and
    greatest data sequence number.
    """

    spec_id: int
    content: int
    partition: tuple[Any, ...]
    files: int
    size: int
    rows: int
    fragments: int
    fragment_size: int
    undersized: int
    undersized_size: int
    sizes: tuple[tuple[int, int], ...]
    oldest: int
    newest: int


def summarize(spec_id: int, files: Iterable[LiveFile], limits: SizeLimits) -> list[Summary]:
    """The summaries of a manifest's live files, which are all of the manifest's spec."""
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
    """n for a size of 2**n to 2**(n+1) - 1 bytes; 0 for an empty file too."""
    return max(size, 1).bit_length() - 1
