"""The seam of maintenance: what a level is, the work that it asks for, and what became of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING

import dagster as dg

from lakehouse_assets.health.findings import Finding
from lakehouse_assets.run.resource import Lakehouse

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from lakehouse_assets.collect.report import Report
    from lakehouse_assets.collect.seen import Site
    from lakehouse_assets.commit.tokens import RunToken
    from lakehouse_assets.declare.options import Maintenance
    from lakehouse_assets.declare.table import Table
    from lakehouse_assets.environment.launchers.base import Usage
    from lakehouse_assets.health.health import TableHealth
    from lakehouse_assets.health.partition_health import PartitionHealth

MIB = 2**20
OPEN_COST = 4 * MIB
"""The bytes that a scan could read in the time of opening one file (Iceberg's read.split.open-file-cost)."""


class Engine(StrEnum):
    """The engine that carries out an action."""

    PYTHON = "Python"
    """The run's own process."""
    SPARK = "Spark"
    """Workers of the launchers."""


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

    def __str__(self) -> str:
        names = {"files": self.files, "delete files": self.delete_files}
        names |= {"manifests": self.manifests, "snapshots": self.snapshots}
        return ", ".join(f"{count:,} {name}" for name, count in names.items() if count) or "nothing"


@dataclass(frozen=True)
class Candidate:
    """A piece of work that a level asks for: on one partition, or on the whole table."""

    table: str
    level: MaintenanceLevel
    reason: str
    """Why it is worth doing, with the numbers; empty for a partition, as an action counts all its partitions."""
    gain: Gain = Gain()
    size: int = 0
    """Bytes that are rewritten."""
    files: int = 0
    """Files that are read, or manifests."""
    partition: PartitionHealth | None = None
    """The partition that is rewritten; None for work on the whole table."""
    why_spark: str = ""
    """Why Spark is needed; empty if it is not."""
    why_not: str = ""
    """What speaks against the work; empty if nothing does."""

    @property
    def engine(self) -> Engine:
        """The engine that does the work: Spark where there is a reason for it, else Python."""
        return Engine.SPARK if self.why_spark else Engine.PYTHON


@dataclass(frozen=True)
class Action:
    """The work of one level on one table, by one engine."""

    table: str
    level: MaintenanceLevel
    engine: Engine
    partitions: tuple[PartitionHealth, ...]
    """The partitions to rewrite, the most rewarding first; empty for work on the whole table."""
    reason: str
    """Why it is worth doing, with the numbers."""
    gain: Gain
    """What is expected."""
    size: int
    """Bytes that are expected to be rewritten."""
    seconds: float
    """How long it is expected to take."""


@dataclass(frozen=True)
class Result:
    """The result of an action, in one form for all levels and engines."""

    gain: Gain = Gain()
    """What there is less of, removed by this work alone."""
    size: int = 0
    """Bytes that were rewritten, dropped ones included."""
    summary: str = ""
    """For a person to read."""
    proof: str = ""
    """What was compared, of a rewrite."""
    dropped: tuple[str, ...] = ()
    """Parts that did not land, each with its reason."""
    faults: tuple[str, ...] = ()
    """What must be shown in red, a sentence each."""
    nothing_landed: bool = False
    """Whether nothing landed, as writers were faster."""
    usages: tuple[Usage, ...] = ()
    """What the workers used that did it; empty where the run's own process did it."""


@dataclass(frozen=True)
class MaintenanceContext:
    """The means by which the actions of one run are carried out."""

    context: dg.OpExecutionContext
    lakehouse: Lakehouse
    catalog: Catalog
    tables: Mapping[str, Table]
    """All declared tables by identifier, those that the run leaves alone too."""
    run: RunToken
    """The id and the time of the run that carries out the actions."""
    site: Site
    """The site that the collector works with; it keeps what it has read of other tables, for all tables of the run."""
    allow_large: bool = False
    """Whether more than a fifth of a table may go to the trash."""
    force: bool = False
    """Whether work is done below its limits too."""
    domains: Collection[str] = ()
    """The names of all domains, in whose namespaces pointers of releases may be."""
    reports: list[Report] = field(default_factory=list)
    """What the collector has found so far."""

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties of the snapshots that actions commit."""
        return {"lakehouse.run-id": self.run.text}

    def token(self, action: Action) -> RunToken:
        """Returns the token of the action's commit: by it the same run does an action once."""
        from lakehouse_assets.commit.tokens import RunToken

        return RunToken(f"{self.run.text}.{action.level.name}.{action.engine}", self.run.created)


class MaintenanceLevel(ABC):
    """A level: one kind of maintenance, from what it measures to what it does."""

    name: str
    """The name that jobs and declarations take."""
    order: int = 1
    """Actions of a lower order are carried out first."""
    by_itself: bool = True
    """Whether it is done without being asked for."""
    commits: bool = True
    """Whether it commits to the table, which only one format version allows."""

    @abstractmethod
    def candidates(self, health: TableHealth, care: Maintenance, *, force: bool) -> Iterator[Candidate]:
        """Yields the work that a table's health asks for.

        care: how the owner wants the table maintained. force: whether to ask for all that would gain anything.
        """

    @abstractmethod
    def carry_out(self, means: MaintenanceContext, action: Action) -> Result:
        """Does the work. Raises LakehouseError where the table can't be maintained, and what catalogs raise."""

    def findings(self, health: TableHealth) -> Iterable[Finding]:
        """Finds what is wrong with a table, for the checks of its health."""
        return ()

    def measured(self, health: TableHealth) -> str:
        """Says what was found and from how much on that asks for work: ``2 % of 10 %``; empty without such a limit."""
        return ""

    def look(self, means: MaintenanceContext, action: Action) -> Result:
        """Looks, in a dry run, at what only a closer look shows; by default there is nothing more."""
        return Result()
