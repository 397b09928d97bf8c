"""A change: what one publish commits to a table, and how the files that it removes are chosen.

A run's change is here, a merge's in row_changes.py, a rewrite's in land.py. It is committed in publish.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain

from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation

from lakehouse_assets.commit import conditions
from lakehouse_assets.commit.bounds import ManifestsWithin
from lakehouse_assets.commit.fork import refuse_other_versions
from lakehouse_assets.commit.manifest_plan import ManifestPlan, Removals, plan_manifests
from lakehouse_assets.commit.staged import StagedChunk
from lakehouse_assets.declare.region import Region, Relation
from lakehouse_assets.declare.terms import spec_text
from lakehouse_assets.errors import PublishRefused
from lakehouse_assets.keys_text import keys_text


class Publishable(ABC):
    """A change that publish() commits; it calls, at each attempt, needed() and plan().

    The texts are those of maintenance, whose next run does what this one could not.
    """

    operation: Operation
    """The operation of the snapshot."""
    consequence = "Nothing was changed; the next run begins anew"
    """The end of the message of a refusal: what became of the work, and what to do."""
    after_contention = "The table is as it was; the next run begins anew"
    """The same for the error where the attempts to commit run out."""

    def needed(self, now: TableMetadata) -> Collection[DataFile]:
        """Returns the files that must be in storage when the change is committed.

        It is empty if metadata alone forbids the change: if the table was created again, the old one's files may not be
        readable.
        """
        return ()

    @abstractmethod
    def plan(self, table: IcebergTable, missing: Collection[str]) -> ManifestPlan:
        """Plans what to commit to the table as it is now.

        missing: paths of needed files that are not in storage. Raises PublishRefused if the change doesn't fit the
            table.
        """

    def refused(self, table: str, problem: str) -> PublishRefused:
        """Makes the error for a problem.

        table: its name.
        """
        return PublishRefused(f"table {table}: {problem}. {self.consequence}")


class RunChange(Publishable):
    """A change of a run: what its workers have staged."""

    staged: Sequence[StagedChunk]
    """The forks whose files are added. The table must still fit them (conditions.py)."""
    consequence = "Nothing was published; materialize the partitions anew"
    after_contention = (
        "What was staged is kept: re-execute the run from failure, it finds out and publishes what is not published"
    )

    @property
    @abstractmethod
    def partitions(self) -> str:
        """The run's partitions, for messages."""

    @cached_property
    def files(self) -> list[DataFile]:
        """The data and delete files to add, each path once."""
        found = chain.from_iterable((*chunk.files, *chunk.deletes) for chunk in self.staged)
        return list({file.file_path: file for file in found}.values())

    def needed(self, now: TableMetadata) -> Collection[DataFile]:
        """Returns the files to add; none if metadata alone forbids the change."""
        return () if any(conditions.changed_since(now, self.staged)) else self.files

    def refused(self, table: str, problem: str) -> PublishRefused:
        """Makes the error for a problem. It names the partitions and says to materialize them anew."""
        return super().refused(f"{table}, {self.partitions}", problem)


@dataclass(frozen=True)
class Change(RunChange):
    """Files to add, files to remove, and what must not have happened to the table meanwhile."""

    region: Region
    """The run's partitions. Whether the added files are in them is the audit's question."""
    staged: tuple[StagedChunk, ...]
    removals: Callable[[IcebergTable, Schema], Removals]
    """Returns what chooses the files to remove. It is called at each attempt to commit, with the table as it was loaded
    and the schema that conditions.schema_of() finds."""
    operation: Operation

    @classmethod
    def appending(cls, region: Region, staged: Sequence[StagedChunk]) -> Change:
        """Makes the change that adds these chunks, staged for ``region``, and removes nothing."""
        return cls(region, tuple(staged), NoFiles, Operation.APPEND)

    @classmethod
    def replacing(cls, region: Region, staged: Sequence[StagedChunk]) -> Change:
        """Makes the change that removes all files in ``region`` and adds these chunks, staged for it."""
        return cls(region, tuple(staged), partial(FilesInRegion, region), Operation.OVERWRITE)

    @property
    def partitions(self) -> str:
        """Names the partitions of the region."""
        return keys_text(self.region.keys)

    def plan(self, table: IcebergTable, missing: Collection[str]) -> ManifestPlan:
        """Plans to add the files and to remove those that ``removals`` chooses.

        Raises PublishRefused if the table has a format version other than 2, or if the change doesn't fit it.
        """
        refuse_other_versions(table)
        for problem in conditions.broken(table, self.staged, missing):
            raise self.refused(".".join(table.name()), problem)
        return plan_manifests(table, self.files, self.removals(table, conditions.schema_of(table, self.staged)))


@dataclass(frozen=True)
class NoFiles:
    """Chooses no file to remove: an append removes none."""

    table: IcebergTable
    schema: Schema

    def may_be_in(self, manifest: ManifestFile) -> bool:
        """Returns False: no manifest has to be read."""
        return False

    def include(self, file: DataFile) -> bool:
        """Returns False: every file stays."""
        return False

    def check(self) -> None:
        """Does nothing: no file can forbid the change."""


@dataclass
class FilesInRegion:
    """Chooses every file inside a region.

    A scan's row filter would also find files of an old partition spec that reach beyond the region. So each file's
    partition decides, and a file of an old spec that is only partly inside is refused.
    """

    region: Region
    table: IcebergTable
    schema: Schema
    """The schema whose column names the region uses."""
    overlapping: list[DataFile] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._specs = self.table.metadata.specs()
        rows = self.region.predicate_on(self.schema, self._specs.values())
        self._within = ManifestsWithin(self.table.metadata, self.schema, rows)

    def may_be_in(self, manifest: ManifestFile) -> bool:
        """Tells whether the manifest may list files with rows of the region."""
        return self._within.may_be_in(manifest)

    def include(self, file: DataFile) -> bool:
        """Tells whether the whole file is inside the region, and notes for check() one that is only partly inside."""
        relation = self.region.relation(self.schema, self._specs[file.spec_id], file.partition)
        if relation is Relation.OVERLAPS:
            self.overlapping.append(file)
        return relation is Relation.INSIDE

    def check(self) -> None:
        """Raises PublishRefused if include() met a file that is only partly inside the region."""
        if not self.overlapping:
            return
        example, schema = self.overlapping[0], self.table.schema()
        old = self._specs[example.spec_id]
        raise PublishRefused(
            f"table {'.'.join(self.table.name())}: {len(self.overlapping)} files written under an older partition spec "
            f"lie only partly inside the partitions {keys_text(self.region.keys)}, such as those of "
            f"{old.partition_to_path(example.partition, schema)}, by {spec_text(old, schema)}. Replacing "
            "them would lose the rows of other partitions. The table is now partitioned by "
            f"{spec_text(self.table.spec(), schema)}. Rewrite the old files under the current spec "
            "(rewrite_data_files), or materialize every partition they hold in one run"
        )
