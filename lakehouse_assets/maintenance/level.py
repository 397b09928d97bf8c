"""Maintenance levels: a level is one kind of maintenance, such as ``expire``.

It yields candidates for work. The policy makes actions of them, and the level carries these out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from math import ceil
from typing import TYPE_CHECKING

import dagster as dg

from lakehouse_assets.maintenance.health.findings import Finding
from lakehouse_assets.run.extension import Extension
from lakehouse_assets.run.resource import Lakehouse

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from lakehouse_assets.commit.tokens import RunToken
    from lakehouse_assets.declare.options import Maintenance
    from lakehouse_assets.declare.table import Table
    from lakehouse_assets.environment.launchers.base import Usage
    from lakehouse_assets.maintenance.collect.report import Report
    from lakehouse_assets.maintenance.collect.seen import Site
    from lakehouse_assets.maintenance.health.health import TableHealth
    from lakehouse_assets.maintenance.health.partition_health import PartitionHealth

MIB = 2**20
OPEN_COST = 4 * MIB
"""The bytes that a scan could read while opening a file (Iceberg's read.split.open-file-cost)."""


def fewer_files(files: int, size: float, target: int) -> int:
    """Returns how many fewer files a rewrite leaves. size: bytes of all files together. target: bytes of a new one."""
    return max(0, files - ceil(size / target))


class Engine(StrEnum):
    """What carries out an action."""

    PYTHON = "Python"
    """The run's own process."""
    SPARK = "Spark"
    """Workers."""


@dataclass(frozen=True)
class Gain:
    """What the work removes, and the time that readers then save."""

    files: int = 0
    delete_files: int = 0
    manifests: int = 0
    snapshots: int = 0
    scan_work: int = 0
    """The time that a full scan saves, as the bytes that it could read in that time. For snapshots: the bytes that each
    load no longer reads."""

    def __add__(self, other: Gain) -> Gain:
        return Gain(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(Gain)))

    def __str__(self) -> str:
        names = {"files": self.files, "delete files": self.delete_files}
        names |= {"manifests": self.manifests, "snapshots": self.snapshots}
        return ", ".join(f"{count:,} {name}" for name, count in names.items() if count) or "nothing"


@dataclass(frozen=True)
class Candidate:
    """Work that a level asks for."""

    table: str
    level: MaintenanceLevel
    reason: str
    """Empty for one partition: its action has a reason for all partitions together."""
    gain: Gain = Gain()
    size: int = 0
    """Bytes to rewrite."""
    files: int = 0
    """Files to read."""
    partition: PartitionHealth | None = None
    """None: the whole table."""
    why_spark: str = ""
    """Why Spark does it; empty if this process does."""
    why_not: str = ""
    """Why not to do it now; empty if nothing prevents it."""

    @property
    def engine(self) -> Engine:
        """Spark if there is a reason for it."""
        return Engine.SPARK if self.why_spark else Engine.PYTHON


@dataclass(frozen=True)
class Action:
    """The work of one level on one table; gain, size in bytes and seconds are estimates."""

    table: str
    level: MaintenanceLevel
    engine: Engine
    partitions: tuple[PartitionHealth, ...]
    """Best first; empty for the whole table."""
    reason: str
    gain: Gain
    size: int
    seconds: float


@dataclass(frozen=True)
class Result:
    """The result of an action."""

    gain: Gain = Gain()
    size: int = 0
    """Bytes rewritten, including those that did not land."""
    summary: str = ""
    proof: str = ""
    """What shows that nothing was lost, such as ``1,000 rows, counted``."""
    dropped: tuple[str, ...] = ()
    """What did not land, and why."""
    faults: tuple[str, ...] = ()
    """What went wrong: with these texts, the run fails at its end."""
    nothing_landed: bool = False
    """Whether there was work and none of it landed: usually, writers were faster."""
    usages: tuple[Usage, ...] = ()


@dataclass(frozen=True)
class MaintenanceContext:
    """What actions need."""

    context: dg.OpExecutionContext
    lakehouse: Lakehouse
    catalog: Catalog
    tables: Mapping[str, Table]
    """All declared ones: runs of any may have pinned a maintained table's snapshots."""
    run: RunToken
    site: Site
    """The catalog and the storage as the collector sees them. All actions share what it reads of other tables."""
    extensions: Sequence[Extension]
    allow_large: bool = False
    """Whether more than a fifth of a table's bytes may go to the trash."""
    force: bool = False
    """As in MaintenanceLevel.candidates()."""
    domains: Collection[str] = ()
    """The names of all domains. Their namespaces may hold pointers of releases, which keep snapshots."""
    reports: list[Report] = field(default_factory=list)

    @property
    def properties(self) -> Mapping[str, str]:
        """The commits' snapshot properties."""
        from lakehouse_assets.commit.tokens import RUN_ID

        return {RUN_ID: self.run.text}

    def token(self, action: Action) -> RunToken:
        """Returns the token of the action's commit: a repeated action finds it and does nothing."""
        from lakehouse_assets.commit.tokens import RunToken

        return RunToken(f"{self.run.text}.{action.level.name}.{action.engine}", self.run.created)


class MaintenanceLevel(ABC):
    """One kind of maintenance."""

    name: str
    order: int = 1
    """Lower ones run first."""
    by_itself: bool = True
    """Whether it runs if nobody names it."""
    commits: bool = True
    """Whether it commits, which needs a supported format version."""

    @abstractmethod
    def candidates(self, health: TableHealth, care: Maintenance, *, force: bool) -> Iterator[Candidate]:
        """Yields the work that a table's health asks for. care: its declared maintenance.

        force: also work below the limits, if it gains anything.
        """

    @abstractmethod
    def carry_out(self, means: MaintenanceContext, action: Action) -> Result:
        """Does the action's work and returns the result. Raises LakehouseError if the table can't be maintained."""

    def findings(self, health: TableHealth) -> Iterable[Finding]:
        """Returns what is wrong."""
        return ()

    def measured(self, health: TableHealth) -> str:
        """Returns the number and its limit, such as ``2 % of 10 %``, if any."""
        return ""

    def look(self, means: MaintenanceContext, action: Action) -> Result:
        """Looks, in a dry run, at what metadata does not show. Changes nothing."""
        return Result()
