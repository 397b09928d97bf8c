"""A change: what one publish commits to a table, and how the files that it removes are chosen.
A run's change is built here; other kinds of work will build theirs. How it is committed is in publish.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Protocol

from pyiceberg.expressions.visitors import inclusive_projection, manifest_evaluator
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Operation

from lakehouse_assets.commit.staged import StagedChunk, distinct_files
from lakehouse_assets.declare.region import Region, Relation
from lakehouse_assets.declare.terms import spec_text
from lakehouse_assets.errors import PublishRefused
from lakehouse_assets.keys_text import keys_text

if TYPE_CHECKING:
    from lakehouse_assets.declare.modes import WriteMode


@dataclass(frozen=True)
class Change:
    """Files to add, files to remove, and what must not have happened to the table meanwhile.

    region: the partitions that every added file must be in.
    staged: the forks whose files are added. The table must still fit them (conditions.py).
    removals: called at each attempt to commit, with the table as it was loaded and schema() of it; returns what chooses
        the files to remove.
    operation: the snapshot's.
    """

    region: Region
    staged: tuple[StagedChunk, ...]
    removals: Callable[[IcebergTable, Schema], Removals]
    operation: Operation

    @classmethod
    def of_run(cls, mode: WriteMode, region: Region, staged: Sequence[StagedChunk]) -> Change:
        """What a run publishes after it staged these chunks for ``region``."""
        return cls(region, tuple(staged), partial(FilesInRegion, mode.replaced(region)), mode.operation)

    @cached_property
    def files(self) -> list[DataFile]:
        """The files to add, each path once."""
        return distinct_files(self.staged)

    def schema(self, table: IcebergTable) -> Schema:
        """The schema whose column names the region uses: the staged one, since a column may have been renamed."""
        return self.staged[0].schema if self.staged else table.schema()


class Removals(Protocol):
    """Chooses among the live data files of a table, for one attempt. Compaction and merges will name their files
    beforehand; their check will refuse if one of them is no longer live."""

    def may_be_in(self, manifest: ManifestFile) -> bool:
        """Whether the manifest must be read. False: by its partition summaries it lists no file to remove."""

    def include(self, file: DataFile) -> bool:
        """Whether the file is removed."""

    def check(self) -> None:
        """Called after the last file; raises PublishRefused if the files forbid the change."""


@dataclass
class FilesInRegion:
    """Every file inside a region. schema: the one whose column names the region uses.

    A scan's row filter would also find files of an old partition spec that reach beyond the region. So each file's
    partition decides, and a file of an old spec that is only partly inside is refused.
    """

    region: Region
    table: IcebergTable
    schema: Schema
    overlapping: list[DataFile] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._specs = self.table.metadata.specs()
        self._predicate = self.region.predicate()
        self._evaluators: dict[int, Callable[[ManifestFile], bool]] = {}

    def may_be_in(self, manifest: ManifestFile) -> bool:
        spec_id = manifest.partition_spec_id
        if spec_id not in self._evaluators:
            projected = inclusive_projection(self.schema, self._specs[spec_id])(self._predicate)
            self._evaluators[spec_id] = manifest_evaluator(self._specs[spec_id], self.schema, projected)
        return self._evaluators[spec_id](manifest)

    def include(self, file: DataFile) -> bool:
        relation = self.region.relation(self.schema, self._specs[file.spec_id], file.partition)
        if relation is Relation.OVERLAPS:
            self.overlapping.append(file)
        return relation is Relation.INSIDE

    def check(self) -> None:
        if not self.overlapping:
            return
        schema, specs, spec = self.table.schema(), self._specs, self.table.spec()
        paths = Counter(
            f"{specs[f.spec_id].partition_to_path(f.partition, schema)} (spec {f.spec_id})" for f in self.overlapping
        )
        old = "; ".join(
            f"spec {i} by {spec_text(specs[i], schema)}" for i in sorted({f.spec_id for f in self.overlapping})
        )
        raise PublishRefused(
            f"table {'.'.join(self.table.name())}: {len(self.overlapping)} files written under an older partition spec "
            f"lie only partly inside the partitions {keys_text(self.region.keys)}: "
            f"{', '.join(f'{p}: {n}' for p, n in paths.most_common(5))}. "
            "Replacing them would lose the rows of other partitions. The table is now partitioned by "
            f"{spec_text(spec, schema)} (spec {spec.spec_id}), these files are of {old}. Rewrite the old files under "
            "the current spec (rewrite_data_files), or materialize every partition they hold in one run"
        )
