"""Shows the first rows of each partition of a run in its materialization.

What else a materialization shows is metadata.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dagster as dg
from pyiceberg.manifest import DataFile, FileFormat

from lakehouse_assets.commit.staged import StagedChunk
from lakehouse_assets.declare.region import Region
from lakehouse_assets.run.shown_table import markdown_table
from resources.aws import READERS

# Few, because they are stored with every materialization.
ROWS = 5
CELL_LENGTH = 40
MOST_PARTITIONS = 50
"""The most partitions of a run with previews: each one opens a file in storage."""


def previews(region: Region, chunks: Sequence[StagedChunk]) -> dict[str, dg.MetadataValue]:
    """Shows the first rows of each partition's first staged file as a Markdown table, or why there are none.

    The result is keyed by partition, "" for a table without partitions. It is empty for a run of more than
    MOST_PARTITIONS.
    """
    keys = region.keys or ("",)
    if len(keys) > MOST_PARTITIONS:
        return {}
    first: dict[str | None, tuple[StagedChunk, DataFile]] = {}
    for chunk in chunks:
        for file in chunk.files:
            if file.record_count:
                first.setdefault(region.key_of(file.partition), (chunk, file))
    with ThreadPoolExecutor(READERS, thread_name_prefix="previews") as pool:
        texts = pool.map(lambda key: _text(*first[key]) if key in first else "no rows", keys)
        return {key: dg.MetadataValue.md(text) for key, text in zip(keys, texts, strict=True)}


def _text(chunk: StagedChunk, file: DataFile) -> str:
    if file.file_format is not FileFormat.PARQUET:
        return f"no preview of {file.file_format.value} files"
    try:
        rows = _head(chunk, file)
    except Exception as error:  # beside the storage's: of values that Python lacks, such as dates beyond the year 9999
        return f"no preview: {error}"
    names = list(rows[0])
    return markdown_table(names, ([_cell(row[name]) for name in names] for row in rows))


def _head(chunk: StagedChunk, file: DataFile) -> list[dict[str, Any]]:
    from pyarrow.parquet import ParquetFile

    with chunk.io.new_input(file.file_path).open() as stream:
        batch = next(ParquetFile(stream).iter_batches(batch_size=ROWS))
    rows: list[dict[str, Any]] = batch.slice(0, ROWS).to_pylist()
    return rows


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= CELL_LENGTH else text[: CELL_LENGTH - 1] + "…"
