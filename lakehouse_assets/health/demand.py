"""Which kind of work a partition or a table asks for: from its numbers alone. Pure.
Findings and plans both ask here, so that nothing is reported that no plan mends."""

from __future__ import annotations

from math import ceil

from lakehouse_assets.declare.care import Level
from lakehouse_assets.health.gain import work_of
from lakehouse_assets.health.health import TableHealth
from lakehouse_assets.health.partition_health import PartitionHealth
from lakehouse_assets.health.thresholds import Severity, Thresholds


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
