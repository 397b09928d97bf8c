"""The health of each partition, and the names of partitions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import add, attrgetter
from typing import Any, NamedTuple

import dagster as dg
from pyiceberg.manifest import DataFileContent
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record

from lakehouse_assets.commit.manifests import partition_paths
from lakehouse_assets.commit.schema_policy import ChangeKind, schema_changes
from lakehouse_assets.declare.region import Region
from lakehouse_assets.declare.table import Table
from lakehouse_assets.errors import DeclarationError, UnknownPartitions
from lakehouse_assets.maintenance.health.summaries import Summary

Partition = tuple[int, tuple[Any, ...]]
KeyOf = Callable[[Record], str | None]
"""Maps a partition of the default spec to its Dagster key; None if it has none."""


class Name(NamedTuple):
    """The name of a partition."""

    text: str
    """The Dagster key, else the path, else ``whole table``; both if several partitions share the key."""
    key: str | None


def partition_names(metadata: TableMetadata, partitions: Sequence[Partition], key_of: KeyOf) -> dict[Partition, Name]:
    """Names the partitions."""
    keys = {(i, v): key_of(Record(*v)) if i == metadata.default_spec_id else None for i, v in partitions}
    shared = Counter(keys.values())
    path_of = partition_paths(metadata)
    names = {}
    for (spec_id, values), key in keys.items():
        if key and shared[key] == 1:
            names[spec_id, values] = Name(key, key)
            continue
        path = path_of((spec_id, Record(*values)))
        names[spec_id, values] = Name(f"{key} ({path})" if key else path or "whole table", key)
    return names


def keys_of(table: Table, metadata: TableMetadata, instance: dg.DagsterInstance) -> KeyOf:
    """Returns a function from a partition of the default spec to its Dagster key.

    It returns None for all if the table is not partitioned as declared, if keys only select what the step reads, or if
    a dynamic key is no value of its column: health must be known in any case.
    """
    partitions = table.partitions
    if (
        partitions is None
        or not table.alignment.of_table
        or any(change.kind is ChangeKind.SPEC for change in schema_changes(table, metadata))
    ):
        return lambda _: None

    # Computed only if a partition asks, and once.
    @cache
    def region() -> Region | None:
        keys = partitions.get_partition_keys(dynamic_partitions_store=instance)
        try:
            return table.alignment.region(keys) if keys else None
        except (UnknownPartitions, DeclarationError):
            return None

    def key_of(partition: Record) -> str | None:
        owners = region()
        return owners.key_of(partition) if owners else None

    return key_of


EQUALITY = "equality deletes apply to its files"


def old_spec(spec_id: int) -> str:
    """Returns why Spark is needed."""
    return f"its files are of the old partition spec {spec_id}"


@dataclass(frozen=True, slots=True)
class PartitionHealth:
    """An Iceberg partition's live files."""

    name: str
    key: str | None
    spec_id: int
    values: tuple[Any, ...]
    files: int
    size: int
    rows: int
    """Including deleted ones."""
    fragments: int
    fragment_size: int
    undersized: int
    """Without fragments."""
    undersized_size: int
    delete_files: int
    rows_deleted_at_most: int
    """An upper bound: delete files may overlap, or name missing rows."""
    written_ms: int | None
    """When its newest data file was committed; None if that snapshot has expired."""
    needs_spark: tuple[str, ...]
    """Why a rewrite needs Spark, as far as manifests show; the rewrite itself may find more reasons."""

    @property
    def small_files(self) -> int:
        """Fragments and undersized files."""
        return self.fragments + self.undersized

    @property
    def small_size(self) -> int:
        """The bytes of fragments and undersized files."""
        return self.fragment_size + self.undersized_size

    @property
    def has_deletes(self) -> bool:
        """Whether it has delete files, or others' may apply to its files."""
        return bool(self.delete_files or self.rows_deleted_at_most)

    @property
    def deleted_share(self) -> float:
        """The share of possibly deleted rows, 0 to 1."""
        return self.rows_deleted_at_most / self.rows if self.rows else 0.0


