"""What a plan says: actions, what each is expected to gain and to cost, and why others are not taken. Data only.
What is planned is decided in policy.py; the actions are carried out by actions.py."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum

from lakehouse_assets.declare.care import Level
from lakehouse_assets.health.gain import Gain, PartitionWork

REWRITES = (Level.DELETES, Level.UNDERSIZED, Level.FRAGMENTS)
"""A partition is rewritten once, for the first of these that asks for it."""
OF_PARTITIONS = (*REWRITES, Level.SORT)


class Engine(StrEnum):
    """What carries out an action. PYTHON: the run's own process. SPARK: workers of the launchers."""

    PYTHON = "Python"
    SPARK = "Spark"


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
