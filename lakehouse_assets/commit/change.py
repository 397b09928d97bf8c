"""A change: what one publish commits to a table. A run's change is built here; other kinds of work will build theirs.
How it is committed is in publish.py, which files it removes in removals.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from lakehouse_assets.commit.removals import FilesInRegion, Removals
from lakehouse_assets.commit.staged import StagedChunk, distinct_files

if TYPE_CHECKING:
    from lakehouse_assets.declare.modes import WriteMode
    from lakehouse_assets.declare.region import Region


@dataclass(frozen=True)
class Change:
    """Files to add, files to remove, and what must not have happened to the table meanwhile.

    region: the partitions that the change concerns; every added file must be in one of them.
    staged: the forks whose files are added. The table must still fit them (conditions.py).
    removals: given the table as an attempt loaded it and the schema of the staged files, chooses the files to remove,
        or refuses because what the table holds by now does not fit the change.
    operation: the snapshot's.
    """

    region: Region
    staged: tuple[StagedChunk, ...]
    removals: Callable[[Table, Schema], Removals]
    operation: Operation

    @classmethod
    def of_run(cls, mode: WriteMode, region: Region, staged: Sequence[StagedChunk]) -> Change:
        """What a run publishes in this write mode after it staged these chunks for ``region``."""
        return cls(region, tuple(staged), partial(FilesInRegion, mode.replaced(region)), mode.operation)

    @cached_property
    def files(self) -> list[DataFile]:
        """The files to add, each path once."""
        return distinct_files(self.staged)

    def schema(self, table: Table) -> Schema:
        """The schema whose column names the region uses: the staged one, since a column may have been renamed."""
        return self.staged[0].schema if self.staged else table.schema()
