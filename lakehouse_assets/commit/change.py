"""Changes: what a publish commits to a table, and the conflicts for which it is refused."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, In, LessThanOrEqual, Reference
from pyiceberg.expressions.literals import Literal, literal
from pyiceberg.expressions.visitors import (
    _InclusiveMetricsEvaluator,
    expression_evaluator,
    inclusive_projection,
    manifest_evaluator,
)
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.typedef import Record
from pyiceberg.types import IcebergType, TimestampType, TimestamptzType

from lakehouse_assets.commit import deletes
from lakehouse_assets.commit.fork import refuse_other_versions
from lakehouse_assets.commit.manifests import (
    Entries,
    ManifestPlan,
    Partitions,
    added_entry,
    live_entries,
    live_manifests,
    partition_of,
    partition_paths,
)
from lakehouse_assets.commit.staged import StagedChunk, distinct_files, nulls_in, repeated_chunks
from lakehouse_assets.commit.tokens import is_rolled_back, keeps_rows_since
from lakehouse_assets.declare.columns import spec_text
from lakehouse_assets.declare.region import Region, Relation
from lakehouse_assets.errors import PublishRefused, StageAgain
from lakehouse_assets.keys_text import keys_text
from lakehouse_assets.wire.work import Bound


def predicate(bounds: Iterable[Bound], schema: Schema) -> BooleanExpression:
    """Builds the predicate for rows within all bounds.

    Skips bounds that PyIceberg can't read, such as days after the year 9999; more rows then count as within.
    """
    found: BooleanExpression = AlwaysTrue()
    for bound in bounds:
        with suppress(ValueError):
            found = And(found, _bound_predicate(bound, schema.find_type(bound.column)))
    return found


def _bound_predicate(bound: Bound, kind: IcebergType) -> BooleanExpression:
    column = Reference(bound.column)
    if bound.values:
        return In(term=column, values={_value(text, kind) for text in bound.values})
    low, high = _value(bound.low, kind), _value(bound.high, kind)
    return And(GreaterThanOrEqual(term=column, value=low), LessThanOrEqual(term=column, value=high))


def _value(text: str, kind: IcebergType) -> Literal[Any]:
    if isinstance(kind, (TimestampType, TimestamptzType)):
        return literal(int(text)).to(kind)  # bounds have times in microseconds
    return literal(text).to(kind)


@dataclass
class ManifestsWithin:
    """Finds manifests that may list files with rows for which a predicate holds."""

    metadata: TableMetadata
    schema: Schema
    predicate: BooleanExpression
    _manifests: dict[int, Callable[[ManifestFile], bool]] = field(default_factory=dict, init=False)
    """Tests of manifests, by spec id."""

    def may_be_in(self, manifest: ManifestFile) -> bool:
        """Whether the manifest may list such a file."""
        spec_id = manifest.partition_spec_id
        if spec_id not in self._manifests:
            spec = self.metadata.specs()[spec_id]
            projected = inclusive_projection(self.schema, spec)(self.predicate)
            self._manifests[spec_id] = manifest_evaluator(spec, self.schema, projected)
        return self._manifests[spec_id](manifest)


@dataclass
class Within(ManifestsWithin):
    """Finds files that may hold such rows, and their manifests."""

    _partitions: dict[int, Callable[[Record], bool]] = field(default_factory=dict, init=False)
    """Tests of partitions, by spec id."""

    def __post_init__(self) -> None:
        self._metrics = _InclusiveMetricsEvaluator(self.schema, self.predicate)

    def has(self, file: DataFile) -> bool:
        """Whether the file may hold such rows or delete them."""
        spec_id = file.spec_id
        if spec_id not in self._partitions:
            spec = self.metadata.specs()[spec_id]
            projected = inclusive_projection(self.schema, spec)(self.predicate)
            fields = Schema(*spec.partition_type(self.schema).fields)
            self._partitions[spec_id] = expression_evaluator(fields, projected, case_sensitive=True)
        if not self._partitions[spec_id](file.partition):
            return False
        # Only the partition decides about a delete file: metrics of position deletes are of paths and positions, not of
        # the rows that they delete.
        return file.content is not DataFileContent.DATA or bool(self._metrics.eval(file))


def broken(table: IcebergTable, staged: Sequence[StagedChunk], missing: Collection[str]) -> Iterator[str]:
    """Yields why the chunks can't be published to the table as it is now, causes before consequences."""
    if repeated := repeated_chunks(staged):
        yield f"the chunks {repeated} were handed in more than once; expected one receipt for each"
    yield from changed_since(table.metadata, staged)
    if missing:
        yield (
            f"{len(missing)} of {len(distinct_files(staged))} staged files are gone, such as {min(missing)}; they may "
            "have been removed as orphans"
        )
    for chunk in staged:
        if table.metadata.current_schema_id != chunk.metadata.current_schema_id:
            yield from _new_nulls(table.schema(), chunk)


