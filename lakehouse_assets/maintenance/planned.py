"""What a plan says: actions, what each is expected to gain and to cost, and why others are not taken. Data only.
What is planned is decided in policy.py; the actions are carried out by actions.py."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum

from lakehouse_assets.declare.care import Level
from lakehouse_assets.maintenance.partition_health import PartitionHealth

MIB = 2**20
OPEN_COST = 4 * MIB
"""Opening a file costs a scan as much as reading so many bytes (Iceberg's read.split.open-file-cost)."""
REWRITES = (Level.DELETES, Level.UNDERSIZED, Level.FRAGMENTS)
"""A partition is rewritten once, for the first of these that asks for it."""
OF_PARTITIONS = (*REWRITES, Level.SORT)


class Engine(StrEnum):
    """What carries out an action. PYTHON: the run's own process. SPARK: workers of the launchers."""

    PYTHON = "Python"
    SPARK = "Spark"


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
class Cost:
    """size: bytes that are rewritten. usd: an estimate, at list prices."""

    size: int = 0
    seconds: float = 0.0
    vcpu_hours: float = 0.0
    usd: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(Cost)))


@dataclass(frozen=True)
class PartitionWork:
    """The rewrite of one partition, with what it is expected to gain. size: bytes that are rewritten; files: that are
    read, deletes included."""

    partition: PartitionHealth
    gain: Gain
    size: int
    files: int


@dataclass(frozen=True)
class Action:
    """Work on one table.

    work: the partitions to rewrite, the most rewarding first; none for work on the whole table. reason: why, with the
    numbers. gain, cost: what is expected, corrected by what earlier actions really gained and cost.
    """

    table: str
    level: Level
    engine: Engine
    work: tuple[PartitionWork, ...]
    reason: str
    gain: Gain
    cost: Cost

    @property
    def size(self) -> int:
        """Bytes to be rewritten."""
        return self.cost.size


@dataclass(frozen=True)
class NotTaken:
    """An action, or a part of one, that is worth taking, and why it is not taken."""

    action: Action
    why: str


@dataclass(frozen=True)
class Plan:
    """taken: in the order in which to take them."""

    taken: tuple[Action, ...]
    not_taken: tuple[NotTaken, ...]


def rewrite_reason(work: Iterable[PartitionWork], why_spark: Iterable[str] = ()) -> str:
    """Why partitions are rewritten, with the numbers. why_spark: what of them needs Spark."""
    partitions = [of.partition for of in work]
    deletes = sum(partition.delete_files for partition in partitions)
    files = sum(partition.small_files for partition in partitions)
    also = f", {deletes:,} delete files" if deletes else ""
    spark = "".join(f"; by Spark: {reason}" for reason in sorted(why_spark))
    return f"{files:,} small files{also} in {len(partitions):,} partition{'s' if len(partitions) > 1 else ''}{spark}"
