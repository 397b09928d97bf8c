"""What must hold of a table for a change to be published: it may have evolved since the workers forked it.
Decided from metadata; the only data read are columns whose statistics are missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.commit.change import Change
from lakehouse_assets.commit.staged import StagedChunk, nulls_in
from lakehouse_assets.declare.region import Relation
from lakehouse_assets.declare.terms import spec_text


def repeated_chunks(change: Change) -> Iterator[str]:
    """Why the change can't be published to any table: it would have a chunk's rows twice."""
    counts = Counter(chunk.receipt.chunk for chunk in change.staged)
    if repeated := [n for n, count in counts.items() if count > 1]:
        yield f"the chunks {repeated} were handed in more than once; expected one receipt for each"


def broken(table: Table, change: Change, missing: Sequence[str]) -> Iterator[str]:
    """Why the change can't be published to the table as it is now. A cause comes before its consequences, so the first
    one is the one to report.

    missing: paths of staged files that are not in storage; with them the table could not be read.
    """
    yield from changed_since(table.metadata, change)
    if missing:
        yield (
            f"{len(missing)} of {len(change.files)} staged files are gone, such as {missing[0]}, maybe removed as "
            "orphans"
        )
    for chunk in change.staged:
        if table.metadata.current_schema_id != chunk.metadata.current_schema_id:
            yield from _new_nulls(table.schema(), chunk)
    yield from _misplaced(table, change)


def changed_since(now: TableMetadata, change: Change) -> Iterator[str]:
    """Why what was staged does not fit the table any more: it is another one, or was partitioned or typed anew."""
    for chunk in change.staged:
        yield from _changed(now, chunk)


def _changed(now: TableMetadata, chunk: StagedChunk) -> Iterator[str]:
    then = chunk.metadata
    if now.table_uuid != then.table_uuid:
        yield f"it was dropped and created again since: UUID {then.table_uuid}, now {now.table_uuid}"
    if now.default_spec_id != then.default_spec_id:
        yield (
            f"it was partitioned by {spec_text(then.spec(), then.schema())} (spec {then.default_spec_id}) when chunk "
            f"{chunk.receipt.chunk} was staged, now it is by {spec_text(now.spec(), now.schema())} "
            f"(spec {now.default_spec_id})"
        )
    types = {f.field_id: f.field_type for f in now.schema().fields}
    if changed := [f for f in then.schema().fields if types.get(f.field_id) != f.field_type]:
        yield f"these columns were dropped or changed since: {', '.join(map(str, changed))}"
    staged = {f.field_id for f in then.schema().fields}
    if added := [f for f in now.schema().fields if f.required and f.field_id not in staged]:
        yield f"these required columns were added since: {', '.join(map(str, added))}"


def _new_nulls(schema: Schema, chunk: StagedChunk) -> Iterator[str]:
    """Nulls in columns that have become required: the audit used the schema that the run began with."""
    nulls = {f.name: sum(nulls_in(chunk, file, f) for file in chunk.files) for f in schema.fields if f.required}
    if held := ", ".join(f"{name}: {count} rows" for name, count in nulls.items() if count):
        yield f"columns that are required now hold nulls in what chunk {chunk.receipt.chunk} staged before ({held})"


def _misplaced(table: Table, change: Change) -> Iterator[str]:
    spec, schema = table.spec(), change.schema(table)
    for file in change.files:
        if file.spec_id != spec.spec_id:
            current = f"the table's is {spec.spec_id} ({spec_text(spec, schema)})"
            yield f"{file.file_path} was staged under partition spec {file.spec_id}, {current}"
        if change.region.relation(schema, spec, file.partition) is not Relation.INSIDE:
            path = spec.partition_to_path(file.partition, schema)
            yield f"{file.file_path} is in {path or 'no partition'}, outside the run's partitions"
