"""The plan of a run, written once, and its first attempts."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import sha256
from itertools import groupby
from uuid import UUID

from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.commit import tokens
from lakehouse_assets.commit.fork import ForkBase
from lakehouse_assets.commit.strategies import strategy_of
from lakehouse_assets.declare.table import Table
from lakehouse_assets.drive.chunks import Chunk, Journal
from lakehouse_assets.environment.catalog import worker_properties
from lakehouse_assets.environment.env_reader import public
from lakehouse_assets.environment.launchers.base import Attempt
from lakehouse_assets.errors import ForeignVersion, PublishRefused
from lakehouse_assets.inbox.inbox import Failed, PartitionMessages, RunMessages
from lakehouse_assets.keys_text import keys_text, parts_of
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.step.window import Window
from lakehouse_assets.wire.code import code_packages, worker_code
from lakehouse_assets.wire.receipts import read_json
from lakehouse_assets.wire.work import Assignment, Durable, Pin, ReadOn, RewriteAssignment, SourceRange

logger = logging.getLogger(__name__)

ANEW = "Materialize the partitions anew: a new run, not a re-execution from failure"


@dataclass(frozen=True)
class RunPlan(Durable):
    """The plan of a run. A resumed run follows it, even if the declaration has changed."""

    token: str
    """The id of the run at the head of the resume chain."""
    run_id: str
    made_at: datetime
    table_uuid: UUID
    snapshot_id: int | None
    """The table's head at planning."""
    columns: tuple[str, ...]
    """Nested ones with dots."""
    write_mode: str
    code_version: str
    covers: Mapping[str, PartitionMessages]
    """What waited in the inbox at planning, by partition."""
    chunks: tuple[Chunk, ...]
    """A chunk's ordinal is its index here."""
    inputs: tuple[Pin, ...]
    source: SourceRange | None = None
    upstream: Mapping[str, str] = field(default_factory=dict)
    """The tags by which Dagster detects changed upstream assets, from before the pins."""

    @property
    def keys(self) -> tuple[str, ...]:
        """All partition keys, in order; empty for a table without partitions."""
        return tuple(key for chunk in self.chunks for key in chunk.keys)

    def covered(self, table: str) -> RunMessages:
        """Returns the run's part in the inbox."""
        made_ms = round(self.made_at.timestamp() * 1000)
        return RunMessages(table, self.token, tuple(parts_of(self.keys)), self.covers, self.snapshot_id, made_ms)

    def refuse_other(self, table: str, keys: Sequence[str], table_uuid: UUID) -> None:
        """Raises PublishRefused if these keys or this table uuid are not the planned ones."""
        if table_uuid != self.table_uuid:
            found = f"the table has been made anew since ({self.table_uuid} before, {table_uuid} now)"
        elif tuple(keys) != self.keys:
            found = f"it had the partitions {keys_text(self.keys)}, and has {keys_text(keys)} now"
        else:
            return
        raise PublishRefused(
            f"table {table}: the run {self.token}, which this one resumes, was planned otherwise: {found}. Nothing was "
            f"staged or published. {ANEW}"
        )


@dataclass(frozen=True)
class Plans:
    """The plans of one table's runs, and why runs failed."""

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
        """Reads a plan; None if it is missing or torn: then nothing has started.

        Raises OSError if the storage can't be read, ForeignVersion for a plan that this code can't read.
        """
        location = self.location(token)

        def parse(text: str) -> RunPlan:
            fields = json.loads(text)
            try:
                return RunPlan.from_json(fields)
            except ValueError as error:
                raise ForeignVersion(
                    f"{location} is no plan that this code reads: {error}. Nothing was staged or published. {ANEW}; or "
                    "resume the run with the code that wrote the file"
                ) from None

        return read_json(self.io, location, parse)

    def write(self, plan: RunPlan) -> None:
        """Writes a new plan, before anything starts."""
        plan.write(self.io, self.location(plan.token))

    def covers(self, token: str) -> RunMessages | None:
        """Returns what a run covers; None without a readable plan. Raises OSError."""
        try:
            plan = self.find(token)
        except ForeignVersion as error:
            logger.warning("%s", error)
            return None
        return plan.covered(self.table) if plan else None

    def keys_of(self, token: str) -> Collection[str] | None:
        """Returns a run's partitions, as covers()."""
        covers = self.covers(token)
        return covers.keys if covers else None

    def failed(self, token: str) -> Failed | None:
        """Returns why a run failed, if it says so. Raises OSError."""
        return read_json(self.io, self._failed(token), Failed.from_json)

    def write_failed(self, token: str, failed: Failed) -> None:
        """Writes why a run failed, over an earlier attempt's note."""
        failed.write(self.io, self._failed(token))

    def _failed(self, token: str) -> str:
        return f"{self.prefix}/{token}/failed.json"


def plans_of(lakehouse: Lakehouse, table: str) -> Plans:
    """Returns the plans of a table's runs."""
    return Plans(table, lakehouse.staging_io(), f"{lakehouse.settings.staging}/{table}")


