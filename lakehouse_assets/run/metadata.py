"""Makes what a materialization shows: Dagster metadata of the run and of each partition, with its first rows.

Keys are those that the UI knows. Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable

from lakehouse_assets.commit.deletes import live_rows
from lakehouse_assets.commit.publish import Published
from lakehouse_assets.commit.staged import StagedChunk, distinct_files, partition_stats
from lakehouse_assets.declare.columns import column_schema
from lakehouse_assets.declare.region import Region
from lakehouse_assets.declare.table import Table
from lakehouse_assets.drive.chunks import Results
from lakehouse_assets.environment.launchers.base import Usage
from lakehouse_assets.keys_text import WHOLE, keys_text, parts_of
from lakehouse_assets.run.jobs import markdown_table
from lakehouse_assets.storage.objects import at_once
from lakehouse_assets.wire.receipts import Receipt

# Few, because they are stored with every materialization.
ROWS = 5
CELL_LENGTH = 40
MOST_PARTITIONS = 50
"""The most partitions of a run with previews: each one opens a file in storage."""


def run_metadata(
    table: Table,
    target: IcebergTable,
    schema_change: Mapping[str, str],
    chunks: Sequence[StagedChunk],
    published: Published,
    results: Results,
) -> dict[str, Any]:
    """Returns the metadata that hold for the whole run.

    target: the table with the columns that the run has published. schema_change: what else it changed of the table, by
    name, as Markdown. results: has the links and usages of the run's own workers; where it took the receipt of an
    earlier run's worker, the receipt names the host.
    """
    receipts = [chunk.receipt for chunk in chunks]
    files = distinct_files(chunks)
    where = sorted({results.links.get(r.chunk, r.worker) for r in receipts})
    return {
        "dagster/table_name": table.identifier,
        "dagster/uri": target.location(),
        "dagster/storage_kind": "iceberg",
        "dagster/column_schema": column_schema(_declared_nulls(target.schema(), table)),
        **{name: dg.MetadataValue.md(text) for name, text in schema_change.items()},
        # Text: JavaScript would round a 64-bit snapshot id.
        "snapshot_id": str(published.snapshot_id),
        "run_rows": sum(r.rows for r in receipts),
        "run_files": len(files),
        "run_bytes": sum(f.file_size_in_bytes for f in files),
        "files_replaced": published.files_removed,
        "workers": len(receipts),
        "worker": places(where),
        "stage_seconds": round(max((r.stage_seconds for r in receipts), default=0.0), 3),
        "publish_seconds": round(published.seconds, 3),
        "commit_attempts": published.attempts,
        **_usage(results.usages),
        **_merged(receipts),
    }


def rows_now(table: IcebergTable, snapshot_id: int) -> dict[str, int | str]:
    """Returns how many rows a whole table has, under the name by which the UI plots it; an upper bound as text.

    table: as it is behind the commit of that snapshot.
    """
    snapshot = table.metadata.snapshot_by_id(snapshot_id)
    rows = live_rows(table.metadata, snapshot, table.io) if snapshot else None
    if rows is None:
        return {}
    return {"dagster/row_count": rows.count} if rows.is_exact else {"rows": str(rows)}


def _declared_nulls(schema: Schema, table: Table) -> Schema:
    """Returns the table's columns, required where they are declared so: the audit lets no null pass."""
    required = {column.name for column in table.schema.columns if column.required}
    return Schema(*(c.model_copy(update={"required": True}) if c.name in required else c for c in schema.columns))


def _merged(receipts: Sequence[Receipt]) -> dict[str, int]:
    """Adds up what the merges of all workers did; empty for rows that were appended."""
    merged = [receipt.merged for receipt in receipts if receipt.merged]
    names = ("changes", "left_out", "matched", "inserted", "updated", "deleted") if merged else ()
    return {f"merge_{name}": sum(getattr(one, name) for one in merged) for name in names}


def places(links: Sequence[str]) -> dg.MetadataValue:
    """Shows where workers ran, at most three of them; as links unless they ran on this machine."""
    more = f" and {len(links) - 3} more" if len(links) > 3 else ""
    if not any(link.startswith("https://") for link in links):
        return dg.MetadataValue.text(", ".join(links[:3]) + more)
    if len(links) == 1:
        return dg.MetadataValue.url(links[0])
    return dg.MetadataValue.md(", ".join(f"<{link}>" for link in links[:3]) + more)


