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
    of_key: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Metadata by partition key; WHOLE for a table without partitions."""
    tags: dict[str, str] = field(default_factory=dict)
    """Tags of each of them."""

    def add(self, other: Shown) -> None:
        """Adds what another hook shows."""
        self.of_run |= other.of_run
        self.tags |= other.tags
        for key, metadata in other.of_key.items():
            self.of_key[key] = {**self.of_key.get(key, {}), **metadata}


class RunHook:
    """A feature's part in one run of one table, in one process. Each method does nothing by default.

    A run calls plan() first, unless it resumes another, which has planned it. For each staging it calls begin() and
    work(), resume() if a resumed run has chunks left, and parts() if there is something to publish; at the end
    published() and shown(). If it fails, at any time, it calls failed(). begin(), work(), parts() and the parts may
    raise StageAgain: then all chunks are staged again.
    """

    name: ClassVar[str]
    """Names its part of the plan and of the assignments, in words that people read: "its <name> changed"."""

    def plan(self, run: Run, now: TableMetadata) -> Any:
        """Returns a JSON value that RunPlan.part() has in all attempts of the run, or None. Raises PublishRefused."""

    def resume(self, run: Run) -> None:
        """Raises PublishRefused if a resumed run can't stage its remaining chunks."""

    def begin(self, run: Run, now: IcebergTable, again: StageAgain | None) -> None:
        """Looks at the table before a staging. again: why the last one did not count. Raises PublishRefused."""

    def work(self, run: Run) -> HookWork | None:
        """Returns what the workers get. Chunks staged with anything else are staged again."""

    def parts(self, run: Run, staged: Staged) -> Iterable[CommitPart]:
        """Returns what the commit carries."""
        return ()

    def published(self, run: Run, keys: Sequence[str]) -> None:
        """Gets the published partition keys, those of earlier attempts too. What it raises is logged."""

    def failed(self, run: Run, error: Exception) -> None:
        """Gets the reason why the run fails, perhaps before it has a plan. What it raises is logged."""

    def shown(self, run: Run, forks: Sequence[StagedChunk]) -> Shown:
        """Returns metadata of the published chunks. What it raises is logged."""
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
        """What the storage holds; each listing is read once."""


class Extension:
    """A feature that plugs into tables and code locations. Each method does nothing by default."""

    def hooks(self, run: Run) -> Iterable[RunHook]:
        """Returns its hooks in one run, in calling order."""
        return ()

    def problems(self, tables: Sequence[Table]) -> Iterable[str]:
        """Returns a sentence for each declaration that can't work with the others."""
        return ()

    def kept_snapshots(self, means: Upkeep, table: str, now: TableMetadata) -> Collection[int]:
        """Returns the snapshots that must not expire. Raises LakehouseError if they are unknown.

        Tags and branches keep theirs anyway.
        """
        return ()

    def definitions(self, tables: Sequence[Table], settings: Settings) -> dg.Definitions:
        """Returns what a code location with these tables has once."""
        return dg.Definitions()
