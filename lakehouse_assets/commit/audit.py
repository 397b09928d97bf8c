"""Audits staged rows before a commit, by file statistics and receipts.

A worker stages its chunk of the partitions in a fork, a private copy of the table's metadata; its receipt says what it
did. Reads data only of columns without statistics, and of text columns with U+FFFD in a bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from pyiceberg.types import StringType

from lakehouse_assets.commit.deletes import live_rows
from lakehouse_assets.commit.manifests import partition_paths
from lakehouse_assets.commit.staged import StagedChunk, malformed_in, nulls_in, partition_stats
from lakehouse_assets.declare.region import Relation
from lakehouse_assets.keys_text import keys_text, parts_of

if TYPE_CHECKING:
    from lakehouse_assets.declare.region import Region
    from lakehouse_assets.declare.table import Table

# A finding lists this many examples; its counts are complete.
EXAMPLES = 5


class Rule(StrEnum):
    """A rule of the audit; each write mode says which ones it needs."""

    PARTITIONS = "partitions"
    """A chunk's rows lie in the chunk's partitions."""
    REQUIRED = "required"
    """Required columns hold no nulls."""
    UNIQUE = "unique"
    """Unique columns hold no duplicates in a partition."""
    EMPTY = "empty"
    """Each partition has rows, unless the table declares ``allow_empty``."""
    CHECKS = "checks"
    """Rows pass the table's checks."""
    CHANGED = "changed"
    """A merge changes at most the declared share of the table's rows."""


OWN_COMMITS, TEXT = "lake", "text"
"""The rules of every run. OWN_COMMITS: workers commit nothing to the table. TEXT: no file bound comes from text that is
not UTF-8."""


@dataclass(frozen=True)
class AuditFinding:
    """One broken rule."""

    rule: str
    """A Rule, OWN_COMMITS or TEXT."""
    message: str
    evidence: Mapping[str, Any]
    """JSON values."""
    bad: tuple[str, ...] = ()
    """The partition keys known to be bad; empty if unknown, "" for a table without partitions."""


def audit(
    table: Table,
    region: Region,
    chunks: Sequence[StagedChunk],
    rules: Collection[Rule],
    at_most_changed: float | None = None,
) -> list[AuditFinding]:
    """Returns the findings of these rules, and of TEXT; none if the run may be published.

    region: that of all chunks. at_most_changed: the share of the table's rows that Rule.CHANGED allows; None: any.
    """
    # In the order of the report. The values are generators, so a rule that is not wanted costs nothing.
    by_rule = {
        Rule.PARTITIONS: chain(_rows_outside(table, region, chunks), _deletes_outside(table, chunks)),
        Rule.REQUIRED: _nulls(table, chunks),
        Rule.UNIQUE: _duplicates(table, chunks),
        Rule.EMPTY: _empty(table, region, chunks),
        Rule.CHANGED: _changed(table, chunks, at_most_changed),
        Rule.CHECKS: _failed_checks(table, chunks),
    }
    findings = [f for rule, found in by_rule.items() if rule in rules for f in found]
    findings += _malformed(table, chunks)
    return findings


def own_commits(
    table: Table, metadata: TableMetadata, chunks: Sequence[StagedChunk], known: Collection[int] = ()
) -> list[AuditFinding]:
    """Finds commits to the table by the run's own workers, which some catalogs (REST, Glue) can't prevent.

    Spark writes its application's id into each snapshot, in forks too. Misses commits to other tables, snapshots
    outside main's history, changes without a snapshot, and workers without a receipt.

    metadata: after all staging. known: snapshots from before the staging; only needed in process, where earlier runs
    share the JVM and so its application's id.
    """
    own_applications = {  # a fork has only its base and what its worker added
        app
        for chunk in chunks
        for snapshot in chunk.metadata.snapshots
        if snapshot.snapshot_id != chunk.receipt.base_snapshot_id and (app := _application(snapshot))
    }
    found = [s for s in metadata.snapshots if _application(s) in own_applications and s.snapshot_id not in known]
    history = {s.snapshot_id for s in ancestors_of(metadata.current_snapshot(), metadata)} if found else set()
    return [
        AuditFinding(
            OWN_COMMITS,
            f"table {table.identifier}: a worker of this run committed snapshot {s.snapshot_id} to the table, which "
            f"workers may only read. Everyone can see what it wrote. Change {table.step} to return rows instead. "
            "Unless you want to keep the snapshot, or others have committed since, roll the table back to the one "
            f"before it ({s.parent_snapshot_id or 'none'}). Then materialize again in a new run, not by re-executing "
            "from failure",
            {"snapshot": str(s.snapshot_id), "parent": str(s.parent_snapshot_id or "")},
        )
        for s in found
        if s.snapshot_id in history
    ]


