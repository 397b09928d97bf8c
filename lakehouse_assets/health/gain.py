"""Estimates what the rewrite of a partition would gain, from its numbers alone. Pure.

Whether it is worth asking for is demand.py's, what it costs is known to the policy.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import ceil

from lakehouse_assets.health.partition_health import PartitionHealth

MIB = 2**20
OPEN_COST = 4 * MIB
"""The bytes that a scan could read in the time of opening one file (Iceberg's read.split.open-file-cost)."""


@dataclass(frozen=True)
class Gain:
    """The gain of a piece of work: how many things there are less of, and how much less there is to read."""

    files: int = 0
    """Fewer data files."""
    delete_files: int = 0
    manifests: int = 0
    snapshots: int = 0
    scan_work: int = 0
    """How much less a scan of everything has to do, in bytes that it would read in the same time; for snapshots, the
    bytes that a load reads less."""

    def __add__(self, other: Gain) -> Gain:
        return Gain(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(Gain)))

    def times(self, ratio: float) -> Gain:
        """Returns a gain ``ratio`` times as large, in whole numbers."""
        return Gain(*(round(getattr(self, field.name) * ratio) for field in fields(Gain)))

    @property
    def things(self) -> int:
        """Files, manifests and snapshots together: one number to compare what was expected with what was found."""
        return self.files + self.delete_files + self.manifests + self.snapshots

    def __str__(self) -> str:
        names = {"files": self.files, "delete files": self.delete_files}
        names |= {"manifests": self.manifests, "snapshots": self.snapshots}
        return ", ".join(f"{count:,} {name}" for name, count in names.items() if count) or "nothing"


@dataclass(frozen=True)
class PartitionWork:
    """The rewrite of one partition, with what it is expected to gain."""

    partition: PartitionHealth
    gain: Gain
    size: int
    """The bytes that are rewritten."""
    files: int
    """How many files are read, delete files included."""


def work_of(partition: PartitionHealth, target: int) -> PartitionWork:
    """Returns the rewrite of a partition: of its small files, or of all its files if it has deletes.

    target: bytes that a data file of the table should have.
    """
    if partition.has_deletes:
        files, size = partition.files, partition.size
    else:
        files, size = partition.small_files, partition.small_size
    fewer = max(0, files - ceil(size * (1 - partition.deleted_share) / target))
    opened = fewer + partition.delete_files
    deleted = round(partition.size * partition.deleted_share)
    gain = Gain(files=fewer, delete_files=partition.delete_files, scan_work=opened * OPEN_COST + deleted)
    return PartitionWork(partition, gain, size, files + partition.delete_files)
