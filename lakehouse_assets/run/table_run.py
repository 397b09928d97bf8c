"""One run of a table's asset: plan, stage, audit, publish, report."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import dagster as dg
from dagster_shared.check import CheckError
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.commit.audit import AuditFinding, audit, own_commits
from lakehouse_assets.commit.commit_part import SummaryEntries
from lakehouse_assets.commit.evolution import CHANGES, Evolution, evolution_texts
from lakehouse_assets.commit.owner import other_owner, read_mark
from lakehouse_assets.commit.positions import PositionUpdate
from lakehouse_assets.commit.publish import Published, publish
from lakehouse_assets.commit.staged import StagedChunk, read_all
from lakehouse_assets.commit.strategies import OwnReads, WriteStrategy, strategy_of
from lakehouse_assets.commit.target import open_target
from lakehouse_assets.commit.tokens import RunToken
from lakehouse_assets.declare.region import Region
from lakehouse_assets.declare.table import Table
from lakehouse_assets.drive.chunks import Chunk, Journal, Results
from lakehouse_assets.drive.loop import Drive, driving
from lakehouse_assets.environment.catalog import with_retries
from lakehouse_assets.environment.launchers.base import Attempt, Launcher
from lakehouse_assets.errors import HeadMoved, InputsMoved, PublishRefused
from lakehouse_assets.keys_text import keys_text
from lakehouse_assets.run.inputs import (
    entry_of,
    files_by_key,
    keep_unread,
    pins_of,
    position_update,
    read_on_of,
    refuse_unpinned,
    ui_metadata,
    upstream_tags,
)
from lakehouse_assets.run.jobs import FILES
from lakehouse_assets.run.moving import source_range
from lakehouse_assets.run.plan import (
    Plans,
    RunPlan,
    first_attempts,
    plan_chunks,
    plans_of,
    publish_token,
    published_chunks,
    refuse_unplanned_parts,
)
from lakehouse_assets.run.progress import Progress, report
from lakehouse_assets.run.queue_part import QueuePart
from lakehouse_assets.run.report import (
    advice_after,
    audit_failure,
    bad_keys,
    check_result,
    materialized,
    rows_now,
    run_metadata,
    shown_by_key,
    staged_again,
    staging_failure,
)
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.run.resume import AppendOnce, refuse_forgotten, run_token
from lakehouse_assets.run.table_lock import TableLock
from lakehouse_assets.wire.work import Cause, Pin, ReadOn, SourceRange

STAGINGS, UNLOCKED_STAGINGS = 5, 2
"""The most stagings of a run whose merge or schema change others disturb; and how many without the table's lock."""

Events = Iterator[dg.AssetCheckResult | dg.MaterializeResult[None]]


def materialize(context: dg.AssetExecutionContext, table: Table, lakehouse: Lakehouse) -> Events:
    """Runs a table's asset: yields the audit's result, then the materialization.

    Before the plan is read or written, only a missing table is created. Raises Failure if a person must act,
    UnknownPartitions for keys that can't work, and as evolved(), Plans.find(), publish() and the launchers.
    """
    token = run_token(table.identifier, context.instance, context.run)
    keys = _keys(context, table)
    queue = QueuePart(lakehouse, table.identifier, token.text, keys, adds_again=table.write_mode.adds_again)
    results, findings = Results(), list[AuditFinding]()
    try:
        region = table.alignment.region(keys)  # before the table is created: it may refuse keys
        plans = plans_of(lakehouse, table.identifier)
        evolution = evolved(lakehouse, table)
        metadata = evolution.found.metadata
        plan = plans.find(token.text)
        resumes = plan is not None
        if plan is None:
            plan = _plan(context, table, lakehouse, token, keys, metadata, queue)
            plans.write(plan)
        else:
            plan.refuse_other(table.identifier, keys, metadata.table_uuid)
        launcher, strategy = lakehouse.launcher(table.compute), strategy_of(table.write_mode)
        run = TableRun(context, table, lakehouse, token, queue, region, plan, resumes, plans, launcher, strategy)
        yield from run.run(evolution, results, findings)
    except Exception as error:
        queue.failed(context, bad_keys(results.failures, findings), error)
        raise