def changed_since(now: TableMetadata, staged: Sequence[StagedChunk]) -> Iterator[str]:
    """Yields why the staged files no longer fit the table."""
    for chunk in staged:
        then = chunk.metadata
        if now.table_uuid != then.table_uuid:
            yield f"it was dropped and created again since: its UUID was {then.table_uuid} and is now {now.table_uuid}"
        if now.default_spec_id != then.default_spec_id:
            before, after = (f"{spec_text(m.spec(), m.schema())} (spec {m.default_spec_id})" for m in (then, now))
            yield (
                f"it was partitioned by {before} when chunk {chunk.receipt.chunk} "
                f"was staged, and is now partitioned by {after}"
            )
        types = {f.field_id: f.field_type for f in now.schema().fields}
        if changed := [f for f in then.schema().fields if types.get(f.field_id) != f.field_type]:
            yield f"these columns were dropped or changed since: {', '.join(map(str, changed))}"
        known = {f.field_id for f in then.schema().fields}
        if added := [f for f in now.schema().fields if f.required and f.field_id not in known]:
            yield f"these required columns were added since: {', '.join(map(str, added))}"


def _new_nulls(schema: Schema, chunk: StagedChunk) -> Iterator[str]:
    """Yields nulls in columns that have become required: the audit used the schema with which the run began."""
    nulls = {f.name: sum(nulls_in(chunk, file, f) for file in chunk.files) for f in schema.fields if f.required}
    if held := ", ".join(f"{name}: {count} rows" for name, count in nulls.items() if count):
        yield (
            f"columns that have become required contain nulls in what chunk {chunk.receipt.chunk} staged before "
            f"({held})"
        )


class Publishable(ABC):
    """A change that publish() commits: each attempt calls needed() and plan()."""

    operation: Operation
    """The operation of the snapshot."""
    consequence = "Nothing was changed; the next run starts over"
    """Ends the message of a refusal."""
    after_contention = "The table is unchanged; the next run starts over"
    """Ends the message if the attempts run out."""

    def needed(self, now: TableMetadata) -> Collection[DataFile]:
        """Returns the files that must be in storage at the commit.

        Empty if metadata alone forbids the change: if the table was created again, its old files may not be readable.
        """
        return ()

    @abstractmethod
    def plan(self, table: IcebergTable, missing: Collection[str]) -> ManifestPlan:
        """Plans the commit to the table as it is now. Raises PublishRefused if the change doesn't fit it.

        missing: paths of needed files that are not in storage.
        """

    def refused(self, table: str, problem: str) -> PublishRefused:
        """Returns the error for a problem."""
        return PublishRefused(f"table {table}: {problem}. {self.consequence}")


class RunChange(Publishable):
    """The change of a run: adds what its workers have staged."""

    staged: Sequence[StagedChunk]
    consequence = "Nothing was published; materialize the partitions again in a new run"
    after_contention = (
        "What was staged is kept: re-execute the run from failure; it checks what is published and publishes the rest"
    )

    @cached_property
    def files(self) -> list[DataFile]:
        """The files to add, each path once."""
        found = chain.from_iterable((*chunk.files, *chunk.deletes) for chunk in self.staged)
        return list({file.file_path: file for file in found}.values())

    def needed(self, now: TableMetadata) -> Collection[DataFile]:
        """Returns the files to add, if metadata allows the change."""
        return () if any(changed_since(now, self.staged)) else self.files

    def refused(self, table: str, problem: str) -> PublishRefused:
        """Returns an error that names the partitions."""
        keys = [key for chunk in self.staged for key in chunk.receipt.keys]
        return super().refused(f"{table}, {keys_text(keys)}", problem)

    def refuse_unfit(self, table: IcebergTable, missing: Collection[str]) -> None:
        """Raises PublishRefused if the format version is not 2, or the staged files don't fit."""
        refuse_other_versions(table)
        # Raises the first one: later ones may only be its consequences.
        for problem in broken(table, self.staged, missing):
            raise self.refused(".".join(table.name()), problem)


