"""A change: what one publish commits to a table, as data. A run's is made here; compaction will make its own.
Committing it is publish.py's."""

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
    """Files that come, files that go, and what must not have happened meanwhile.

    region: the partitions that the change is about; every file that comes must lie in them.
    staged: the forks whose files come. The table must still be what they were forked from (conditions.py).
    removals: chooses the files that go on the table that an attempt loaded, given the schema of the staged files. Its
        check refuses where the change no longer fits what the table holds.
    operation: of the snapshot.
    """

    region: Region
    staged: tuple[StagedChunk, ...]
    removals: Callable[[Table, Schema], Removals]
    operation: Operation

    @classmethod
    def of_run(cls, mode: WriteMode, region: Region, staged: Sequence[StagedChunk]) -> Change:
        """What a run that staged this for ``region`` publishes in this write mode."""
        return cls(region, tuple(staged), partial(FilesInRegion, mode.replaced(region)), mode.operation)

    @cached_property
    def files(self) -> list[DataFile]:
        """The files that come, each path once."""
        return distinct_files(self.staged)

    def schema(self, table: Table) -> Schema:
        """The schema whose names the region uses: as staged, should a column have been renamed since."""
        return self.staged[0].schema if self.staged else table.schema()
