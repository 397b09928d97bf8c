"""A change: what one publish commits to a table, and how the files that it removes are chosen.

A run's change is here, a merge's in row_changes.py, a rewrite's in land.py. It is committed in publish.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation

from lakehouse_assets.commit import conditions
from lakehouse_assets.commit.bounds import ManifestsWithin
from lakehouse_assets.commit.entries import partition_paths
from lakehouse_assets.commit.fork import refuse_other_versions
from lakehouse_assets.commit.manifest_plan import ManifestPlan, arrival, live_manifests
from lakehouse_assets.commit.manifest_reader import live_entries
from lakehouse_assets.commit.staged import StagedChunk
from lakehouse_assets.declare.columns import spec_text
from lakehouse_assets.declare.region import Region, Relation
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
        keys = [key for chunk in self.staged for key in chunk.receipt.keys]
        return super().refused(f"{table}, {keys_text(keys)}", problem)

    def refuse_unfit(self, table: IcebergTable, missing: Collection[str]) -> None:
        """Raises PublishRefused where the table has a format version other than 2, or what was staged doesn't fit it.

        missing: the same as for plan().
        """
        refuse_other_versions(table)
        for problem in conditions.broken(table, self.staged, missing):
            raise self.refused(".".join(table.name()), problem)


@dataclass(frozen=True)
class Change(RunChange):
    """Files to add, in place of those in a region or beside them."""

    region: Region
    """The run's partitions. Whether the added files are in them is the audit's question."""
    staged: Sequence[StagedChunk]
    operation: Operation = Operation.OVERWRITE
    """OVERWRITE removes all files in the region, APPEND none."""

    def plan(self, table: IcebergTable, missing: Collection[str]) -> ManifestPlan:
        """Plans to add the files, and to remove those in the region where the change overwrites.

        Each manifest is read once, and only if it may list a file to remove. A file that was published with a part of
        its run stays as it is: if a snapshot removed it and added it again, expiring that snapshot would delete it.
        Raises as refuse_unfit() and FilesInRegion.check().
        """
        self.refuse_unfit(table, missing)
        if self.operation is Operation.APPEND:
            return ManifestPlan(added=[*map(arrival, self.files)], untouched=live_manifests(table))
        # The staged schema has the names that the region uses: a column may have been renamed since.
        removed = FilesInRegion(self.region, table, self.staged[0].schema if self.staged else table.schema())
        plan, arriving = ManifestPlan(), {file.file_path for file in self.files}

        def goes(entry: ManifestEntry) -> bool:
            path = entry.data_file.file_path
            stays = path in arriving or not removed.include(entry.data_file)
            arriving.discard(path)
            return not stays

        for manifest in live_manifests(table):
            if manifest.content is not ManifestContent.DATA or not removed.may_be_in(manifest):
                plan.untouched.append(manifest)
            else:
                plan.split(manifest, live_entries(table.io, manifest), goes)
        removed.check()
        plan.added = [arrival(file) for file in self.files if file.file_path in arriving]
        return plan


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

    def touches(self, file: DataFile) -> bool:
        """Tells whether the file may have rows of the region."""
        return self._relation(file) is not Relation.OUTSIDE

    def _relation(self, file: DataFile) -> Relation:
        return self.region.relation(self.schema, self._specs[file.spec_id], file.partition)

    def include(self, file: DataFile) -> bool:
        """Tells whether the whole file is inside the region, and notes for check() one that is only partly inside."""
        relation = self._relation(file)
        if relation is Relation.OVERLAPS:
            self.overlapping.append(file)
        return relation is Relation.INSIDE

    def check(self) -> None:
        """Raises PublishRefused if include() met a file that is only partly inside the region."""
        if not self.overlapping:
            return
        example, schema = self.overlapping[0], self.table.schema()
        old = self._specs[example.spec_id]
        path = partition_paths(self.table.metadata)((example.spec_id, example.partition))
        raise PublishRefused(
            f"table {'.'.join(self.table.name())}: {len(self.overlapping)} files written under an older partition spec "
            f"lie only partly inside the partitions {keys_text(self.region.keys)}, such as those of {path}, by "
            f"{spec_text(old, schema)}. Replacing them would lose the rows of other partitions. The table is now "
            f"partitioned by {spec_text(self.table.spec(), schema)}. Rewrite the old files under the current spec "
            "(rewrite_data_files), or materialize every partition they hold in one run"
        )
