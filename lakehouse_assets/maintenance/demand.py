"""Which kind of work a partition or a table asks for, and what that work would gain: from its numbers alone. Pure.
Findings and plans both ask here, so that nothing is reported that no plan mends."""

from __future__ import annotations

from math import ceil

from lakehouse_assets.declare.care import Level
from lakehouse_assets.maintenance.health import TableHealth
from lakehouse_assets.maintenance.partition_health import PartitionHealth
from lakehouse_assets.maintenance.planned import OPEN_COST, Gain, PartitionWork
from lakehouse_assets.maintenance.thresholds import Severity, Thresholds


def number(level: Level, partition: PartitionHealth, target: int) -> float:
    """What is held against the level's limit. target: bytes that a data file of the table should have."""
    match level:
        case Level.DELETES:
            return partition.deleted_share
        case Level.UNDERSIZED:
            return partition.undersized_size / target
        case _:
            return partition.fragments


def demand(level: Level, partition: PartitionHealth, target: int, thresholds: Thresholds) -> Severity | None:
    """How urgently the partition asks to be rewritten for this level; None if it does not, or where as many files would
    be left."""
    limits = {Level.DELETES: thresholds.deleted_share, Level.UNDERSIZED: thresholds.undersized_targets}
    severity = limits.get(level, thresholds.fragments).severity(number(level, partition, target))
    gains = level is Level.DELETES or work_of(partition, target).gain.files > 0
    return severity if gains else None


def work_of(partition: PartitionHealth, target: int) -> PartitionWork:
    """What a rewrite of the partition does: small files become few, and all files where rows are deleted."""
    if partition.delete_files or partition.rows_deleted_at_most:
        files, size = partition.files, partition.size
    else:
        files, size = partition.small_files, partition.small_size
    fewer = max(0, files - ceil(size * (1 - partition.deleted_share) / target))
    opened = fewer + partition.delete_files
    deleted = round(partition.size * partition.deleted_share)
    gain = Gain(files=fewer, delete_files=partition.delete_files, scan_work=opened * OPEN_COST + deleted)
    return PartitionWork(partition, gain, size, files + partition.delete_files)


def manifests_needed(health: TableHealth, thresholds: Thresholds) -> int:
    """How many manifests would list the table's files."""
    return max(1, ceil((health.total("files") + health.total("delete_files")) / thresholds.manifest_entries))


def too_many_manifests(health: TableHealth, thresholds: Thresholds) -> Severity | None:
    """None too where rewriting them would leave more than a quarter."""
    severity = thresholds.manifests.severity(health.manifests)
    return severity if health.manifests > 4 * manifests_needed(health, thresholds) else None


def long_history(health: TableHealth, thresholds: Thresholds) -> Severity | None:
    """Of its snapshots, or of the size of its metadata.json."""
    by_size = thresholds.metadata_size.severity(health.metadata_size)
    return thresholds.snapshots.severity(health.snapshots) or by_size
