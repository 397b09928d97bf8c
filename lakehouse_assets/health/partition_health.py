"""What metadata says of each partition, and the names of partitions."""

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
from lakehouse_assets.health.summaries import Summary

Partition = tuple[int, tuple[Any, ...]]
"""A partition by its spec's id and its values."""
KeyOf = Callable[[Record], str | None]
"""Returns the Dagster key that owns a partition of the table's default spec; None where none does."""


class Name(NamedTuple):
    """The name of a partition."""

    text: str
    """The Dagster key, with the partition's path where several partitions have that key; without a key the path, or
    ``whole table`` where that is empty."""
    key: str | None
    """The Dagster key alone; None without one."""


def partition_names(metadata: TableMetadata, partitions: Sequence[Partition], key_of: KeyOf) -> dict[Partition, Name]:
    """Names each of the partitions."""
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
    """Returns a function from a partition of the default spec to the declared table's key that owns it.

    The function returns None for all partitions of a table that is not partitioned as it is declared, whose keys only
    select what its step reads, or of which a dynamic key is no value of its column: the table's health must be known
    then too.

    instance: knows dynamic keys.
    """
    partitions = table.partitions
    if (
        partitions is None
        or not table.alignment.of_table
        or any(change.kind is ChangeKind.SPEC for change in schema_changes(table, metadata))
    ):
        return lambda _: None

    @cache  # made at the first partition only
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
    """Says why a partition needs Spark: its files are of another spec than the table's default."""
    return f"its files are of the old partition spec {spec_id}"


@dataclass(frozen=True, slots=True)
class PartitionHealth:
    """The live files of one Iceberg partition."""

    name: str
    """Its Dagster key, with the partition path where several partitions share the key; without a key the path alone;
    ``whole table`` without partitions."""
    key: str | None
    """The Dagster key that owns it; None where none is known."""
    spec_id: int
    """The id of the partition's spec."""
    values: tuple[Any, ...]
    """The partition's values."""
    files: int
    """How many data files it has."""
    size: int
    """The bytes of the data files."""
    rows: int
    """The rows of the data files, deleted rows included."""
    fragments: int
    """How many data files are fragments."""
    fragment_size: int
    """The bytes of the fragments."""
    undersized: int
    """How many data files are undersized; a fragment does not count as one."""
    undersized_size: int
    """The bytes of the undersized files."""
    delete_files: int
    """How many delete files it has, of positions and of equality."""
    rows_deleted_at_most: int
    """An upper bound of the deleted rows, never more than ``rows``: delete files may overlap, and may name rows that
    are gone."""
    written_ms: int | None
    """When the snapshot was written that wrote its newest data file, epoch milliseconds; None where that snapshot has
    expired, and without data files."""
    needs_spark: tuple[str, ...]
    """Why it can't be rewritten without Spark, as far as manifests tell; empty if it can."""

    @property
    def small_files(self) -> int:
        """How many data files are too small: fragments and undersized files together."""
        return self.fragments + self.undersized

    @property
    def small_size(self) -> int:
        """The bytes of the small files."""
        return self.fragment_size + self.undersized_size

    @property
    def has_deletes(self) -> bool:
        """Whether delete files lie in it, or may apply to its rows."""
        return bool(self.delete_files or self.rows_deleted_at_most)

    @property
    def deleted_share(self) -> float:
        """The share of its rows that may be deleted, 0 to 1."""
        return self.rows_deleted_at_most / self.rows if self.rows else 0.0


def rows_deleted_at_most(data: Mapping[int, int], positions: Collection[tuple[int, int]], newest_equality: int) -> int:
    """Returns an upper bound of the deleted rows of a partition, never more than its rows.

    No delete file is read: what they delete is known by kinds and ages alone. A row of a position delete file deletes
    at most one row, of a data file that is not newer. A row of an equality delete file deletes any number, of data
    files that are older, so all their rows count. Newer data files were written after the delete
    (https://iceberg.apache.org/spec/#scan-planning).

    data: rows of data files by their least data sequence number. positions: the (greatest data sequence number, rows)
    of each summary of position delete files. newest_equality: the greatest data sequence number of the equality deletes
    that hold for the partition; -1 without any.
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
    """One partition while its summaries come in."""

    counts: tuple[int, ...] = (0,) * len(COUNTS)
    """The numbers of its data files, in the order of COUNTS."""
    data: dict[int, int] = field(default_factory=dict)
    """The rows of data files by their least data sequence number."""
    newest: int = -1
    """The greatest data sequence number of the data files; -1 without any."""
    delete_files: int = 0
    positions: list[tuple[int, int]] = field(default_factory=list)
    """The (greatest data sequence number, rows) of each summary of position delete files."""
    newest_equality: int = -1
    """The greatest data sequence number of the equality delete files; -1 without any."""

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
        if spec_id != default_spec_id:
            yield old_spec(spec_id)
        if self.data and max(self.newest_equality, newest_anywhere) > min(self.data):
            yield EQUALITY


def partition_healths(
    metadata: TableMetadata, summaries: Iterable[Summary], key_of: KeyOf
) -> tuple[PartitionHealth, ...]:
    """Returns the partitions with live files, in the order of their names.

    summaries: those of all manifests of the snapshot.
    """
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
