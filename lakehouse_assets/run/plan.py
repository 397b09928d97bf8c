"""The plan of a run, decided and written once. A *chunk* is the partition keys of one worker."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from hashlib import sha256
from itertools import groupby
from typing import Any, ClassVar
from uuid import UUID

import dagster as dg
from dagster_shared.check import CheckError
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.commit import tokens
from lakehouse_assets.declare.table import Table
from lakehouse_assets.drive.chunks import Chunk, Journal
from lakehouse_assets.errors import ForeignVersion, PublishRefused
from lakehouse_assets.keys_text import keys_text
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.wire.receipts import read_json
from lakehouse_assets.wire.work import Durable, decode

ANEW = "Materialize the partitions again in a new run, not by re-executing from failure"


@dataclass(frozen=True)
class RunPlan(Durable):
    """The plan of a run, which a resumed run follows even if the declaration has changed."""

    FORMAT: ClassVar[int] = 2

    token: str
    """The id of the run at the head of the resume chain (resume.py)."""
    run_id: str
    made_at: datetime
    table_uuid: UUID
    snapshot_id: int | None
    """The table's current snapshot when the plan was made; None for an empty table."""
    columns: tuple[str, ...]
    """The table's when the plan was made; nested ones with dots."""
    write_mode: str
    code_version: str
    chunks: tuple[Chunk, ...]
    """In order: a chunk's ordinal is its index here."""
    extensions: Mapping[str, Any] = field(default_factory=dict)
    """What RunHook.plan() returned, by the hook's name."""

    @property
    def keys(self) -> tuple[str, ...]:
        """All partition keys, in order; empty for a table without partitions."""
        return tuple(key for chunk in self.chunks for key in chunk.keys)

    def part(self, name: str, kind: Any) -> Any:
        """Returns what a hook planned, as a value of this type; None if it planned nothing.

        Raises ForeignVersion for a part that this code can't read.
        """
        if (found := self.extensions.get(name)) is None:
            return None
        try:
            return decode(kind, found)
        except ValueError as error:
            raise ForeignVersion(
                f"this code can't read what the plan of the run {self.token} has for {name}: {error}. Nothing was "
                f"staged or published. {ANEW}; or resume the run with the code that planned it"
            ) from None

    @property
    def made_ms(self) -> int:
        """When the plan was made, in epoch milliseconds."""
        return round(self.made_at.timestamp() * 1000)

    @classmethod
    def _current(cls, found: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the fields of a plan in the current version.

        Version 1, written until December 2026, had the extensions' parts as fields. Plans of that version are read
        while their runs can be resumed (tokens.RESUMABLE).
        """
        if found.get("version") != 1:
            return found
        own = {"version", *(one.name for one in fields(cls))}
        extensions = {name: part for name, part in found.items() if name not in own and part}
        kept = {name: part for name, part in found.items() if name in own}
        return kept | {"version": cls.FORMAT, "extensions": extensions}

    def refuse_other(self, table: str, keys: Sequence[str], table_uuid: UUID) -> None:
        """Raises PublishRefused unless these keys and this table uuid are the planned ones."""
        if table_uuid != self.table_uuid:
            found = f"the table was created again since ({self.table_uuid} before, {table_uuid} now)"
        elif tuple(keys) != self.keys:
            found = f"it had the partitions {keys_text(self.keys)}, and has {keys_text(keys)} now"
        else:
            return
        raise PublishRefused(
            f"table {table}: the run {self.token}, which this one resumes, was planned differently: {found}. Nothing "
            f"was staged or published. {ANEW}"
        )


@dataclass(frozen=True)
class Plans:
    """The plans of one table's runs."""

    table: str
    io: FileIO
    prefix: str
    """Holds a folder for each run token."""

    def journal(self, token: str) -> Journal:
        """Returns the journal of a run token."""
        return Journal(self.io, f"{self.prefix}/{token}")

    def location(self, token: str) -> str:
        """Returns the path of a plan, even if there is none."""
        return f"{self.prefix}/{token}/plan.json"

    def find(self, token: str) -> RunPlan | None:
        """Reads a plan; None if it is missing or torn. Then no worker has started, as the plan is written first.

        Raises OSError, and ForeignVersion for a plan that this code can't read.
        """
        location = self.location(token)

        def parse(text: str) -> RunPlan:
            found = json.loads(text)
            try:
                return RunPlan.from_json(found)
            except ValueError as error:
                raise ForeignVersion(
                    f"this code can't read the plan {location}: {error}. Nothing was staged or published. {ANEW}; or "
                    "resume the run with the code that wrote the file"
                ) from None

        return read_json(self.io, location, parse)

    def write(self, plan: RunPlan) -> None:
        """Writes a new plan, before anything starts."""
        plan.write(self.io, self.location(plan.token))


def plans_of(lakehouse: Lakehouse, table: str) -> Plans:
    """Returns the plans of a table's runs."""
    return Plans(table, lakehouse.staging_io(), f"{lakehouse.settings.staging}/{table}")


def plan_chunks(table: Table, keys: Sequence[str]) -> list[Chunk]:
    """Cuts the run's keys into chunks of at most ``partitions_per_worker``, in order.

    Returns one chunk for a table without partitions, or if the write mode needs all rows in one worker.
    """
    if not keys:
        return [Chunk(0, ())]
    # Without a limit, or if the rows can't be split, one chunk has all keys.
    size = (table.partitions_per_worker if table.write_mode.splits else None) or len(keys)
    return [Chunk(i, tuple(keys[start : start + size])) for i, start in enumerate(range(0, len(keys), size))]


def publish_token(plan: RunPlan, ready: Sequence[Chunk]) -> str:
    """Returns the token to publish these chunks with: the run's for all, ``<token>.<hash>:0-2_5-5`` for some.

    With the run's own token for some chunks, a later publish of the others would count as a repetition. The ordinals
    name the chunks that a resumed run must not publish again, as another run may have replaced their rows. They may be
    many, so the table's property has them in its value, not in its name (tokens.SPANS).
    """
    if len(ready) == len(plan.chunks):
        return plan.token
    # Consecutive ordinals have the same distance to their index, so this groups them.
    ordinals = enumerate(chunk.ordinal for chunk in ready)
    runs = [[n for _, n in run] for _, run in groupby(ordinals, key=lambda pair: pair[1] - pair[0])]
    spans = "_".join(f"{run[0]}-{run[-1]}" for run in runs)
    return f"{plan.token}.{sha256(spans.encode()).hexdigest()[:8]}{tokens.SPANS}{spans}"


def published_chunks(table: str, metadata: TableMetadata, plan: RunPlan) -> dict[int, int]:
    """Returns ordinal → snapshot of the chunks that attempts of this run have published to main.

    Raises as tokens.find_published().
    """
    published: dict[int, int] = {}
    # First the commits of some chunks, whose properties name these chunks; then a commit of all chunks.
    for name in tokens.properties_of(metadata, plan.token):
        part = name.removeprefix(tokens.PREFIX)
        if part != plan.token and (snapshot_id := tokens.find_published(table, metadata, part)) is not None:
            spans = [
                span.split("-") for span in metadata.properties[name].partition(tokens.SPANS)[2].split("_") if span
            ]
            ordinals = [n for first, last in spans for n in range(int(first), int(last) + 1)]
            published |= dict.fromkeys(ordinals, snapshot_id)
    if (whole := tokens.find_published(table, metadata, plan.token)) is not None:
        published |= dict.fromkeys((chunk.ordinal for chunk in plan.chunks), whole)
    return published


def refuse_unplanned_parts(table: str, metadata: TableMetadata, token: str) -> None:
    """Raises PublishRefused if a run whose plan is gone has published parts: their keys are unknown."""
    if parts := [name for name in tokens.properties_of(metadata, token) if name != tokens.PREFIX + token]:
        raise PublishRefused(
            f"table {table}: the run {token}, which this one resumes, published some of its chunks ({len(parts)} "
            "commits), but its plan is gone from the staging folder, so it is unknown which partitions they hold. "
            "Nothing was staged or published. Look in that run's log for what it published, and materialize only the "
            "other partitions"
        )


def asked_keys(context: dg.AssetExecutionContext, table: Table) -> tuple[str, ...]:
    """Returns the run's partition keys of this asset.

    Raises PublishRefused if an end of the run's range is no longer declared.
    """
    # From the asset's own partitions, not from run tags: a range's tags are the same for all assets of the run.
    if table.partitions is None or not (context.has_partition_key or context.has_partition_key_range):
        return ()
    try:
        return tuple(context.partition_keys)
    except (CheckError, dg.DagsterError) as error:
        # Dagster raises these also for other reasons. If both ends are declared, its error says more.
        asked = context.partition_key_range.start, context.partition_key_range.end
        known = table.partitions.get_partition_keys(dynamic_partitions_store=context.instance)
        if not (gone := sorted({*asked}.difference(known))):
            raise
        there = f"the declared ones are {keys_text(known)}" if known else "none is declared"
        raise PublishRefused(
            f"table {table.identifier}: the run is for the partitions {' to '.join(asked)}, but {' and '.join(gone)} "
            f"{'is' if len(gone) == 1 else 'are'} not declared; {there}. Nothing was staged or published. "
            "Materialize the declared partitions in a new run, or declare the missing ones again"
        ) from error