def _application(snapshot: Snapshot) -> str | None:
    return snapshot.summary["app-id"] if snapshot.summary else None


def _rows_outside(table: Table, region: Region, chunks: Sequence[StagedChunk]) -> Iterator[AuditFinding]:
    for chunk in chunks:
        own = frozenset(parts_of(chunk.receipt.keys))
        rows: Counter[str] = Counter()
        for file in chunk.files:
            # key_of() knows only the declared spec, so files of an older one, which a merge may copy, count as outside.
            if file.spec_id != chunk.metadata.default_spec_id or region.key_of(file.partition) not in own:
                rows[_path(chunk, file)] += file.record_count
        if rows:
            yield AuditFinding(
                Rule.PARTITIONS,
                f"table {table.identifier}, chunk {chunk.receipt.chunk}: {table.step} returned {rows.total()} rows "
                f"outside its partitions. Expected rows only in {_listed(chunk.receipt.keys)}, found rows in "
                f"{len(rows)} others ({_examples(rows)}). Filter the step's rows by its window; if a merge copied "
                "files of an older partition spec, rewrite them under the table's spec, or declare "
                "Merge(rewrites=Rewrites.MERGE_ON_READ)",
                {"chunk": chunk.receipt.chunk, "rows": rows.total(), "partitions": dict(rows.most_common(EXAMPLES))},
                bad=_alone(chunk),
            )


def _deletes_outside(table: Table, chunks: Sequence[StagedChunk]) -> Iterator[AuditFinding]:
    """Finds rows that a merge deleted outside its partitions.

    Removed delete files don't count: those that no row needs any more may go from anywhere. Nor do files of an older
    partition spec that lie only partly outside.
    """
    for chunk in chunks:
        if not (touched := (*chunk.deletes, *_removed_data(chunk))):
            continue
        region, specs = table.alignment.region(chunk.receipt.keys), chunk.metadata.specs()
        relations = ((file, region.relation(chunk.schema, specs[file.spec_id], file.partition)) for file in touched)
        if outside := sorted({_path(chunk, file) for file, relation in relations if relation is Relation.OUTSIDE}):
            yield AuditFinding(
                Rule.PARTITIONS,
                f"table {table.identifier}, chunk {chunk.receipt.chunk}: {table.step} returned changes that delete "
                f"rows outside its partitions. Expected deletes only in {_listed(chunk.receipt.keys)}, found "
                f"{len(outside)} others ({', '.join(outside[:EXAMPLES])}). Filter the step's rows by its window",
                {"chunk": chunk.receipt.chunk, "partitions": outside[:EXAMPLES]},
                bad=_alone(chunk),
            )


def _removed_data(chunk: StagedChunk) -> Iterator[DataFile]:
    removed = (entry.data_file for entry in chunk.removed)
    return (file for file in removed if file.content == DataFileContent.DATA)


def _nulls(table: Table, chunks: Sequence[StagedChunk]) -> Iterator[AuditFinding]:
    for column in (f for f in table.schema.fields if f.required):
        nulls: Counter[str] = Counter()
        for chunk in chunks:
            # By name: an evolved table, or a catalog that numbers columns, has other ids than the declaration.
            staged_column = chunk.schema.find_field(column.name)
            for file in chunk.files:
                if count := nulls_in(chunk, file, staged_column):
                    nulls[_path(chunk, file)] += count
        if nulls:
            yield AuditFinding(
                Rule.REQUIRED,
                f"table {table.identifier}: the required column {column.name} is null in {nulls.total()} rows of "
                f"{len(nulls)} partitions ({_examples(nulls)}); expected no nulls. Fill it in the step (and, for a "
                "merge, in the existing rows, which it may copy), or declare it optional",
                {"column": column.name, "rows": nulls.total(), "partitions": dict(nulls.most_common(EXAMPLES))},
            )


def _malformed(table: Table, chunks: Sequence[StagedChunk]) -> Iterator[AuditFinding]:
    for chunk in chunks:
        for column in (f for f in chunk.schema.fields if isinstance(f.field_type, StringType)):
            found = {value for file in chunk.files for value in malformed_in(chunk, file, column)}
            if examples := [f"X'{value.hex().upper()}'" for value in sorted(found)[:EXAMPLES]]:
                yield AuditFinding(
                    TEXT,
                    f"table {table.identifier}, chunk {chunk.receipt.chunk} ({_listed(chunk.receipt.keys)}): "
                    f"{len(found)} values of {column.name} are not UTF-8, such as {examples[0]}. They would become "
                    "bounds of its files, and filters and merges would miss rows with other values. Decode them in "
                    "the step from their encoding (pyspark.sql.functions.decode), or keep no bounds for the column: "
                    f"Tuning(metrics={{{column.name!r}: 'none'}})",
                    {"chunk": chunk.receipt.chunk, "column": column.name, "examples": examples},
                    bad=_alone(chunk),
                )


