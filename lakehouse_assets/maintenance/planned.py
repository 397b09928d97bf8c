"""A plan as data only: actions, what each is expected to gain and to cost, and why others are not taken.

What is planned is decided in policy.py; the actions are carried out by actions.py.
"""

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
    """The engine that carries out an action."""

    PYTHON = "Python"
    """The run's own process."""
    SPARK = "Spark"
    """Workers of the launchers."""


@dataclass(frozen=True)
class Cost:
    """The cost of work."""

    size: int = 0
    """Bytes that are rewritten."""
    seconds: float = 0.0
    vcpu_hours: float = 0.0
    usd: float = 0.0
    """An estimate, at list prices."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(Cost)))


@dataclass(frozen=True)
class Action:
    """The work of one level on one table, by one engine."""

    table: str
    level: Level
    engine: Engine
    work: tuple[PartitionWork, ...]
    """The partitions to rewrite, the most rewarding first; empty for work on the whole table."""
    reason: str
    """Why it is worth doing, with the numbers."""
    gain: Gain
    """What is expected, corrected by what earlier actions really gained."""
    cost: Cost
    """What is expected, corrected by what earlier actions really cost."""

    @property
    def size(self) -> int:
        """The bytes to be rewritten."""
        return self.cost.size


@dataclass(frozen=True)
class NotTaken:
    """An action, or a part of one, that is worth taking, and why it is not taken."""

    action: Action
    why: str


@dataclass(frozen=True)
class Plan:
    """The actions to take now, and those that are left."""

    taken: tuple[Action, ...]
    """In the order in which to carry them out."""
    not_taken: tuple[NotTaken, ...]


def rewrite_reason(work: Iterable[PartitionWork], why_spark: Iterable[str] = ()) -> str:
    """Says why partitions are rewritten, with the numbers. why_spark: the reasons why Spark is needed."""
    partitions = [of.partition for of in work]
    deletes = sum(partition.delete_files for partition in partitions)
    files = sum(partition.small_files for partition in partitions)
    also = f", {deletes:,} delete files" if deletes else ""
    spark = "".join(f"; by Spark: {reason}" for reason in sorted(why_spark))
    return f"{files:,} small files{also} in {len(partitions):,} partition{'s' if len(partitions) > 1 else ''}{spark}"
