"""What a run will do, decided before anything starts: its token, its chunks, and which receipts still count.
Pure but for the run history read in run_token; nothing is written here."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

import dagster as dg
from dagster._core.storage.tags import PARENT_RUN_ID_TAG, RESUME_RETRY_TAG
from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.commit import tokens
from lakehouse_assets.commit.tokens import KEEP, RESUMABLE, RunToken
from lakehouse_assets.declare.table import Table
from lakehouse_assets.errors import PublishRefused
from lakehouse_assets.protocol.receipts import Receipt
from lakehouse_assets.step.window import Window


@dataclass(frozen=True)
class Chunk:
    """One worker's share: ordinal from 0, partition keys (none for a table without partitions)."""

    ordinal: int
    keys: tuple[str, ...]

    def __str__(self) -> str:
        if not self.keys:
            return "whole table"
        return self.keys[0] if len(self.keys) == 1 else f"{self.keys[0]} to {self.keys[-1]} ({len(self.keys)})"


def chain_head(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str:
    """The id of the run at the head of the resume chain.

    A re-execution from failure carries on (its own id would not know what the failed run committed), any other
    re-execution begins afresh (the root's id would swallow a real recompute).
    """
    while run.tags.get(RESUME_RETRY_TAG) == "true" and (parent := run.tags.get(PARENT_RUN_ID_TAG)):
        before = instance.get_run_by_id(parent)
        if before is None:
            return parent
        run = before
    return run.run_id


def run_token(table: str, instance: dg.DagsterInstance, run: dg.DagsterRun) -> RunToken:
    """The token of the run at the head of the resume chain.

    table: its name, for messages. Raises PublishRefused for a run that can't be resumed any more: after RESUMABLE what
    it published may have been forgotten, and would be published again over newer rows.
    """
    head = chain_head(instance, run)
    created, asked = _created(instance, head), _created(instance, run.run_id)
    if created is None or asked is None:
        raise _not_resumable(table, head, "is no longer in Dagster, so nobody knows how old it is")
    if asked - created > RESUMABLE:
        when = f"was created on {created:%Y-%m-%d %H:%M} UTC, {(asked - created).days} days before this one"
        raise _not_resumable(table, head, when)
    return RunToken(head, created)


def refuse_forgotten(table: str, metadata: TableMetadata, token: RunToken, run: dg.DagsterRun) -> None:
    """Refuse to resume a run whose token may have been pruned, which takes a clock of Dagster's storage that went back.

    Raises PublishRefused.
    """
    if token.text != run.run_id and tokens.is_forgotten(metadata, token):
        late = f"keeps only tokens of runs {KEEP.days} days later (or a clock was wrong)"
        when = f"was created on {token.created:%Y-%m-%d %H:%M} UTC, and the table {late}"
        raise _not_resumable(table, token.text, when)


def _created(instance: dg.DagsterInstance, run_id: str) -> datetime | None:
    record = instance.get_run_record_by_id(run_id)
    return record.create_timestamp if record else None


def _not_resumable(table: str, head: str, why: str) -> PublishRefused:
    return PublishRefused(
        f"table {table}: the run {head}, which this one resumes, {why}; runs can be resumed for {RESUMABLE.days} days. "
        "Nothing was staged or published. Materialize the partitions anew: a new run, not a re-execution from failure"
    )


def plan_chunks(table: Table, keys: Sequence[str]) -> list[Chunk]:
    """The run's keys in chunks of at most ``partitions_per_worker``, in order; one chunk for an unpartitioned table."""
    if not keys:
        return [Chunk(0, ())]
    size = table.partitions_per_worker or len(keys)
    return [Chunk(i, tuple(keys[start : start + size])) for i, start in enumerate(range(0, len(keys), size))]


def publish_token(token: str, chunks: Sequence[Chunk], ready: Sequence[Chunk]) -> str:
    """The token to publish ``ready`` with: the run's for all its chunks, for some ``<token>.<plan>.<part>:0-2_5-5``.

    The run's own would make a later publish of the rest pass for a repetition; the chunks' ordinals tell a resumed run
    what it need not stage and must not publish again, since another run may have replaced it meanwhile. They are as
    long as they are many, so they are no part of the property's name (tokens.SPANS).
    """
    if len(ready) == len(chunks):
        return token
    ordinals = enumerate(chunk.ordinal for chunk in ready)
    runs = [[n for _, n in run] for _, run in groupby(ordinals, key=lambda pair: pair[1] - pair[0])]
    spans = "_".join(f"{run[0]}-{run[-1]}" for run in runs)
    return f"{token}.{_digest(chunks)}.{_digest(ready)}{tokens.SPANS}{spans}"


def published_chunks(table: str, metadata: TableMetadata, token: str, chunks: Sequence[Chunk]) -> dict[int, int]:
    """The chunks that earlier attempts of the run published, by ordinal, each with its snapshot.

    Raises as tokens.find_published. Parts of another plan do not count: their ordinals mean other keys.
    """
    published: dict[int, int] = {}
    prefix = f"{tokens.PREFIX}{token}.{_digest(chunks)}."
    for name, value in metadata.properties.items():
        if name.startswith(prefix):
            snapshot_id = tokens.find_published(table, metadata, name.removeprefix(tokens.PREFIX))
            spans = [span.split("-") for span in value.partition(tokens.SPANS)[2].split("_") if span]
            ordinals = [n for first, last in spans for n in range(int(first), int(last) + 1)]
            published |= dict.fromkeys(ordinals, snapshot_id)
    if (whole := tokens.find_published(table, metadata, token)) is not None:
        published |= dict.fromkeys((chunk.ordinal for chunk in chunks), whole)
    return published


def _digest(chunks: Sequence[Chunk]) -> str:
    return hashlib.sha256(repr([chunk.keys for chunk in chunks]).encode()).hexdigest()[:8]


def window_of(table: Table, chunk: Chunk, landing: str) -> Window:
    """What the step is told of its chunk."""
    start, end = table.alignment.window(chunk.keys) or (None, None)
    return Window(
        keys=chunk.keys,
        start=start,
        end=end,
        dimensions=table.alignment.dimensions(chunk.keys),
        landing=landing,
    )


def usable(receipts: Iterable[Receipt], work: Mapping[int, str]) -> list[Receipt]:
    """The receipts a resumed run may take: left for the very work that it would ask for (Assignment.work, by chunk)."""
    return [receipt for receipt in receipts if work.get(receipt.chunk) == receipt.work]