def plan_chunks(table: Table, keys: Sequence[str]) -> list[Chunk]:
    """Cuts the run's keys into chunks of at most ``partitions_per_worker``, in order.

    There is one chunk without partitions, or if the write mode does not split.
    """
    if not keys:
        return [Chunk(0, ())]
    size = (table.partitions_per_worker if table.write_mode.splits else None) or len(keys)
    return [Chunk(i, tuple(keys[start : start + size])) for i, start in enumerate(range(0, len(keys), size))]


def publish_token(plan: RunPlan, ready: Sequence[Chunk]) -> str:
    """Returns the token to publish these chunks with: the run's for all, ``<token>.<part>:0-2_5-5`` for some.

    With the run's token, a later publish of the others would count as a repetition. The ordinals name the chunks that a
    resumed run must not publish again: another run may have replaced them. They are not in the property's name
    (tokens.SPANS), as their length is not bounded.
    """
    if len(ready) == len(plan.chunks):
        return plan.token
    ordinals = enumerate(chunk.ordinal for chunk in ready)
    runs = [[n for _, n in run] for _, run in groupby(ordinals, key=lambda pair: pair[1] - pair[0])]
    spans = "_".join(f"{run[0]}-{run[-1]}" for run in runs)
    return f"{plan.token}.{sha256(spans.encode()).hexdigest()[:8]}{tokens.SPANS}{spans}"


def published_chunks(table: str, metadata: TableMetadata, plan: RunPlan) -> dict[int, int]:
    """Returns ordinal → snapshot of the published chunks. Raises as tokens.find_published()."""
    published: dict[int, int] = {}
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
    """Raises PublishRefused if a run without a plan has published parts: their keys are unknown."""
    if parts := [name for name in tokens.properties_of(metadata, token) if name != tokens.PREFIX + token]:
        raise PublishRefused(
            f"table {table}: the run {token}, which this one resumes, has published some of its chunks ({len(parts)} "
            "commits), and its plan is gone from the staging folder, so nobody knows which partitions these are. "
            "Nothing was staged or published. See in its log what it has published, and materialize only the others"
        )


def window_of(table: Table, chunk: Chunk, landing: str) -> Window:
    """Returns the step's window. landing: the domain's part of the drop zone."""
    start, end = table.alignment.window(chunk.keys) or (None, None)
    return Window(chunk.keys, start, end, table.alignment.dimensions(chunk.keys), landing)


def first_attempts(
    table: Table,
    lakehouse: Lakehouse,
    plan: RunPlan,
    journal: Journal,
    fork_base: ForkBase,
    run_id: str,
    *,
    inputs: Sequence[Pin] = (),
    read_on: ReadOn | None = None,
    source: SourceRange | None = None,
    left_out: Sequence[str] = (),
    undeclared: Sequence[str] = (),
) -> dict[int, Attempt]:
    """Returns the first attempt at each chunk, by ordinal. run_id: for the services' lists."""
    merge = strategy_of(table.write_mode).merge
    settings = lakehouse.settings
    code, landing = worker_code(table.step, table.checks.values()), lakehouse.landing(table.domain)
    packages = code_packages(table.step, table.checks.values())
    # Without secrets: the worker's environment has them.
    catalog = worker_properties(settings)
    spark_conf = public({**table.spark_conf, **settings.spark_conf})

    def attempt(chunk: Chunk) -> Attempt:
        assignment = Assignment(
            table=table.identifier,
            step=table.step,
            token=plan.token,
            chunk=chunk.ordinal,
            window=window_of(table, chunk, landing),
            fork_base=fork_base.location,
            base_snapshot_id=fork_base.snapshot_id,
            receipt=journal.receipt_location(chunk.ordinal),
            code_version=table.code_version,
            code=code,
            unique=tuple(table.unique),
            checks=table.checks,
            merge=merge,
            left_out=tuple(left_out),
            undeclared=tuple(undeclared),
            inputs=tuple(inputs),
            read_on=read_on,
            source=source,
            compute=table.compute or settings.compute,
            catalog=catalog,
            spark_conf=spark_conf,
        )
        return replace(attempt_of(table, assignment, run_id, chunk.keys), packages=packages)

    return {chunk.ordinal: attempt(chunk) for chunk in plan.chunks}


def attempt_of(table: Table, work: Assignment | RewriteAssignment, run_id: str, partitions: Sequence[str]) -> Attempt:
    """Returns the first attempt at work on a table. run_id, partitions: for the services' lists."""
    return Attempt(
        group=work.token,
        subject=table.identifier,
        ordinal=work.chunk,
        work=work.work,
        payload=work.to_fields(),
        spark_conf=work.spark_conf,
        size=table.size,
        tags={
            "lakehouse:run": run_id,
            "lakehouse:asset": table.key.to_user_string(),
            "lakehouse:partitions": keys_text(partitions),
        },
        timeout=table.worker_limit,
    )