def rows_deleted_at_most(data: Mapping[int, int], positions: Collection[tuple[int, int]], newest_equality: int) -> int:
    """Returns an upper bound of a partition's deleted rows, without reading delete files.

    A row of a position delete file deletes at most one row, of a data file that is not newer. A row of an equality
    delete file deletes any number, so all rows of older data files count
    (https://iceberg.apache.org/spec/#scan-planning).

    data: rows of data files, by the least data sequence number in their summary. positions: of each summary of position
    deletes, the greatest data sequence number and the rows. newest_equality: the greatest data sequence number of an
    equality delete; -1 without any.
    """
    if not data or (newest_equality < 0 and not positions):
        return 0
    oldest = min(data)
    at_most = sum(rows for newest, rows in positions if newest >= oldest)
    return min(sum(data.values()), at_most + sum(rows for age, rows in data.items() if age < newest_equality))


COUNTS = ("files", "size", "rows", "fragments", "fragment_size", "undersized", "undersized_size")
_counts = attrgetter(*COUNTS)


@dataclass(slots=True)
class _Sums:
    counts: tuple[int, ...] = (0,) * len(COUNTS)
    """In the order of COUNTS."""
    data: dict[int, int] = field(default_factory=dict)
    """This, ``positions`` and ``newest_equality`` are as rows_deleted_at_most() takes them."""
    newest: int = -1
    """Of data files; -1 without any."""
    delete_files: int = 0
    positions: list[tuple[int, int]] = field(default_factory=list)
    newest_equality: int = -1

    def add(self, summary: Summary) -> None:
        if summary.content != DataFileContent.DATA.value:
            self.delete_files += summary.files
            if summary.content == DataFileContent.POSITION_DELETES:
                self.positions.append((summary.newest, summary.rows))
            else:
                self.newest_equality = max(self.newest_equality, summary.newest)
            return
        self.counts = tuple(map(add, self.counts, _counts(summary)))
        self.data[summary.oldest] = self.data.get(summary.oldest, 0) + summary.rows
        self.newest = max(self.newest, summary.newest)

    def needs_spark(self, spec_id: int, default_spec_id: int, newest_anywhere: int) -> Iterator[str]:
        """Yields the reasons. newest_anywhere: as newest_equality, of deletes that apply to every partition."""
        if spec_id != default_spec_id:
            yield old_spec(spec_id)
        if self.data and max(self.newest_equality, newest_anywhere) > min(self.data):
            yield EQUALITY


def partition_healths(
    metadata: TableMetadata, summaries: Iterable[Summary], key_of: KeyOf
) -> tuple[PartitionHealth, ...]:
    """Returns the health of each partition with live files, sorted by name."""
    found: dict[Partition, _Sums] = defaultdict(_Sums)
    for summary in summaries:
        found[summary.spec_id, summary.partition].add(summary)
    unpartitioned = {spec.spec_id for spec in metadata.specs().values() if spec.is_unpartitioned()}
    # The equality deletes of an unpartitioned spec hold for all partitions: https://iceberg.apache.org/spec/#scan-planning
    anywhere = [sums.newest_equality for (spec_id, _), sums in found.items() if spec_id in unpartitioned]
    newest_anywhere = max(anywhere, default=-1)
    names = partition_names(metadata, list(found), key_of)
    times = {snapshot.sequence_number: snapshot.timestamp_ms for snapshot in metadata.snapshots}
    partitions = (
        PartitionHealth(
            name=names[spec_id, values].text,
            key=names[spec_id, values].key,
            spec_id=spec_id,
            values=values,
            rows_deleted_at_most=rows_deleted_at_most(
                sums.data, sums.positions, max(sums.newest_equality, newest_anywhere)
            ),
            delete_files=sums.delete_files,
            written_ms=times.get(sums.newest),
            needs_spark=tuple(sums.needs_spark(spec_id, metadata.default_spec_id, newest_anywhere)),
            **dict(zip(COUNTS, sums.counts, strict=True)),
        )
        for (spec_id, values), sums in found.items()
    )
    return tuple(sorted(partitions, key=lambda partition: (partition.name, partition.spec_id)))