@dataclass(frozen=True)
class Change(RunChange):
    """Adds files and, with OVERWRITE, removes all others in a region."""

    region: Region
    staged: Sequence[StagedChunk]
    operation: Operation = Operation.OVERWRITE

    def plan(self, table: IcebergTable, missing: Collection[str]) -> ManifestPlan:
        """Plans the files to add and remove. Raises as refuse_unfit() and FilesInRegion.check().

        A file that an earlier part of the run published stays: if a snapshot removed and re-added it, expiring that
        snapshot would delete it.
        """
        self.refuse_unfit(table, missing)
        if self.operation is Operation.APPEND:
            return ManifestPlan(added=[*map(added_entry, self.files)], untouched=live_manifests(table))
        # The staged schema has the region's names: a column may have been renamed since.
        removed = FilesInRegion(self.region, table, self.staged[0].schema if self.staged else table.schema())
        # Files that are in the table already leave ``arriving``; the rest is added.
        plan, arriving = ManifestPlan(), {file.file_path for file in self.files}

        def goes(entry: ManifestEntry) -> bool:
            path = entry.data_file.file_path
            stays = path in arriving or not removed.include(entry.data_file)
            arriving.discard(path)
            return not stays

        for manifest in live_manifests(table):
            # Delete files stay: the added files are newer, so none applies to them.
            if manifest.content is not ManifestContent.DATA or not removed.may_be_in(manifest):
                plan.untouched.append(manifest)
            else:
                plan.split(manifest, live_entries(table.io, manifest), goes)
        removed.check()
        plan.added = [added_entry(file) for file in self.files if file.file_path in arriving]
        return plan


@dataclass
class FilesInRegion:
    """Chooses the files inside a region by their partitions.

    A scan's row filter would also find files of an old spec that reach beyond the region.
    """

    region: Region
    table: IcebergTable
    schema: Schema
    """Has the column names that the region uses."""
    overlapping: list[DataFile] = field(default_factory=list)
    """The files that include() has found to be only partly inside."""

    def __post_init__(self) -> None:
        self._specs = self.table.metadata.specs()
        rows = self.region.predicate_on(self.schema, self._specs.values())
        self._manifests = ManifestsWithin(self.table.metadata, self.schema, rows)

    def may_be_in(self, manifest: ManifestFile) -> bool:
        """Whether the manifest may list files with rows of the region."""
        return self._manifests.may_be_in(manifest)

    def touches(self, file: DataFile) -> bool:
        """Whether the file may have rows of the region."""
        return self._relation(file) is not Relation.OUTSIDE

    def _relation(self, file: DataFile) -> Relation:
        return self.region.relation(self.schema, self._specs[file.spec_id], file.partition)

    def include(self, file: DataFile) -> bool:
        """Whether the whole file is inside; records one that is only partly inside for check()."""
        relation = self._relation(file)
        if relation is Relation.OVERLAPS:
            self.overlapping.append(file)
        return relation is Relation.INSIDE

    def check(self) -> None:
        """Raises PublishRefused if include() met a file that is only partly inside."""
        if not self.overlapping:
            return
        example, schema = self.overlapping[0], self.table.schema()
        old = self._specs[example.spec_id]
        path = partition_paths(self.table.metadata)((example.spec_id, example.partition))
        raise PublishRefused(
            f"table {'.'.join(self.table.name())}: {len(self.overlapping)} files of an older partition spec are only "
            f"partly inside the partitions {keys_text(self.region.keys)}, such as those of {path}, partitioned by "
            f"{spec_text(old, schema)}. Replacing them would lose the rows of other partitions. The table is now "
            f"partitioned by {spec_text(self.table.spec(), schema)}. Rewrite the old files under the current spec "
            "(rewrite_data_files), or materialize all partitions that they contain in one run"
        )


Identity = tuple[str, int]
"""A file's path and data sequence number. The number changes if the file is removed and added again."""