def _keys(context: dg.AssetExecutionContext, table: Table) -> tuple[str, ...]:
    """Returns the run's partition keys. Raises PublishRefused if an end of its range is no longer declared."""
    # Not from run tags: a range run's tags reach every asset in it.
    if table.partitions is None or not (context.has_partition_key or context.has_partition_key_range):
        return ()
    try:
        return tuple(context.partition_keys)
    except (CheckError, dg.DagsterError) as error:
        known, asked = table.partitions.get_partition_keys(dynamic_partitions_store=context.instance), _ends(context)
        if not (gone := sorted({*asked}.difference(known))):
            raise
        there = f"those declared are {keys_text(known)}" if known else "none is declared"
        raise PublishRefused(
            f"table {table.identifier}: the run is for the partitions {' to '.join(asked)}, and {' and '.join(gone)} "
            f"{'is' if len(gone) == 1 else 'are'} not declared (any more); {there}. Nothing was staged or published. "
            "Materialize the partitions that there are in a new run, or declare the others again"
        ) from error


def _ends(context: dg.AssetExecutionContext) -> tuple[str, str]:
    return context.partition_key_range.start, context.partition_key_range.end


def evolved(lakehouse: Lakehouse, table: Table) -> Evolution:
    """Opens or creates the table, and decides which changes the run makes besides its rows.

    Raises PublishRefused for differences that the declared policies don't allow.
    """
    return Evolution.of(table, with_retries(lambda: open_target(lakehouse.catalog(), table)))


def _plan(
    context: dg.AssetExecutionContext,
    table: Table,
    lakehouse: Lakehouse,
    token: RunToken,
    keys: Sequence[str],
    metadata: TableMetadata,
    queue: QueuePart,
) -> RunPlan:
    """Raises as refuse_unplanned_parts(), pins_of() and source_range()."""
    refuse_unplanned_parts(table.identifier, metadata, token.text)
    # The resumed run's workers may have read earlier: their rows may lack what came since.
    covers = queue.waiting() if token.text == context.run.run_id else {}
    return RunPlan(
        token=token.text,
        run_id=context.run.run_id,
        made_at=datetime.now(UTC),
        table_uuid=metadata.table_uuid,
        snapshot_id=metadata.current_snapshot_id,
        columns=tuple(metadata.schema().column_names),
        write_mode=repr(table.write_mode),
        code_version=table.code_version,
        covers=covers,
        chunks=tuple(plan_chunks(table, keys)),
        upstream=upstream_tags(context, table.key),
        # Pinned after reading the inbox and upstream, so that the pins contain both.
        inputs=pins_of(lakehouse, table, token.text),
        source=source_range(table, metadata, context.run.tags),
    )


@dataclass(frozen=True)
class Staging:
    """The table at the start of a staging, and what follows from it."""

    evolution: Evolution
    earlier: Mapping[int, int]
    """Chunks already published with this token → snapshot."""
    attempts: Mapping[int, Attempt]
    inputs: Sequence[Pin]
    """Those of the plan, or later ones if a staging was repeated."""
    read_on: ReadOn | None
    """None if the table's runs can't read on."""
    source: SourceRange | None

    @property
    def own(self) -> Pin | None:
        """The version of the run's own table that its step reads, if any."""
        name = self.evolution.found.name()
        return next((pin for pin in self.inputs if pin.name == ".".join(name)), None)


@dataclass(frozen=True)
class Staged:
    """What is staged and ready to be published."""

    chunks: Sequence[Chunk]
    """Without those already published with this token."""
    forks: Sequence[StagedChunk]
    table: IcebergTable
    """Loaded after staging: credentials vended when the run began may have expired."""
    positions: PositionUpdate


