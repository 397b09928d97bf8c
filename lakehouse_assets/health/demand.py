"""Decides which kind of work a partition or a table asks for, from its numbers alone. Pure.

Findings and plans both ask here, so that nothing is reported that no plan mends.
"""

from __future__ import annotations

from math import ceil

from lakehouse_assets.declare.care import Level
from lakehouse_assets.health.gain import work_of
from lakehouse_assets.health.health import TableHealth
from lakehouse_assets.health.partition_health import PartitionHealth
from lakehouse_assets.health.thresholds import Limit, Severity, Thresholds


def number(level: Level, partition: PartitionHealth, target: int) -> float:
    """Returns the partition's number that is compared with the level's limit.

    target: bytes that a data file of the table should have.
    """
    match level:
        case Level.DELETES:
            return partition.deleted_share
        case Level.UNDERSIZED:
            return partition.undersized_size / target
        case _:
            return partition.fragments


def demand(level: Level, partition: PartitionHealth, target: int, thresholds: Thresholds) -> Severity | None:
    """Tells how urgently the partition asks to be rewritten for this level; None if it does not."""
    severity = limit(level, thresholds).severity(number(level, partition, target))
    return severity if gains(level, partition, target) else None


def limit(level: Level, thresholds: Thresholds) -> Limit:
    """Returns the limit that a partition's number is compared with."""
    match level:
        case Level.DELETES:
            return thresholds.deleted_share
        case Level.UNDERSIZED:
            return thresholds.undersized_targets
        case _:
            return thresholds.fragments


def gains(level: Level, partition: PartitionHealth, target: int) -> bool:
    """Tells whether a rewrite for the level would gain anything: for ``deletes`` no deletes, else fewer data files."""
    return partition.has_deletes if level is Level.DELETES else work_of(partition, target).gain.files > 0


def manifests_needed(health: TableHealth, thresholds: Thresholds) -> int:
    """Counts the manifests that would do to list the table's files."""
    return max(1, ceil((health.total("files") + health.total("delete_files")) / thresholds.manifest_entries))


def too_many_manifests(health: TableHealth, thresholds: Thresholds) -> Severity | None:
    """Tells how urgently the manifests ask to be rewritten; None if they do not.

    They do not ask where rewriting them is not worth it: by default, where a quarter of them or more would be left.
    """
    severity = thresholds.manifests.severity(health.manifests)
    return severity if health.manifests > most_manifests(health, thresholds) else None


def most_manifests(health: TableHealth, thresholds: Thresholds) -> int:
    """Counts the manifests that are no finding, however few would do."""
    return thresholds.manifest_surplus * manifests_needed(health, thresholds)


def long_history(health: TableHealth, thresholds: Thresholds) -> Severity | None:
    """Tells how urgently the table asks for snapshots to expire; None if it does not.

    The number of snapshots decides; if that is no finding, the size of metadata.json.
    """
    by_size = thresholds.metadata_size.severity(health.metadata_size)
    return thresholds.snapshots.severity(health.snapshots) or by_size