@dataclass
class RowChanges(RunChange):
    """The change of a run that merges.

    Each worker merged into a fork, a private copy of the table that began with one of its snapshots, the base.
    """

    staged: Sequence[StagedChunk]
    operation: Operation
    only_inserts: bool = False
    """Whether the merge only adds rows with new keys. Then a compaction is no conflict. Any other added file is, as it
    may have the same keys; so is a removed file, as a row may have been left out for a key in it."""
    entries: Entries = field(default_factory=Entries)
    """The manifests read so far: a later attempt reads only new ones."""

    def plan(self, table: IcebergTable, missing: Collection[str]) -> ManifestPlan:
        """Plans the changes of all chunks.

        Raises StageAgain if others changed files that these changes could meet, PublishRefused if they don't fit the
        table.
        """
        self.refuse_unfit(table, missing)
        name = ".".join(table.name())
        removed = Counter(entry.data_file.file_path for chunk in self.staged for entry in chunk.removed)
        if twice := sorted(path for path, count in removed.items() if count > 1):
            raise self.refused(
                name,
                f"{len(twice)} files are rewritten by more than one worker, such as {twice[0]}; declare "
                "partitions_per_worker=None, so that one worker merges them all",
            )
        for chunk in self.staged:
            if moved := next(self._moved(table, chunk), None):
                raise StageAgain(f"table {name}, {keys_text(chunk.receipt.keys)}: {moved}")
        return self._plan(table)

    def _moved(self, table: IcebergTable, chunk: StagedChunk) -> Iterator[str]:
        """Yields conflicts: files that may hold rows within the chunk's bounds and came or went since its base."""
        base_id = chunk.receipt.base_snapshot_id
        merged = chunk.receipt.merged
        # Without changes, the worker's merge depends on no row. At an unmoved head, there is nothing new.
        if merged is None or not merged.changes or table.metadata.current_snapshot_id == base_id:
            return
        # A rollback may bring back files older than the base, which the comparison of sequence numbers below ignores.
        if self.only_inserts and base_id and is_rolled_back(table.metadata, base_id):
            yield f"its rows were compared with those of snapshot {base_id}, which was rolled back meanwhile"
        base = chunk.metadata.snapshot_by_id(base_id) if base_id else None
        then = base.manifests(chunk.io) if base else []
        now = live_manifests(table)
        # Manifests are immutable: files listed by the same manifests are the same.
        common = {m.manifest_path for m in then} & {m.manifest_path for m in now}
        within = Within(table.metadata, chunk.schema, predicate(merged.bounds, chunk.schema))
        before, after = (
            self._files_within(table, within, [m for m in side if m.manifest_path not in common])
            for side in (then, now)
        )
        gone, new = before - after, after - before
        if self.only_inserts:
            # To inserts, a compaction is no conflict: it adds old rows again, under the sequence number of the snapshot
            # that it read, and its commit removes no row.
            base_sequence = (base.sequence_number or 0) if base else 0
            new = {(path, sequence) for path, sequence in new if sequence > base_sequence}
            if keeps_rows_since(table.metadata, base_id):
                gone = set()
        if gone:
            yield f"{len(gone)} files that may contain the same rows were replaced meanwhile, such as {min(gone)[0]}"
        if new:
            yield f"{len(new)} files that may contain the same rows were added meanwhile, such as {min(new)[0]}"

    def _files_within(self, table: IcebergTable, within: Within, manifests: Iterable[ManifestFile]) -> set[Identity]:
        read = self.entries.read(table.io, [m for m in manifests if within.may_be_in(m)])
        found = (entry for entries in read for entry in entries if within.has(entry.data_file))
        return {(entry.data_file.file_path, deletes.sequence(entry)) for entry in found}

    def _plan(self, table: IcebergTable) -> ManifestPlan:
        plan = ManifestPlan(added=list(map(added_entry, self.files)))
        # The entries to remove that are not found yet: the lambda below takes out each one that a manifest lists.
        left = {entry.data_file.file_path: entry for chunk in self.staged for entry in chunk.removed}
        places = Partitions(table.metadata, map(partition_of, left.values()))
        for manifest in live_manifests(table):
            if not left or not places.may_be_in(manifest):
                plan.untouched.append(manifest)
                continue
            (entries,) = self.entries.read(table.io, [manifest])
            plan.split(manifest, entries, lambda entry: left.pop(entry.data_file.file_path, None) is not None)
        if left:
            raise self.refused(".".join(table.name()), f"{len(left)} files that it replaces are not in the table")
        return plan
