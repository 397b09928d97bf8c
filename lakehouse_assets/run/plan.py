"""What a run will do, decided before anything starts: its chunks, and which of them an earlier attempt published.
Which run it resumes is resume.py's; what a worker has to do, assignments.py's."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import groupby

from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.commit import tokens
from lakehouse_assets.declare.table import Table
from lakehouse_assets.drive.chunk import Chunk
from lakehouse_assets.step.window import Window


def plan_chunks(table: Table, keys: Sequence[str]) -> list[Chunk]:
    """The run's keys in chunks of at most ``partitions_per_worker``, in order; one chunk for an unpartitioned table, or
    if the write mode does not split a run."""
    if not keys:
        return [Chunk(0, ())]
    size = (table.partitions_per_worker if table.write_mode.splits else None) or len(keys)
    return [Chunk(i, tuple(keys[start : start + size])) for i, start in enumerate(range(0, len(keys), size))]


def publish_token(token: str, chunks: Sequence[Chunk], ready: Sequence[Chunk]) -> str:
    """The token to publish ``ready`` with: for all chunks the run's, for some ``<token>.<plan>.<part>:0-2_5-5``.

    With the run's own token, a later publish of the other chunks would be taken for a repetition. The ordinals say
    which chunks a resumed run must neither stage nor publish again, as another run may have replaced them meanwhile.
    Their length is not bounded, so they are not part of the property's name (tokens.SPANS).
    """
    if len(ready) == len(chunks):
        return token
    ordinals = enumerate(chunk.ordinal for chunk in ready)
    runs = [[n for _, n in run] for _, run in groupby(ordinals, key=lambda pair: pair[1] - pair[0])]
    spans = "_".join(f"{run[0]}-{run[-1]}" for run in runs)
    return f"{token}.{_digest(chunks)}.{_digest(ready)}{tokens.SPANS}{spans}"


def published_chunks(table: str, metadata: TableMetadata, token: str, chunks: Sequence[Chunk]) -> dict[int, int]:
    """Ordinal → snapshot of each chunk that earlier attempts of the run published. Raises as tokens.find_published.

    Parts of another plan are left out: their ordinals stand for other keys.
    """
    published: dict[int, int] = {}
    prefix = _of_plan(token, chunks)
    for name, value in metadata.properties.items():
        part = name.removeprefix(tokens.PREFIX)
        if name.startswith(prefix) and (snapshot_id := tokens.find_published(table, metadata, part)) is not None:
            spans = [span.split("-") for span in value.partition(tokens.SPANS)[2].split("_") if span]
            ordinals = [n for first, last in spans for n in range(int(first), int(last) + 1)]
            published |= dict.fromkeys(ordinals, snapshot_id)
    if (whole := tokens.find_published(table, metadata, token)) is not None:
        published |= dict.fromkeys((chunk.ordinal for chunk in chunks), whole)
    return published


def published_otherwise(metadata: TableMetadata, token: str, chunks: Sequence[Chunk]) -> bool:
    """Whether earlier attempts of the run published parts of another plan: nobody knows which keys these stand for."""
    whole = tokens.PREFIX + token
    return any(n != whole and not n.startswith(_of_plan(token, chunks)) for n in tokens.properties_of(metadata, token))


def _of_plan(token: str, chunks: Sequence[Chunk]) -> str:
    """How the names of the properties of its parts begin."""
    return f"{tokens.PREFIX}{token}.{_digest(chunks)}."


def _digest(chunks: Sequence[Chunk]) -> str:
    return hashlib.sha256(repr([chunk.keys for chunk in chunks]).encode()).hexdigest()[:8]


def window_of(table: Table, chunk: Chunk, landing: str) -> Window:
    """The window that the step gets for a chunk. landing: the domain's part of the drop zone."""
    start, end = table.alignment.window(chunk.keys) or (None, None)
    return Window(chunk.keys, start, end, table.alignment.dimensions(chunk.keys), landing)
