"""Checks what must hold of a table for a change to be published: it may have evolved since the workers forked it.

Only metadata is read, and columns whose statistics are missing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.commit.staged import StagedChunk, distinct_files, nulls_in, repeated_chunks
from lakehouse_assets.declare.columns import spec_text


def broken(table: Table, staged: Sequence[StagedChunk], missing: Collection[str]) -> Iterator[str]:
    """Yields why these chunks can't be published to the table as it is now, causes before their consequences.

    missing: paths of staged files that are not in storage; with them the table could not be read.
    """
    if repeated := repeated_chunks(staged):
        yield f"the chunks {repeated} were handed in more than once; expected one receipt for each"
    yield from changed_since(table.metadata, staged)
    if missing:
        yield (
            f"{len(missing)} of {len(distinct_files(staged))} staged files are gone, such as {min(missing)}, maybe "
            "removed as orphans"
        )
    for chunk in staged:
        if table.metadata.current_schema_id != chunk.metadata.current_schema_id:
            yield from _new_nulls(table.schema(), chunk)


def changed_since(now: TableMetadata, staged: Sequence[StagedChunk]) -> Iterator[str]:
    """Yields why the staged files no longer fit the table: it is another one, or has other partitions or columns."""
    for chunk in staged:
        then = chunk.metadata
        if now.table_uuid != then.table_uuid:
            yield f"it was dropped and created again since: UUID {then.table_uuid}, now {now.table_uuid}"
        if now.default_spec_id != then.default_spec_id:
            before, after = (f"{spec_text(m.spec(), m.schema())} (spec {m.default_spec_id})" for m in (then, now))
            yield f"it was partitioned by {before} when chunk {chunk.receipt.chunk} was staged, now it is by {after}"
        types = {f.field_id: f.field_type for f in now.schema().fields}
        if changed := [f for f in then.schema().fields if types.get(f.field_id) != f.field_type]:
            yield f"these columns were dropped or changed since: {', '.join(map(str, changed))}"
        known = {f.field_id for f in then.schema().fields}
        if added := [f for f in now.schema().fields if f.required and f.field_id not in known]:
            yield f"these required columns were added since: {', '.join(map(str, added))}"


def _new_nulls(schema: Schema, chunk: StagedChunk) -> Iterator[str]:
    """Yields nulls in columns that have become required: the audit used the schema that the run began with."""
    nulls = {f.name: sum(nulls_in(chunk, file, f) for file in chunk.files) for f in schema.fields if f.required}
    if held := ", ".join(f"{name}: {count} rows" for name, count in nulls.items() if count):
        yield f"columns that are required now hold nulls in what chunk {chunk.receipt.chunk} staged before ({held})"
