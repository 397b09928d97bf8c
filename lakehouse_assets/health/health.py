"""The health of a table: its numbers, and what was found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, ancestors_of
from pyiceberg.utils.properties import property_as_int

from lakehouse_assets.collect.report import LastLook
from lakehouse_assets.commit.manifests import has_live_files
from lakehouse_assets.errors import LakehouseError
from lakehouse_assets.health.partition_health import KeyOf, PartitionHealth, partition_healths
from lakehouse_assets.health.summaries import SizeLimits, Summary

FRAGMENT = 1 / 8
UNDERSIZED = 3 / 4
"""The shares of the target size up to which a file is a fragment or undersized, as Amoro has them
(self-optimizing.fragment-ratio, …min-target-size-ratio). Spark's rewrite_data_files rewrites files below the second one
too (min-file-size-bytes)."""


@dataclass(frozen=True)
class TableHealth:
    """The health of a table's current snapshot."""

    identifier: str
    uuid: UUID
    target: int
    """The bytes that a data file should have."""
    limits: SizeLimits
    """What counts as a fragment and as undersized."""
    data_manifests: int
    """How many data manifests have live files."""
    delete_manifests: int
    """How many delete manifests have live files."""
    empty_manifests: int
    """How many manifests list only deletions of an earlier snapshot."""
    manifest_size: int
    """The bytes of all manifests."""
    snapshots: int
    """How many snapshots the metadata has."""
    metadata_size: int
    """The bytes of the current metadata.json."""
    last_write_ms: int | None
    """When the last snapshot that was no rewrite was written, epoch milliseconds; None if there is none."""
    format_version: int
    """The version of Iceberg's table format."""
    location: str
    """Where the table lies."""
    is_sorted: bool
    """Whether the table has a sort order."""
    needs_spark: tuple[str, ...]
    """Why none of it can be rewritten without Spark; empty if it can."""
    partitions: tuple[PartitionHealth, ...]
    """The partitions with live files, in the order of their names."""
    collected: LastLook | None = None
    """What the collector found last; None before its first look."""
    expirable: int | None = None
    """How many snapshots may expire if no run has pinned them; None if its properties forbid to tell."""

    def total(self, number: str) -> int:
        """Returns the sum of a number of the partitions, such as ``files``."""
        return sum(getattr(partition, number) for partition in self.partitions)

    @property
    def manifests(self) -> int:
        """How many manifests the current snapshot has."""
        return self.data_manifests + self.delete_manifests + self.empty_manifests


def target_size(metadata: TableMetadata) -> int:
    """Returns the bytes that a data file should have: write.target-file-size-bytes, else Iceberg's default."""
    default = TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT
    found = property_as_int(metadata.properties, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, default)
    return found or default


def size_limits(metadata: TableMetadata) -> SizeLimits:
    """Returns the limits up to which a file of this table counts as a fragment or as undersized."""
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
    """Returns the health of a table.

    manifests: those of its current snapshot. summaries: those of all these manifests, counted by size_limits().
    needs_spark: as needs_spark.reasons_of_table() finds them.
    """
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


class Check(StrEnum):
    """The asset check that a finding belongs to."""

    FILES = "files"
    HISTORY = "history"
    STORAGE = "storage"


DESCRIPTIONS = {
    Check.FILES: "Whether the table's data files are large enough and its delete files few enough, by partition. "
    "From metadata alone; rows that delete files delete are an upper bound.",
    Check.HISTORY: "Whether the table keeps few enough snapshots for commits to be fast.",
    Check.STORAGE: "Whether the table's metadata.json and manifests are small and few enough to be read fast, and "
    "whether storage holds little that nobody needs, by the last look of the level collect.",
}


def error_text(error: Exception) -> str:
    """Returns an error as text: errors of ours are sentences, of others the class says most."""
    return str(error) if isinstance(error, LakehouseError) else f"{type(error).__name__}: {error}"


def size_text(size: float) -> str:
    """Returns a number of bytes as text for a person, rounded to three or four digits: ``64 MiB``."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}" if size < 999.5 else f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:,.4g} TiB"


class Severity(StrEnum):
    """The severity of a finding."""

    WARN = "WARN"
    """It should be mended soon."""
    ERROR = "ERROR"
    """Readers and writers already suffer."""


@dataclass(frozen=True)
class Limit:
    """A number's limits: it is a finding if it reaches them."""

    warn: float
    """The number from which on it is a warning."""
    error: float
    """The number from which on it is an error: ten times a warning, where nothing better is known."""

    def severity(self, found: float) -> Severity | None:
        """Returns how severe a number is; None below both limits."""
        if found >= self.error:
            return Severity.ERROR
        return Severity.WARN if found >= self.warn else None


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a table."""

    check: Check
    severity: Severity
    action: str | None
    """The level of maintenance that mends it; None where a person must."""
    message: str
    """What is wrong, as a sentence with the numbers."""
    worst: tuple[PartitionHealth, ...] = ()
    """The worst of the partitions that have it, the worst first; none if it is of the whole table."""


class HealthMeasure(Protocol):
    """One kind of thing that may be wrong with a table; a level of maintenance is one."""

    def findings(self, health: TableHealth) -> Iterable[Finding]:
        """Finds what is wrong."""
        ...


Measures = Sequence[HealthMeasure]


def by_check(health: TableHealth, measures: Measures) -> dict[Check, list[Finding]]:
    """Returns all findings of each check, the gravest first; an empty list where there is none."""
    found = [finding for measure in measures for finding in measure.findings(health)]
    found.sort(key=lambda finding: finding.severity is not Severity.ERROR)
    return {check: [finding for finding in found if finding.check is check] for check in Check}
