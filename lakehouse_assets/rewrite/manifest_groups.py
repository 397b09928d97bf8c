"""Decides which manifests are rewritten together, and into which, by the partitions that each lists.

The decisions are pure functions. Manifests are read in manifest_sources.py, written in manifest_writing.py;
commit/manifest_rewrite.py decides what lands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import ceil
from typing import Any, NamedTuple

from pyiceberg.manifest import ManifestContent, ManifestFile

from lakehouse_assets.rewrite.manifest_entries import EntryDigest

MOST_ENTRIES = 2000
LEAST_ENTRIES = MOST_ENTRIES // 2
"""The most and the least entries that a manifest is to have. To plan a partition, one manifest at least is read whole
(85 µs an entry with PyIceberg), and a publish that replaces files writes the rest of theirs anew (170 µs an entry):
larger ones cost later commits more."""
OPENING = 100
"""The number of entries that can be read in about the time that it takes to open a manifest in an object store."""
WORTH = 2
"""The factor by which a rewrite must lower the number of manifests, or of entries to read, to be worth it."""

Partition = tuple[Any, ...]


class ManifestKind(NamedTuple):
    """The properties that manifests must share for their entries to go into one."""

    spec_id: int
    content: ManifestContent
    schema: str
    """The Avro schema of the entries."""


@dataclass(frozen=True)
class Source:
    """A manifest that was read."""

    manifest: ManifestFile
    kind: ManifestKind
    meta: Mapping[str, str]
    """The metadata in the header of its Avro file."""
    entries: Mapping[Partition, int]
    """The number of live entries by partition."""
    size: int
    """The bytes that the ``data_file`` of its live entries takes in Avro, uncompressed."""
    digest: EntryDigest

    @cached_property
    def range(self) -> tuple[Any, Any]:
        """The sort keys of its least and greatest partition."""
        keys = [sort_key(partition) for partition in self.entries]
        return min(keys), max(keys)


@dataclass(frozen=True)
class Cluster:
    """Partitions that follow each other, whose entries become one manifest; several if they are too many."""

    partitions: tuple[Partition, ...]
    entries: int

    @property
    def manifests(self) -> int:
        """The number of manifests that the entries need, with at most MOST_ENTRIES in each."""
        return ceil(self.entries / MOST_ENTRIES)

    @property
    def reads(self) -> int:
        """The number of entries that are read if each partition is planned once, plus OPENING for each manifest.

        At a cut between two manifests both list a partition.
        """
        return (self.entries // self.manifests + OPENING) * (len(self.partitions) + self.manifests - 1)


@dataclass(frozen=True)
class Group:
    """Manifests that are replaced together: no other manifest of their kind lists a partition between theirs."""

    sources: tuple[Source, ...]

    @property
    def kind(self) -> ManifestKind:
        """The kind that all the manifests are of."""
        return self.sources[0].kind

    @property
    def meta(self) -> Mapping[str, str]:
        """The header of the newest manifest."""
        return max(self.sources, key=lambda source: source.manifest.sequence_number).meta

    @property
    def digest(self) -> EntryDigest:
        """The digest of the live entries of all the manifests together."""
        found = EntryDigest()
        for source in self.sources:
            found = found.plus(source.digest)
        return found

    @property
    def entries(self) -> int:
        """The number of live entries in all the manifests together."""
        return self.digest.entries

    @property
    def size(self) -> int:
        """The bytes that the ``data_file`` of all these entries takes in Avro, uncompressed."""
        return sum(source.size for source in self.sources)

    @cached_property
    def clusters(self) -> tuple[Cluster, ...]:
        """The clusters in the order of partitions. A partition is in several manifests only where a cluster is cut."""
        counts: Counter[Partition] = Counter()
        for source in self.sources:
            counts.update(source.entries)
        ordered = [([partition], counts[partition]) for partition in sorted(counts, key=sort_key)]
        return tuple(Cluster(tuple(chain(*parts)), size) for parts, size in _packed(ordered))

    @property
    def is_worth_it(self) -> bool:
        """Whether a rewrite saves enough manifests, or entries that are read to plan a partition."""
        after = sum(cluster.manifests for cluster in self.clusters)
        return after * WORTH <= len(self.sources) or sum(c.reads for c in self.clusters) * WORTH <= self._reads

    @property
    def _reads(self) -> int:
        """The same as Cluster.reads, for the manifests as they are.

        A manifest is read for each partition that its bounds contain.
        """
        order = {key: at for at, key in enumerate(sorted({sort_key(p) for s in self.sources for p in s.entries}))}
        spans = ((s.digest.entries, order[s.range[1]] - order[s.range[0]] + 1) for s in self.sources)
        return sum((entries + OPENING) * span for entries, span in spans)


def worth_rewriting(sources: Iterable[Source]) -> list[Group]:
    """Returns the groups of manifests that are worth a rewrite."""
    kinds: dict[ManifestKind, list[Source]] = {}
    for source in sources:
        if source.entries:
            kinds.setdefault(source.kind, []).append(source)
    return [group for of_kind in kinds.values() for group in _groups(of_kind) if group.is_worth_it]


def sort_key(partition: Partition) -> tuple[Any, ...]:
    """Returns a key that orders partition tuples of one spec: nulls first, NaN last."""
    return tuple((value is not None, value != value, value) for value in partition)


def _groups(sources: Sequence[Source]) -> Iterator[Group]:
    """Yields groups that are as small as they can be.

    Little is then dropped if a writer replaces a manifest meanwhile.
    """
    apart = [(together, sum(s.digest.entries for s in together)) for together in _overlapping(sources)]
    for parts, _ in _packed(apart):
        yield Group(tuple(chain(*parts)))


def _overlapping(sources: Sequence[Source]) -> Iterator[list[Source]]:
    """Yields the manifests in the order of their ranges of partitions.

    Those whose ranges overlap, also by way of others, are yielded together.
    """
    together: list[Source] = []
    end: Any = None
    for source in sorted(sources, key=lambda source: source.range):
        first, last = source.range
        if together and end < first:
            yield together
            together = []
        end = max(end, last) if together else last
        together.append(source)
    if together:
        yield together


def _packed(parts: Iterable[tuple[list[Any], int]]) -> Iterator[tuple[list[list[Any]], int]]:
    """Puts neighbours together while they have at most MOST_ENTRIES, or less than LEAST_ENTRIES so far.

    parts: (items, entries). It yields the items of those that are together, with the sum of their entries.
    """
    waiting: list[list[Any]] = []
    size = 0
    for items, entries in parts:
        if size >= LEAST_ENTRIES and size + entries > MOST_ENTRIES:
            yield waiting, size
            waiting, size = [], 0
        waiting.append(items)
        size += entries
    if waiting:
        yield waiting, size
