"""The health of a table as numbers: its files, deletes, manifests and history, by partition. Pure.
How the numbers are read is in look.py, what is wrong with them in findings.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add, attrgetter
from typing import Any

from pyiceberg.manifest import DataFileContent, ManifestContent, ManifestFile
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, ancestors_of
from pyiceberg.utils.properties import property_as_int

from lakehouse_assets.maintenance.deleted_rows import Deletes, rows_deleted_at_most
from lakehouse_assets.maintenance.partition_names import KeyOf, Partition, partition_names
from lakehouse_assets.maintenance.summaries import SizeLimits, Summary

FRAGMENT = 1 / 8
UNDERSIZED = 3 / 4
"""Shares of the target size, as Amoro has them (self-optimizing.fragment-ratio, …min-target-size-ratio). Spark's
rewrite_data_files rewrites files below the second one too (min-file-size-bytes)."""


@dataclass(frozen=True, slots=True)
class PartitionHealth:
    """The live files of one Iceberg partition.

    name: its Dagster key, with the partition path where several partitions share the key; without a key the path
    alone; ``whole table`` without partitions. spec_id, values: the partition. files, size, rows: of data files,
    deleted rows included; sizes in bytes. delete_files: position and equality deletes. rows_deleted_at_most: an upper
    bound, as delete files may overlap and may name rows that are gone; never more than ``rows``.
    """

    name: str
    spec_id: int
    values: tuple[Any, ...]
    files: int
    size: int
    rows: int
    sizes: Mapping[int, int]
    fragments: int
    fragment_size: int
    undersized: int
    undersized_size: int
    delete_files: int
    rows_deleted_at_most: int


@dataclass(frozen=True)
class TableHealth:
    """The health of a table's current snapshot.

    target: bytes that a data file should have. limits: what counts as a fragment and as undersized. sizes: of data
    files; by n, how many have 2**n to 2**(n+1) - 1 bytes. data_manifests, delete_manifests: those with live files;
    empty_manifests: those that list only deletions of an earlier snapshot. manifest_size, metadata_size: bytes of all
    manifests and of the current metadata.json. last_write_ms: time of the last snapshot that was no rewrite; None if
    there is none. partitions: those with live files, in the order of their names.
    """

    identifier: str
    target: int
    limits: SizeLimits
    sizes: Mapping[int, int]
    data_manifests: int
    delete_manifests: int
    empty_manifests: int
    manifest_size: int
    snapshots: int
    metadata_size: int
    last_write_ms: int | None
    partitions: tuple[PartitionHealth, ...]

    def total(self, number: str) -> int:
        """The sum of a number of the partitions, such as ``files``."""
        return sum(getattr(partition, number) for partition in self.partitions)

    @property
    def manifests(self) -> int:
        """All manifests of the current snapshot."""
        return self.data_manifests + self.delete_manifests + self.empty_manifests


def target_size(metadata: TableMetadata) -> int:
    """Bytes that a data file should have: the table's write.target-file-size-bytes, else Iceberg's default."""
    default = TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT
    found = property_as_int(metadata.properties, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, default)
    return found or default


def size_limits(metadata: TableMetadata) -> SizeLimits:
    """What counts as a fragment and as undersized in this table."""
    target = target_size(metadata)
    return SizeLimits(int(target * FRAGMENT), int(target * UNDERSIZED))


def table_health(
    identifier: str,
    metadata: TableMetadata,
    metadata_size: int,
    manifests: Sequence[ManifestFile],
    summaries: Iterable[Summary],
    key_of: KeyOf,
) -> TableHealth:
    """The health of a table. manifests: of its current snapshot. summaries: of all these, counted by size_limits()."""
    partitions = _partitions(metadata, summaries, key_of)
    kinds = Counter(manifest.content if has_live_files(manifest) else None for manifest in manifests)
    return TableHealth(
        identifier=identifier,
        target=target_size(metadata),
        limits=size_limits(metadata),
        sizes=_added_up(partition.sizes for partition in partitions),
        data_manifests=kinds[ManifestContent.DATA],
        delete_manifests=kinds[ManifestContent.DELETES],
        empty_manifests=kinds[None],
        manifest_size=sum(manifest.manifest_length for manifest in manifests),
        snapshots=len(metadata.snapshots),
        metadata_size=metadata_size,
        last_write_ms=_last_write_ms(metadata),
        partitions=partitions,
    )


def has_live_files(manifest: ManifestFile) -> bool:
    """Whether a manifest lists more than deletions of an earlier snapshot."""
    return manifest.has_added_files() or manifest.has_existing_files()


def _last_write_ms(metadata: TableMetadata) -> int | None:
    for snapshot in ancestors_of(metadata.current_snapshot(), metadata):
        if snapshot.summary is None or snapshot.summary.operation is not Operation.REPLACE:
            return snapshot.timestamp_ms
    return None


COUNTS = ("files", "size", "rows", "fragments", "fragment_size", "undersized", "undersized_size")
_counts = attrgetter(*COUNTS)


@dataclass(slots=True)
class _Sums:
    """One partition while its summaries come in. counts: as COUNTS, of data files. data: rows of data files by their
    least data sequence number."""

    counts: tuple[int, ...] = (0,) * len(COUNTS)
    sizes: dict[int, int] = field(default_factory=dict)
    data: dict[int, int] = field(default_factory=dict)
    delete_files: int = 0
    deletes: Deletes = field(default_factory=Deletes)

    def add(self, summary: Summary) -> None:
        if summary.content != DataFileContent.DATA.value:
            self.delete_files += summary.files
            self.deletes.add(summary)
            return
        self.counts = tuple(map(add, self.counts, _counts(summary)))
        self.data[summary.oldest] = self.data.get(summary.oldest, 0) + summary.rows
        for n, files in summary.sizes:
            self.sizes[n] = self.sizes.get(n, 0) + files


def _partitions(metadata: TableMetadata, summaries: Iterable[Summary], key_of: KeyOf) -> tuple[PartitionHealth, ...]:
    found: dict[Partition, _Sums] = {}
    for summary in summaries:
        partition = summary.spec_id, summary.partition
        if (sums := found.get(partition)) is None:
            sums = found[partition] = _Sums()
        sums.add(summary)
    unpartitioned = {spec.spec_id for spec in metadata.specs().values() if spec.is_unpartitioned()}
    # The equality deletes of an unpartitioned spec hold for all partitions: https://iceberg.apache.org/spec/#scan-planning
    anywhere = [sums.deletes.newest_equality for (spec_id, _), sums in found.items() if spec_id in unpartitioned]
    newest_anywhere = max(anywhere, default=-1)
    names = partition_names(metadata, list(found), key_of)
    partitions = (
        PartitionHealth(
            name=names[spec_id, values],
            spec_id=spec_id,
            values=values,
            sizes=dict(sorted(sums.sizes.items())),
            rows_deleted_at_most=rows_deleted_at_most(sums.data, sums.deletes, newest_anywhere),
            delete_files=sums.delete_files,
            **dict(zip(COUNTS, sums.counts, strict=True)),
        )
        for (spec_id, values), sums in found.items()
    )
    return tuple(sorted(partitions, key=lambda partition: (partition.name, partition.spec_id)))


def _added_up(counts: Iterable[Mapping[int, int]]) -> dict[int, int]:
    total: dict[int, int] = {}
    for count in counts:
        for n, files in count.items():
            total[n] = total.get(n, 0) + files
    return dict(sorted(total.items()))