def _usage(usages: Sequence[Usage]) -> dict[str, Any]:
    """Adds up what all workers of the run used, failed ones too; empty where nothing is billed."""
    if not usages:
        return {}
    amounts = ("vcpu_hours", "gib_hours", "estimated_usd")
    used: dict[str, Any] = {name: round(sum(getattr(u, name) for u in usages), 4) for name in amounts}
    return used | {"usage_source": "; ".join(sorted({u.source for u in usages}))}


def shown_by_key(table: Table, region: Region, chunks: Sequence[StagedChunk]) -> dict[str, dict[str, Any]]:
    """Returns what each partition shows of the rows that were staged for it: how many, in which files, the first ones.

    region: the part of the table that the chunks own. Where partitions own no rows (Append, Merge), a chunk's rows are
    those of its partitions together: numbers are shown of a chunk with one partition only, and no rows are counted
    if the run has matched its own with others, which a merge writes anew.
    """
    rows = "dagster/row_count" if table.partitions is None else "dagster/partition_row_count"
    if table.partitions is None or table.write_mode.owns_partitions:
        first = previews(region, chunks)
        rows = rows if table.write_mode.replaces else "rows_written"  # what a run adds or merges is not all
        return {
            key: dict(zip((rows, "files", "bytes"), stat, strict=True))
            | ({"preview": first[key]} if key in first else {})
            for key, stat in partition_stats(region, chunks).items()
        }
    found: dict[str, dict[str, Any]] = {key: {} for chunk in chunks for key in chunk.receipt.keys}
    alone = [chunk for chunk in chunks if len(chunk.receipt.keys) == 1]
    for chunk in alone:
        count, files, size = partition_stats(region, [chunk])[WHOLE]
        counted = {} if table.write_mode.match_on else {rows: count}
        found[chunk.receipt.keys[0]] = {**counted, "files": files, "bytes": size}
    if len(found) <= MOST_PARTITIONS:
        for chunk, first in zip(chunks, at_once(lambda chunk: previews(region, [chunk]), chunks), strict=True):
            keys = chunk.receipt.keys
            text = first[WHOLE] if len(keys) == 1 else _of_several(keys, first[WHOLE])
            found |= {key: {**found[key], "preview": text} for key in keys}
    return found


def _of_several(keys: Sequence[str], first: dg.MetadataValue) -> dg.MetadataValue:
    return dg.MetadataValue.md(f"Of {keys_text(keys)} together:\n\n{first.value}")


def previews(region: Region, chunks: Sequence[StagedChunk]) -> dict[str, dg.MetadataValue]:
    """Shows the first rows of each partition's first staged file as a Markdown table, or why there are none.

    The result is keyed by partition. It is empty for a run of more than MOST_PARTITIONS.
    """
    keys = parts_of(region.keys)
    if len(keys) > MOST_PARTITIONS:
        return {}
    first: dict[str | None, tuple[StagedChunk, DataFile]] = {}
    for chunk in chunks:
        for file in chunk.files:
            if file.record_count:
                first.setdefault(region.key_of(file.partition), (chunk, file))
    texts = at_once(lambda key: _text(*first[key]) if key in first else "no rows", keys)
    return {key: dg.MetadataValue.md(text) for key, text in zip(keys, texts, strict=True)}


def _text(chunk: StagedChunk, file: DataFile) -> str:
    if file.file_format is not FileFormat.PARQUET:
        return f"no preview of {file.file_format.value} files"
    from pyarrow.parquet import ParquetFile

    try:
        with chunk.io.new_input(file.file_path).open() as stream:
            rows = next(ParquetFile(stream).iter_batches(batch_size=ROWS)).slice(0, ROWS).to_pylist()
    except Exception as error:  # beside the storage's: of values that Python lacks, such as dates beyond the year 9999
        return f"no preview: {error}"
    names = list(rows[0])
    return markdown_table(names, ([_cell(row[name]) for name in names] for row in rows))


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= CELL_LENGTH else text[: CELL_LENGTH - 1] + "…"
