"""The audit: what must hold of staged rows before anyone can see them, decided from file statistics.
It decides only: no catalog, no commit. It reads nothing but columns whose statistics are missing."""

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
from lakehouse_assets.declare.modes import Rule
from lakehouse_assets.keys_text import keys_text

if TYPE_CHECKING:
    from lakehouse_assets.declare.region import Region
    from lakehouse_assets.declare.table import Table

# As many examples as a person reads; the counts are complete.
EXAMPLES = 5

CountNulls = Callable[[StagedChunk, DataFile, NestedField], int]


@dataclass(frozen=True)
class Finding:
    """One broken rule. rule: one of the write mode's, or ``chunks`` or ``lake``, which every mode keeps.

    evidence: JSON values: counts, examples, and the partition keys or chunks concerned.
    """

    rule: str
    message: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Run:
    table: Table
    region: Region
    chunks: Sequence[StagedChunk]
    count_nulls: CountNulls


def audit(
    table: Table,
    region: Region,
    chunks: Sequence[StagedChunk],
    *,
    count_nulls: CountNulls = staged.count_nulls,
) -> list[Finding]:
    """Everything that breaks the rules of the table's write mode in what a run staged; empty when it may be published.

    region: all partitions of the run. chunks: one for each receipt.
    count_nulls: counts the nulls of a column in a file without statistics for it, which never means that it has none.
    """
    run = _Run(table, region, chunks, count_nulls)
    held = [check for rule, check in RULES.items() if rule in table.write_mode.rules]
    return [finding for check in (_repeated_chunks, *held) for finding in check(run)]


def own_commits(
    table: Table, metadata: TableMetadata, chunks: Sequence[StagedChunk], known: Collection[int] = ()
) -> list[Finding]:
    """Commits to the table by the run's own workers, which some catalogs (REST, Glue) can't keep them from.

    Every snapshot that Spark makes names its application, and those in the forks name the workers'. metadata: the
    table's after everything was staged. known: snapshots that no worker made, though the application's name is theirs:
    a JVM may have served somebody else before. Not found are commits to other tables, changes that make no snapshot
    (properties, schema, rollbacks) and commits by workers that left no receipt.
    """
    workers = {app for chunk in chunks for snapshot in chunk.metadata.snapshots if (app := _application(snapshot))}
    found = [s for s in metadata.snapshots if _application(s) in workers and s.snapshot_id not in known]
    history = {s.snapshot_id for s in ancestors_of(metadata.current_snapshot(), metadata)} if found else set()
    return [
        Finding(
            "lake",
            f"table {table.identifier}: a worker of this run committed snapshot {s.snapshot_id} to it, workers may "
            f"only read it. What it wrote is public. Have {table.step} return rows instead; {_way_back(s, metadata)}; "
            "then materialize anew, not from failure",
            {"snapshot": str(s.snapshot_id), "parent": str(s.parent_snapshot_id or "")},
        )
        for s in found
        if s.snapshot_id in history
    ]


def _way_back(snapshot: Snapshot, metadata: TableMetadata) -> str:
    if snapshot.snapshot_id != metadata.current_snapshot_id:
        return "others have committed after it, so a rollback would undo their work too: decide what of it should go"
    if snapshot.parent_snapshot_id is None:
        return "it is the table's first snapshot: delete what it wrote, or drop the table"
    return f"roll the table back to snapshot {snapshot.parent_snapshot_id}, unless it should stay"


def _application(snapshot: Snapshot) -> str | None:
    return snapshot.summary["app-id"] if snapshot.summary else None


def _repeated_chunks(run: _Run) -> Iterator[Finding]:
    counts = Counter(chunk.receipt.chunk for chunk in run.chunks)
    if repeated := sorted(n for n, count in counts.items() if count > 1):
        message = f"table {run.table.identifier}: chunks {repeated} came with more than one receipt, expected one each"
        yield Finding("chunks", message, {"chunks": repeated})


def _rows_outside(run: _Run) -> Iterator[Finding]:
    for chunk in run.chunks:
        region = run.table.alignment.region(chunk.receipt.keys)
        rows: Counter[str] = Counter()
        for file in chunk.files:
            if file.spec_id != chunk.spec_id or region.key_of(file.partition) is None:
                rows[_path(chunk, file)] += file.record_count
        if rows:
            yield Finding(
                Rule.PARTITIONS,
                f"table {run.table.identifier}, chunk {chunk.receipt.chunk}: {run.table.step} returned {rows.total()} "
                f"rows outside the partitions it was asked for. Expected only {_listed(chunk.receipt.keys)}; found "
                f"rows in {len(rows)} others ({_examples(rows)}). Filter the step's rows by its window",
                {"chunk": chunk.receipt.chunk, "rows": rows.total(), "partitions": dict(rows.most_common(EXAMPLES))},
            )


def _nulls(run: _Run) -> Iterator[Finding]:
    for column in (f for f in run.table.schema.fields if f.required):
        nulls: Counter[str] = Counter()
        for chunk in run.chunks:
            # By name: an evolved table, or a catalog that numbers columns itself, has other ids than the declaration.
            staged_column = chunk.schema.find_field(column.name)
            for file in chunk.files:
                if count := staged.nulls_in(chunk, file, staged_column, run.count_nulls):
                    nulls[_path(chunk, file)] += count
        if nulls:
            yield Finding(
                Rule.REQUIRED,
                f"table {run.table.identifier}: the required column {column.name} is null in {nulls.total()} rows of "
                f"{len(nulls)} partitions ({_examples(nulls)}), expected in none. Fill it in the step, or declare it "
                "optional",
                {"column": column.name, "rows": nulls.total(), "partitions": dict(nulls.most_common(EXAMPLES))},
            )


def _duplicates(run: _Run) -> Iterator[Finding]:
    for chunk in run.chunks:
        if found := chunk.receipt.duplicates:
            yield Finding(
                Rule.UNIQUE,
                f"table {run.table.identifier}, chunk {chunk.receipt.chunk} ({_listed(chunk.receipt.keys)}): "
                f"{', '.join(run.table.unique)} should be unique within a partition, it is not: {'; '.join(found)}",
                {"chunk": chunk.receipt.chunk, "columns": list(run.table.unique), "examples": list(found)},
            )


def _empty(run: _Run) -> Iterator[Finding]:
    if run.table.allow_empty:
        return
    stats = partition_stats(run.region, run.chunks)
    if empty := [key for key, (rows, _, _) in stats.items() if not rows]:
        yield Finding(
            Rule.EMPTY,
            f"table {run.table.identifier}: {len(empty)} of {len(stats)} partitions came out without rows "
            f"({_listed(empty)}), expected rows in each. If that is fine, declare allow_empty=True",
            {"partitions": empty[:EXAMPLES], "count": len(empty)},
        )


# In the order in which their findings are reported.
RULES: Mapping[Rule, Callable[[_Run], Iterator[Finding]]] = {
    Rule.PARTITIONS: _rows_outside,
    Rule.REQUIRED: _nulls,
    Rule.UNIQUE: _duplicates,
    Rule.EMPTY: _empty,
}


def _path(chunk: StagedChunk, file: DataFile) -> str:
    spec = chunk.metadata.specs()[file.spec_id]
    return spec.partition_to_path(file.partition, chunk.schema) or keys_text(())


def _examples(counts: Counter[str]) -> str:
    return ", ".join(f"{path}: {count}" for path, count in counts.most_common(EXAMPLES))


def _listed(keys: Sequence[str]) -> str:
    return keys_text(keys, listed=EXAMPLES)
