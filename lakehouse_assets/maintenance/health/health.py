"""The health of a table, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, ancestors_of
from pyiceberg.utils.properties import property_as_int

from lakehouse_assets.commit.manifests import has_live_files
from lakehouse_assets.maintenance.collect.report import LastLook
from lakehouse_assets.maintenance.health.partition_health import KeyOf, PartitionHealth, partition_healths
from lakehouse_assets.maintenance.health.summaries import SizeLimits, Summary

FRAGMENT = 1 / 8
UNDERSIZED = 3 / 4
"""Shares of the target size, as in Amoro (self-optimizing.fragment-ratio, …min-target-size-ratio). Spark's
rewrite_data_files also rewrites files below the second (min-file-size-bytes)."""


@dataclass(frozen=True)
class TableHealth:
    """The health of a table's current snapshot."""

    identifier: str
    uuid: UUID
    target: int
    """In bytes."""
    limits: SizeLimits
    data_manifests: int
    """Those with live files."""
    delete_manifests: int
    """Those with live files."""
    empty_manifests: int
    """Those that list only deletions of an earlier snapshot."""
    manifest_size: int
    """The bytes of all manifests."""
    snapshots: int
    metadata_size: int
    """The bytes of metadata.json."""
    last_write_ms: int | None
    """When the last snapshot that is no rewrite was written."""
    format_version: int
    location: str
    is_sorted: bool
    needs_spark: tuple[str, ...]
    """Why the whole table needs it."""
    partitions: tuple[PartitionHealth, ...]
    collected: LastLook | None = None
    expirable: int | None = None
    """Snapshots that may expire unless runs have pinned them; None if unknown."""
    more_expirable_ms: int | None = None
    """Epoch milliseconds: when more may expire by age alone, at the earliest."""

    def total(self, number: str) -> int:
        """Sums a number of the partitions, such as ``files``."""
        return sum(getattr(partition, number) for partition in self.partitions)

    @property
    def manifests(self) -> int:
        """Those of the current snapshot."""
        return self.data_manifests + self.delete_manifests + self.empty_manifests


def target_size(metadata: TableMetadata) -> int:
    """Returns write.target-file-size-bytes or Iceberg's default."""
    default = TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT
    found = property_as_int(metadata.properties, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, default)
    return found or default


def size_limits(metadata: TableMetadata) -> SizeLimits:
    """Returns the limits."""
    target = target_size(metadata)
    return SizeLimits(int(target * FRAGMENT), int(target * UNDERSIZED))


def table_health(
    identifier: str,
    metadata: TableMetadata,
    metadata_size: int,
    manifests: Sequence[ManifestFile],
    summaries: Iterable[Summary],
    key_of: KeyOf,
    needs_spark: Sequence[str] = (),
) -> TableHealth:
    """Returns a table's health, from all manifests of its current snapshot."""
    partitions = partition_healths(metadata, summaries, key_of)
    kinds = Counter(manifest.content if has_live_files(manifest) else None for manifest in manifests)
    return TableHealth(
        identifier=identifier,
        uuid=metadata.table_uuid,
        target=target_size(metadata),
        limits=size_limits(metadata),
        data_manifests=kinds[ManifestContent.DATA],
        delete_manifests=kinds[ManifestContent.DELETES],
        empty_manifests=kinds[None],
        manifest_size=sum(manifest.manifest_length for manifest in manifests),
        snapshots=len(metadata.snapshots),
        metadata_size=metadata_size,
        last_write_ms=_last_write_ms(metadata),
        format_version=metadata.format_version,
        location=metadata.location,
        is_sorted=not metadata.sort_order().is_unsorted,
        needs_spark=tuple(needs_spark),
        partitions=partitions,
    )


def _last_write_ms(metadata: TableMetadata) -> int | None:
    for snapshot in ancestors_of(metadata.current_snapshot(), metadata):
        if snapshot.summary is None or snapshot.summary.operation is not Operation.REPLACE:
            return snapshot.timestamp_ms
    return None
