"""The state of one run of a table's asset."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import dagster as dg
from pyiceberg.table import Table as IcebergTable

from lakehouse_assets.commit.audit import AuditFinding
from lakehouse_assets.commit.evolution import Evolution
from lakehouse_assets.commit.publish import Published
from lakehouse_assets.commit.staged import StagedChunk
from lakehouse_assets.commit.strategies import WriteStrategy, strategy_of
from lakehouse_assets.commit.tokens import RunToken
from lakehouse_assets.declare.region import Region
from lakehouse_assets.declare.table import Table
from lakehouse_assets.drive.chunks import Chunk, Journal, Results, WorkerFailure
from lakehouse_assets.environment.launchers.base import Attempt, Launcher
from lakehouse_assets.keys_text import parts_of
from lakehouse_assets.run.plan import Plans, RunPlan, plans_of
from lakehouse_assets.run.resource import Lakehouse


@dataclass(frozen=True)
class Staging:
    """The table at the start of a staging."""

    evolution: Evolution
    earlier: Mapping[int, int]
    """Chunks that an earlier attempt with this token has published, by ordinal, → snapshot id."""
    attempts: Mapping[int, Attempt]
    """The first attempt at each chunk, by ordinal."""


@dataclass(frozen=True)
class Staged:
    """What is staged and ready to be published."""

    chunks: Sequence[Chunk]
    """The chunks with a receipt, without those that an earlier attempt has published."""
    forks: Sequence[StagedChunk]
    """What their workers wrote, in the order of ``chunks``."""
    table: IcebergTable
    """Loaded after staging: credentials vended when the run began may have expired."""


@dataclass
class Run:
    """One run of a table's asset, and its state."""

    context: dg.AssetExecutionContext
    table: Table
    lakehouse: Lakehouse
    token: RunToken
    """The run's own, or that of the first run in the chain that it resumes."""
    keys: tuple[str, ...]
    """Empty for a table without partitions."""
    results: Results = field(default_factory=Results)
    findings: list[AuditFinding] = field(default_factory=list)
    started: float = field(default_factory=time.time)
    """Epoch seconds."""
    plan: RunPlan = field(init=False)
    is_resumed: bool = False
    """Whether another process made the plan."""
    staging: Staging = field(init=False)
    staged: Staged = field(init=False)
    published: Published = field(init=False)

    @property
    def resumes_another(self) -> bool:
        """Whether it re-executes a run from failure."""
        return self.token.text != self.context.run.run_id

    @cached_property
    def region(self) -> Region:
        """What the run's keys own. Raises UnknownPartitions."""
        return self.table.alignment.region(self.keys)

    @cached_property
    def plans(self) -> Plans:
        """The plans of the table's runs."""
        return plans_of(self.lakehouse, self.table.identifier)

    @property
    def journal(self) -> Journal:
        """The journal of the run's chunks."""
        return self.plans.journal(self.token.text)

    @cached_property
    def strategy(self) -> WriteStrategy:
        """The strategy of the table's write mode."""
        return strategy_of(self.table.write_mode)

    @cached_property
    def launcher(self) -> Launcher:
        """The launcher of the run's workers."""
        return self.lakehouse.launcher(self.table.compute)

    @property
    def bad_keys(self) -> frozenset[str]:
        """The partitions that workers or the audit blame."""
        return bad_keys(self.results.failures, self.findings)

    def region_of(self, chunks: Sequence[Chunk]) -> Region:
        """Returns the part of the table that these chunks own."""
        every = len(chunks) == len(self.plan.chunks)
        return self.region if every else self.table.alignment.region([key for c in chunks for key in c.keys])


def bad_keys(failures: Iterable[WorkerFailure], findings: Iterable[AuditFinding]) -> frozenset[str]:
    """Returns the partitions that failures name as bad; WHOLE for a table without partitions.

    If a worker had several partitions, only its step can name those that failed, by raising BadPartitions; otherwise
    none of them is named.
    """
    named = [f.bad or (parts_of(f.chunk.keys) if len(f.chunk.keys) < 2 else ()) for f in failures]
    return frozenset(key for keys in (*named, *(finding.bad for finding in findings)) for key in keys)