@dataclass(frozen=True)
class TableRun:
    """One run of a table's asset, with its plan written down."""

    context: dg.AssetExecutionContext
    table: Table
    lakehouse: Lakehouse
    token: RunToken
    """Its own, or that of the run that it resumes."""
    queue: QueuePart
    region: Region
    """What the run's keys own."""
    plan: RunPlan
    resumes: bool
    """Whether another run or process made the plan."""
    plans: Plans
    launcher: Launcher
    strategy: WriteStrategy
    started: float = field(default_factory=time.time)
    """In seconds since the epoch."""

    @property
    def journal(self) -> Journal:
        """The journal of the run's chunks."""
        return self.plans.journal(self.token.text)

    def run(self, evolution: Evolution, results: Results, findings: list[AuditFinding]) -> Events:
        """Stages, audits, publishes and reports. Fills results and findings."""
        with driving(self.context, self.launcher, self.journal, self._report_progress, results) as drive:
            staging, staged, published = yield from self._land(drive, evolution, findings)
            earlier = [chunk for chunk in self.plan.chunks if chunk.ordinal in staging.earlier]
            self.queue.published(self.context, [key for chunk in (*staged.chunks, *earlier) for key in chunk.keys])
            if staged.positions.to or not staged.chunks:  # an earlier process published
                keep_unread(self.lakehouse, self.table.identifier)
            if self.launcher.durable:
                drive.settle()  # a worker's bill is known only at its end
            forks = [*staged.forks, *self._forks_published_earlier(staging, staged.table, results)]
            of_run, of_key = self._shown(staging, forks, published, results)
            version = dg.DataVersion(str(published.snapshot_id))
            yield from materialized(self.context, self.table, self.plan, results, of_run, of_key, version)

    def _land(
        self, drive: Drive, evolution: Evolution, findings: list[AuditFinding]
    ) -> Generator[dg.AssetCheckResult, None, tuple[Staging, Staged, Published]]:
        """Repeats the staging if others changed what the run depends on."""
        merges, inputs = self.strategy.merge is not None, self.plan.inputs
        with closing(TableLock(self.context, self.table.identifier)) as lock:
            for number in range(1, STAGINGS + 1):
                if number > UNLOCKED_STAGINGS:
                    lock.take()
                if number > 1:
                    evolution = evolved(self.lakehouse, self.table)
                staging = self._begin_staging(evolution, inputs, is_first=number == 1)
                try:
                    self._stage(drive, staging)
                except InputsMoved as moved:
                    if number == STAGINGS:
                        raise
                    self.context.log.info(f"{moved}. They are pinned again, and all is staged again")
                    inputs = pins_of(self.lakehouse, self.table, self.token.text)
                    drive.results.forget_chunks()
                    continue
                staged = self._staged(staging, drive.results)
                check = self._audit(staging, staged, findings)
                reads_itself = staging.own is not None
                moves = bool(staging.evolution.applied or staged.positions.to)
                again = number < STAGINGS and (merges or reads_itself or moves)
                if findings or not again:  # Dagster accepts one result per check
                    yield check
                if findings:
                    raise audit_failure(self.table, self.plan.keys, findings)
                try:
                    if merges or reads_itself:
                        lock.wait_for_others()
                    published = self._publish(staging, staged) if staged.chunks else self._published_earlier(staging)
                except HeadMoved as moved:
                    if number == STAGINGS:
                        raise HeadMoved(
                            f"{moved}. So it was each of {STAGINGS} times that the run was staged. Nothing was "
                            "published; materialize again when the others are done"
                        ) from moved
                    if not again:
                        raise
                    self.context.log.info(f"{moved}. It is staged again, on the table as it is now")
                    if staged.positions.to or reads_itself:
                        inputs = pins_of(self.lakehouse, self.table, self.token.text)
                    drive.results.forget_chunks()
                    continue
                if again:
                    yield check
                return staging, staged, published
        raise AssertionError("the last staging returns or raises")

    # stage

    def _begin_staging(self, evolution: Evolution, inputs: Sequence[Pin], *, is_first: bool) -> Staging:
        """Raises PublishRefused if the run may not write, or would add its rows once more."""
        table, plan, target = self.table, self.plan, evolution.found
        evolution.refuse_to_drop_others(plan.columns)
        self._append_once.refuse(target)
        refuse_forgotten(table.identifier, target.metadata, self.token, self.context.run)
        earlier = published_chunks(table.identifier, target.metadata, plan)
        if is_first:
            self._warn_of_another_owner(target)
            self.queue.begin(self.context, plan)
        planned_ms = round(plan.made_at.timestamp() * 1000)
        reads_on = read_on_of(table, target.metadata, self.context.run.tags)
        fork_base = self.strategy.fork(evolution.target, plan.token, planned_ms, self._staged_on(is_first))
        source = plan.source if is_first else source_range(table, target.metadata, self.context.run.tags)
        attempts = first_attempts(
            table,
            self.lakehouse,
            plan,
            self.journal,
            fork_base,
            self.context.run.run_id,
            inputs=inputs,
            read_on=reads_on,
            source=source,
            left_out=evolution.left_out,
            undeclared=evolution.undeclared,
        )
        return Staging(evolution, earlier, attempts, inputs, reads_on, source)

    def _staged_on(self, is_first: bool) -> int | None:
        """Where an earlier attempt staged most chunks."""
        if not (self.resumes and is_first and self.strategy.merge):
            return None
        found = Counter(r.base_snapshot_id for r in self.journal.receipts(chunk.ordinal for chunk in self.plan.chunks))
        return found.most_common(1)[0][0] if found else None

    @property
    def _append_once(self) -> AppendOnce:
        return AppendOnce(self.table, self.plans, self.context.instance, self.context.run)

    def _warn_of_another_owner(self, target: IcebergTable) -> None:
        with suppress(OSError):  # some storages deny requests for missing files
            if found := other_owner(target, read_mark(target)):
                self.context.log.warning(found)

    def _stage(self, drive: Drive, staging: Staging) -> None:
        """Raises Failure if any chunk failed and the others may not go on."""
        table, chunks, results = self.table, self.plan.chunks, drive.results
        left = drive.resume(chunks, staging.attempts, done=staging.earlier)
        self.context.log.info(
            f"{table.identifier}: {len(self.plan.keys) or 'no'} partitions, chunks of work: {len(chunks)}, "
            f"{len(left)} to stage, run token {self.token.text}"
        )
        if self.resumes and left:
            refuse_unpinned(self.lakehouse, table, self.plan)
            for text in staged_again(self.journal.receipts(chunk.ordinal for chunk in left), staging.attempts):
                self.context.log.info(f"{table.identifier}: {text}")
        drive.run(left, staging.attempts, keep_on=table.publish_others)
        if moved := [failure.message for failure in results.failures if failure.cause is Cause.MOVED]:
            raise InputsMoved(f"table {table.identifier}: {moved[0]}, where its workers read inputs as they are")
        if results.failures and not (table.publish_others and (staging.earlier or results.receipts)):
            advice = advice_after(results.failures, added=False)
            raise staging_failure(table.identifier, "Nothing was published", advice, results)

    def _report_progress(self, results: Results) -> None:
        done = sum(len(self.plan.chunks[ordinal].keys) or 1 for ordinal in results.receipts)
        table, total = self.table.identifier, len(self.plan.keys) or 1
        report(Progress(table, done, total, results.running, self.started, results.waiting))

    def _staged(self, staging: Staging, results: Results) -> Staged:
        """Raises as read_all()."""
        now = with_retries(lambda: self.lakehouse.catalog().load_table(self.table.identifier))
        ready = results.receipts.keys() - staging.earlier.keys()
        chunks = [chunk for chunk in self.plan.chunks if chunk.ordinal in ready]
        receipts = [results.receipts[chunk.ordinal] for chunk in chunks]
        positions = position_update(receipts, staging.evolution.found.metadata)
        return Staged(chunks, read_all(now.io.properties, receipts), now, positions)

    # audit

    def _audit(self, staging: Staging, staged: Staged, findings: list[AuditFinding]) -> dg.AssetCheckResult:
        start, strategy = time.monotonic(), self.strategy
        if staged.chunks:
            region = self._region_of(staged.chunks)
            findings += audit(self.table, region, staged.forks, strategy.rules, strategy.at_most_changed)
        # In process, the workers share this JVM's application id with earlier runs.
        known = {s.snapshot_id for s in staging.evolution.found.snapshots()} if self.launcher.blocking else ()
        findings += own_commits(self.table, staged.table.metadata, staged.forks, known)
        seconds, run_id = time.monotonic() - start, self.context.run.run_id
        return check_result(self.table, strategy.rules, run_id, self.plan.keys, staged.forks, findings, seconds)

    def _region_of(self, chunks: Sequence[Chunk]) -> Region:
        every = len(chunks) == len(self.plan.chunks)
        return self.region if every else self.table.alignment.region([key for c in chunks for key in c.keys])

    # publish

    def _publish(self, staging: Staging, staged: Staged) -> Published:
        keys = [key for chunk in staged.chunks for key in chunk.keys]
        region = self._region_of(staged.chunks)
        facts = {
            "lakehouse.run-id": self.context.run.run_id,
            "lakehouse.asset-key": self.table.key.to_user_string(),
            "lakehouse.partitions": keys_text(keys),
            "lakehouse.code-version": self.table.code_version,
        }
        parts = [staging.evolution, SummaryEntries(facts), entry_of(staging.inputs), self._append_once]
        if (own := staging.own) is not None:
            parts.append(OwnReads(own.snapshot_id, region, staged.forks[0].schema))
        parts += [self.queue, staged.positions]
        published = publish(
            self.lakehouse.catalog(),
            self.table.identifier,
            self.strategy.change(region, staged.forks),
            replace(self.token, text=publish_token(self.plan, staged.chunks)),
            parts,
        )
        text = f"{self.table.identifier}: published snapshot {published.snapshot_id} in {published.seconds:.2f} s"
        text += " (already done by an earlier attempt)" if published.repeated else ""
        text += f" at attempt {published.attempts}" if published.attempts > 1 else ""
        self.context.log.info(text)
        return published

    def _published_earlier(self, staging: Staging) -> Published:
        snapshot_id = max(staging.earlier.items())[1]
        self.context.log.info(f"{self.table.identifier}: snapshot {snapshot_id} of an earlier attempt holds it already")
        return Published(snapshot_id, repeated=True)

    # report

    def _forks_published_earlier(self, staging: Staging, now: IcebergTable, results: Results) -> list[StagedChunk]:
        """For their numbers only: missing or broken files are no failure."""
        receipts = [r for ordinal, r in results.receipts.items() if ordinal in staging.earlier]
        try:
            return read_all(now.io.properties, receipts)
        except Exception as error:  # PyIceberg raises all kinds of errors for broken files
            self.context.log.warning(f"the partitions published earlier are reported without their numbers: {error}")
            return []

    def _shown(
        self, staging: Staging, forks: Sequence[StagedChunk], published: Published, results: Results
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Raises nothing: the rows are published, and a run that failed now would be requested again forever."""
        try:
            changes = self._schema_change(staging, published)
            of_run = run_metadata(self.table, staging.evolution.target, changes, forks, published, results)
            read_to = {name: to for fork in forks for name, to in fork.receipt.read_to.items()}
            of_run |= ui_metadata(self.table, staging.inputs, read_to, staging.read_on)
            if self.table.source is not None:
                of_run["moved_to"] = read_to.get(self.table.source.name, "no further: there was nothing to move")
            if staging.source and (given_up := staging.source.given_up):
                of_run["given_up"] = given_up
            if self.table.partitions is None and not self.table.write_mode.replaces:
                now = with_retries(lambda: self.lakehouse.catalog().load_table(self.table.identifier))
                of_run |= rows_now(now, published.snapshot_id)
            if not forks:
                return of_run, {}
            region = self._region_of([self.plan.chunks[fork.receipt.chunk] for fork in forks])
            of_key = shown_by_key(self.table, region, forks)
            messages, files = self.queue.metadata(), files_by_key(fork.receipt for fork in forks)
            return of_run, {
                key: of_one | dict(messages.get(key, {})) | ({FILES: files[key]} if key in files else {})
                for key, of_one in of_key.items()
            }
        except Exception as error:
            text = f"published, but what is there can't be shown: {error!r}"
            self.context.log.warning(f"{self.table.identifier}: {text}")
            return {"snapshot_id": str(published.snapshot_id), "not_shown": text}, {}

    def _schema_change(self, staging: Staging, published: Published) -> dict[str, str]:
        """Reads the snapshot if another process committed: there is no difference any more."""
        if not published.repeated:
            return evolution_texts(staging.evolution.applied)
        snapshot = staging.evolution.found.snapshot_by_id(published.snapshot_id)
        summary = snapshot.summary if snapshot else None
        return {name: text for name, entry in CHANGES.items() if summary and (text := summary[entry])}
