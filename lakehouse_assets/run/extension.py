"""What a feature may add to a code location and to a table's run; the core knows no feature by name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import dagster as dg

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table as IcebergTable
    from pyiceberg.table.metadata import TableMetadata

    from lakehouse_assets.commit.commit_part import CommitPart
    from lakehouse_assets.commit.staged import StagedChunk
    from lakehouse_assets.declare.table import Table
    from lakehouse_assets.environment.settings import Settings
    from lakehouse_assets.errors import StageAgain
    from lakehouse_assets.run.run import Run, Staged
    from lakehouse_assets.wire.work import HookWork


@dataclass
class Shown:
    """What Dagster's UI shows of a run's materializations."""

    of_run: dict[str, Any] = field(default_factory=dict)
    """Metadata of each materialization of the run."""
    of_key: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Metadata by partition key; the key WHOLE for a table without partitions."""
    tags: dict[str, str] = field(default_factory=dict)
    """Tags of each materialization."""

    def add(self, other: Shown) -> None:
        """Adds what another hook shows."""
        self.of_run |= other.of_run
        self.tags |= other.tags
        for key, metadata in other.of_key.items():
            self.of_key[key] = {**self.of_key.get(key, {}), **metadata}


class RunHook:
    """A feature's part in one run of one table, in one process. Each method does nothing by default.

    A run calls plan() first, unless it resumes another run: then it reads that run's plan. For each staging it calls
    begin() and work(), then resume() if it resumes another and has chunks left, then parts() if there is something to
    publish; at the end published() and shown(). If the run fails, at any time, it calls failed(). begin(), work(),
    parts() and the parts may raise StageAgain if others changed what the rows depend on: all chunks are staged again.
    """

    name: ClassVar[str]
    """The name of the hook's part of the plan and of the assignments. People read it in "its <name> changed"."""

    def plan(self, run: Run, now: TableMetadata) -> Any:
        """Decides something once for all attempts of the run. Returns it as JSON data for RunPlan.part(), or None.

        Raises PublishRefused.
        """

    def resume(self, run: Run) -> None:
        """Raises PublishRefused if a resumed run can't stage its remaining chunks."""

    def begin(self, run: Run, now: IcebergTable, again: StageAgain | None) -> None:
        """Looks at the table before a staging. Raises PublishRefused.

        again: why the previous staging did not count; None at the first.
        """

    def work(self, run: Run) -> HookWork | None:
        """Returns what the workers get, if anything. Chunks that were staged with other work are staged again."""

    def parts(self, run: Run, staged: Staged) -> Iterable[CommitPart]:
        """Returns what the commit carries besides the rows."""
        return ()

    def published(self, run: Run, keys: Sequence[str]) -> None:
        """Gets the published partition keys, those of earlier attempts too.

        What it raises is logged: the rows are published.
        """

    def failed(self, run: Run, error: Exception) -> None:
        """Gets the error of a failing run, which may not have a plan yet. What this method raises is logged."""

    def shown(self, run: Run, forks: Sequence[StagedChunk]) -> Shown:
        """Returns what the UI shows of the published chunks. What it raises is logged, and shown instead."""
        return Shown()


class Upkeep(Protocol):
    """What a run of maintenance knows."""

    @property
    def catalog(self) -> Catalog:
        """The catalog."""

    @property
    def tables(self) -> Mapping[str, Table]:
        """All declared tables, by identifier."""

    @property
    def domains(self) -> Collection[str]:
        """The names of all domains."""

    @property
    def site(self) -> Any:
        """The catalog's storage as maintenance sees it: a Site, whose class the core does not import."""


class Extension:
    """A feature that plugs into tables and code locations. Each method does nothing by default."""

    def hooks(self, run: Run) -> Iterable[RunHook]:
        """Returns the feature's hooks in one run, in calling order."""
        return ()

    def problems(self, tables: Sequence[Table]) -> Iterable[str]:
        """Returns a sentence for each declaration that can't work with the others."""
        return ()

    def kept_snapshots(self, means: Upkeep, table: str, now: TableMetadata) -> Collection[int]:
        """Returns the ids of the snapshots that must not expire. Raises LakehouseError if they are unknown.

        Snapshots that a tag or branch names stay anyway.
        """
        return ()

    def definitions(self, tables: Sequence[Table], settings: Settings) -> dg.Definitions:
        """Returns what a code location with these tables gets once: sensors, jobs, checks."""
        return dg.Definitions()