def _duplicates(table: Table, chunks: Sequence[StagedChunk]) -> Iterator[AuditFinding]:
    for chunk in chunks:
        if found := chunk.receipt.duplicates:
            yield AuditFinding(
                Rule.UNIQUE,
                f"table {table.identifier}, chunk {chunk.receipt.chunk} ({_listed(chunk.receipt.keys)}): "
                f"{', '.join(table.unique)} must be unique within a partition, found duplicates: {'; '.join(found)}",
                {"chunk": chunk.receipt.chunk, "columns": list(table.unique), "examples": list(found)},
                bad=_alone(chunk),
            )


def _empty(table: Table, region: Region, chunks: Sequence[StagedChunk]) -> Iterator[AuditFinding]:
    if table.allow_empty:
        return
    stats = partition_stats(region, chunks)
    if empty := [key for key, (rows, _, _) in stats.items() if not rows]:
        yield AuditFinding(
            Rule.EMPTY,
            f"table {table.identifier}: {len(empty)} of {len(stats)} partitions have no rows ({_listed(empty)}); "
            "expected rows in each. If empty partitions are fine, declare allow_empty=True",
            {"partitions": empty[:EXAMPLES], "count": len(empty)},
            bad=tuple(empty),
        )


def _changed(table: Table, chunks: Sequence[StagedChunk], bound: float | None) -> Iterator[AuditFinding]:
    merged = [chunk.receipt.merged for chunk in chunks if chunk.receipt.merged]
    if bound is None or not merged:
        return
    updated, deleted = sum(m.updated for m in merged), sum(m.deleted for m in merged)
    # Counts each base snapshot once. If there are several, the one with the most rows decides.
    rows = max(_rows_before(chunk) for chunk in {chunk.receipt.base_snapshot_id: chunk for chunk in chunks}.values())
    if updated + deleted > round(bound * rows, 6):  # unrounded, 0.29 * 100 is 28.999999999999996
        yield AuditFinding(
            Rule.CHANGED,
            f"table {table.identifier}: the merge updates {updated} and deletes {deleted} of {rows} rows; the "
            f"declaration allows at most {bound:.3%}. If these changes are right, raise at_most_changed for this run",
            {"updated": updated, "deleted": deleted, "rows": rows},
        )


def _rows_before(chunk: StagedChunk) -> int:
    """Counts the rows of the chunk's base snapshot, maybe as an upper bound; 0 if it has none or can't be read."""
    # 0 is no snapshot's id.
    base = chunk.metadata.snapshot_by_id(chunk.receipt.base_snapshot_id or 0)
    found = live_rows(chunk.metadata, base, chunk.io) if base else None
    return found.count if found else 0


def _failed_checks(table: Table, chunks: Sequence[StagedChunk]) -> Iterator[AuditFinding]:
    for chunk in chunks:
        for failed in chunk.receipt.failed_checks:
            yield AuditFinding(
                Rule.CHECKS,
                f"table {table.identifier}, chunk {chunk.receipt.chunk} ({_listed(chunk.receipt.keys)}): "
                f"{failed.rows} rows fail the check {failed.name!r} ({table.checks.get(failed.name, '')}), such as "
                f"{failed.examples[0]}",
                {"chunk": chunk.receipt.chunk, "check": failed.name, "rows": failed.rows, "examples": failed.examples},
                bad=_alone(chunk),
            )


def _alone(chunk: StagedChunk) -> tuple[str, ...]:
    """Returns the chunk's partition if it is the only one: of several, the bad one is unknown."""
    parts = tuple(parts_of(chunk.receipt.keys))
    return parts if len(parts) == 1 else ()


def _path(chunk: StagedChunk, file: DataFile) -> str:
    """Returns the path of the file's partition; "whole table" without partitions."""
    return partition_paths(chunk.metadata)((file.spec_id, file.partition)) or keys_text(())


def _examples(counts: Counter[str]) -> str:
    return ", ".join(f"{path}: {count}" for path, count in counts.most_common(EXAMPLES))


def _listed(keys: Sequence[str]) -> str:
    return keys_text(keys, listed=EXAMPLES)
