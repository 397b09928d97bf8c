"""The audit: what must hold of staged rows before anyone can see them, decided from file statistics.
Decisions only: no catalog, no commit; the one thing it may read is a column whose statistics are missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyiceberg.manifest import DataFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from pyiceberg.types import NestedField

from lakehouse_assets.commit import staged
from lakehouse_assets.commit.staged import StagedChunk, partition_stats

if TYPE_CHECKING:
    from lakehouse_assets.declare.region import Region
    from lakehouse_assets.declare.table import Table

# As many examples as a person reads; the counts are complete.
EXAMPLES = 5

CountNulls = Callable[[StagedChunk, DataFile, NestedField], int]


@dataclass(frozen=True)
class Finding:
    """One broken rule. rule: ``chunks``, ``partitions``, ``required``, ``unique``, ``empty`` or ``lake``.

    evidence: JSON values: counts, examples, and the partition keys or chunks concerned.
    """

    rule: str
    message: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


def audit(
    table: Table,
    region: Region,
    chunks: Sequence[StagedChunk],
    *,
    count_nulls: CountNulls = staged.count_nulls,
) -> list[Finding]:
    """Everything wrong with what a run staged; empty when it may be published.

    region: all partitions of the run. chunks: one for each receipt.
    count_nulls: nulls of a column in a file without statistics for it, which are never taken for none.
    """
    return [
        *_chunks_twice(table, chunks),
        *_outside(table, chunks),
        *_nulls(table, chunks, count_nulls),
        *_duplicates(table, chunks),
        *_empty(table, region, chunks),
    ]


def own_commits(
    table: Table, metadata: TableMetadata, chunks: Sequence[StagedChunk], known: Collection[int] = ()
) -> list[Finding]:
    """What the run's workers committed to the table themselves, where its catalog lets them (REST, Glue).

    Every snapshot of Spark's names its application: in the forks the workers' own. metadata: the table's when all is
    staged. known: snapshots that are no worker's, where an application is not a worker's alone. Not seen are other
    tables, changes that make no snapshot (properties, schema, rollbacks) and workers that left no receipt.
    """
    ours = {app for chunk in chunks for snapshot in chunk.metadata.snapshots if (app := _app(snapshot))}
    found = [s for s in metadata.snapshots if _app(s) in ours and s.snapshot_id not in known]
    landed = {s.snapshot_id for s in ancestors_of(metadata.current_snapshot(), metadata)} if found else set()
    return [
        Finding(
            "lake",
            f"table {table.identifier}: a worker of this run committed snapshot {s.snapshot_id} to it, workers may "
            f"only read it. What it wrote is public. Have {table.step} return rows instead; {_way_back(s, metadata)}; "
            "then materialize anew, not from failure",
            {"snapshot": str(s.snapshot_id), "parent": str(s.parent_snapshot_id or "")},
        )
        for s in found
        if s.snapshot_id in landed
    ]


def _way_back(snapshot: Snapshot, metadata: TableMetadata) -> str:
    if snapshot.snapshot_id != metadata.current_snapshot_id:
        return "others have committed behind it, so a rollback would undo their work too: see what of it should go"
    if snapshot.parent_snapshot_id is None:
        return "it is the table's first snapshot: delete what it wrote, or drop the table"
    return f"roll the table back to snapshot {snapshot.parent_snapshot_id}, unless it should stay"


def _app(snapshot: Snapshot) -> str | None:
    return snapshot.summary["app-id"] if snapshot.summary else None


def _chunks_twice(table: Table, chunks: Sequence[StagedChunk]) -> Iterator[Finding]:
    counts = Counter(chunk.receipt.chunk for chunk in chunks)
    if twice := sorted(n for n, count in counts.items() if count > 1):
        message = f"table {table.identifier}: chunks {twice} came with more than one receipt, expected one for each"
        yield Finding("chunks", message, {"chunks": twice})


def _outside(table: Table, chunks: Sequence[StagedChunk]) -> Iterator[Finding]:
    for chunk in chunks:
        region = table.alignment.region(chunk.receipt.keys)
        rows: Counter[str] = Counter()
        for file in chunk.files:
            if file.spec_id != chunk.spec_id or region.key_of(file.partition) is None:
                rows[_path(chunk, file)] += file.record_count
        if rows:
            examples = ", ".join(f"{path}: {count}" for path, count in rows.most_common(EXAMPLES))
            yield Finding(
                "partitions",
                f"table {table.identifier}, chunk {chunk.receipt.chunk}: {table.step} returned {rows.total()} rows "
                f"outside the partitions it was asked for. Expected only {_keys(chunk.receipt.keys)}; found rows in "
                f"{len(rows)} others ({examples}). Filter the step's rows by its window",
                {"chunk": chunk.receipt.chunk, "rows": rows.total(), "partitions": dict(rows.most_common(EXAMPLES))},
            )


def _nulls(table: Table, chunks: Sequence[StagedChunk], count_nulls: CountNulls) -> Iterator[Finding]:
    for column in (f for f in table.schema.fields if f.required):
        nulls: Counter[str] = Counter()
        for chunk in chunks:
            # By name: an evolved table, or a catalog that numbers columns itself, has other ids than the declaration.
            staged_column = chunk.schema.find_field(column.name)
            for file in chunk.files:
                if count := staged.nulls_in(chunk, file, staged_column, count_nulls):
                    nulls[_path(chunk, file)] += count
        if nulls:
            examples = ", ".join(f"{path}: {count}" for path, count in nulls.most_common(EXAMPLES))
            yield Finding(
                "required",
                f"table {table.identifier}: the required column {column.name} is null in {nulls.total()} rows of "
                f"{len(nulls)} partitions ({examples}), expected in none. Fill it in the step, or declare it optional",
                {"column": column.name, "rows": nulls.total(), "partitions": dict(nulls.most_common(EXAMPLES))},
            )


def _duplicates(table: Table, chunks: Sequence[StagedChunk]) -> Iterator[Finding]:
    for chunk in chunks:
        if found := chunk.receipt.duplicates:
            yield Finding(
                "unique",
                f"table {table.identifier}, chunk {chunk.receipt.chunk} ({_keys(chunk.receipt.keys)}): "
                f"{', '.join(table.unique)} should be unique within a partition, it is not: {'; '.join(found)}",
                {"chunk": chunk.receipt.chunk, "columns": list(table.unique), "examples": list(found)},
            )


def _empty(table: Table, region: Region, chunks: Sequence[StagedChunk]) -> Iterator[Finding]:
    if table.allow_empty:
        return
    stats = partition_stats(region, chunks)
    if empty := [key for key, (rows, _, _) in stats.items() if not rows]:
        yield Finding(
            "empty",
            f"table {table.identifier}: {len(empty)} of {len(stats)} partitions came out without rows "
            f"({_keys(tuple(empty))}), expected rows in each. If that is fine, declare allow_empty=True",
            {"partitions": empty[:EXAMPLES], "count": len(empty)},
        )


def _path(chunk: StagedChunk, file: DataFile) -> str:
    spec = chunk.metadata.specs()[file.spec_id]
    return spec.partition_to_path(file.partition, chunk.schema) or "the whole table"


def _keys(keys: tuple[str, ...]) -> str:
    if not any(keys):
        return "the whole table"
    shown = ", ".join(keys[:EXAMPLES])
    return shown if len(keys) <= EXAMPLES else f"{shown} and {len(keys) - EXAMPLES} more"
