"""What the rewrite of a partition would gain: of its numbers alone. Pure.
Whether it is worth asking for is demand.py's, what it costs is known to the policy."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import ceil

from lakehouse_assets.health.partition_health import PartitionHealth

MIB = 2**20
OPEN_COST = 4 * MIB
"""Opening a file costs a scan as much as reading so many bytes (Iceberg's read.split.open-file-cost)."""


@dataclass(frozen=True)
class Gain:
    """What there is less of: data files, delete files, manifests, snapshots. scan_work: how much less a scan of
    everything has to do, in bytes that it would read in the same time; of snapshots, what a load reads less."""

    files: int = 0
    delete_files: int = 0
    manifests: int = 0
    snapshots: int = 0
    scan_work: int = 0

    def __add__(self, other: Gain) -> Gain:
        return Gain(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(Gain)))

    def times(self, ratio: float) -> Gain:
        """A gain that many times as large, in whole numbers."""
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
    """The rewrite of one partition, with what it is expected to gain. size: bytes that are rewritten; files: that are
    read, deletes included."""

    partition: PartitionHealth
    gain: Gain
    size: int
    files: int


def work_of(partition: PartitionHealth, target: int) -> PartitionWork:
    """What a rewrite of the partition does: small files become few, and all files where rows are deleted."""
    if partition.has_deletes:
        files, size = partition.files, partition.size
    else:
        files, size = partition.small_files, partition.small_size
    fewer = max(0, files - ceil(size * (1 - partition.deleted_share) / target))
    opened = fewer + partition.delete_files
    deleted = round(partition.size * partition.deleted_share)
    gain = Gain(files=fewer, delete_files=partition.delete_files, scan_work=opened * OPEN_COST + deleted)
    return PartitionWork(partition, gain, size, files + partition.delete_files)
