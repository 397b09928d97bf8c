"""One run of one table's asset: plan → write → audit → publish → report. This file fixes the order of these modules."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import dagster as dg
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.commit.audit import AuditFinding, audit, own_commits
from lakehouse_assets.commit.evolution import Evolution, evolution_texts
from lakehouse_assets.commit.owner import other_owner, read_mark
from lakehouse_assets.commit.paths import check_paths
from lakehouse_assets.commit.publish import Published, publish
from lakehouse_assets.commit.row_changes import change_of_run
from lakehouse_assets.commit.run_fork import write_run_fork
from lakehouse_assets.commit.staged import StagedChunk, partition_stats, read_all
from lakehouse_assets.commit.target import open_target
from lakehouse_assets.commit.tokens import RunToken
from lakehouse_assets.declare.region import Region
from lakehouse_assets.declare.table import Table
from lakehouse_assets.drive.attempts import AttemptRecords
from lakehouse_assets.drive.chunk import Chunk, Results
from lakehouse_assets.drive.drive import Drive, driving
from lakehouse_assets.errors import HeadMoved
from lakehouse_assets.keys_text import keys_text
from lakehouse_assets.protocol.receipts import Receipt, Receipts
from lakehouse_assets.run import metadata
from lakehouse_assets.run.assignments import first_attempts
from lakehouse_assets.run.audit_check import audit_failure, check_result
from lakehouse_assets.run.bad_keys import bad_keys
from lakehouse_assets.run.plan import Plans, RunPlan, publish_token, published_chunks
from lakehouse_assets.run.preview import previews
from lakehouse_assets.run.progress import Progress, report
from lakehouse_assets.run.queue_part import QueuePart
from lakehouse_assets.run.receipt_proofs import ReceiptProofs
from lakehouse_assets.run.reporting import (
    CODE_VERSION,
    add_metadata,
    advice_after,
    log_materializations,
    staged_again,
    staging_failure,
)
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.run.resume import (
    refuse_forgotten,
    refuse_repeated_append,
    run_token,
)
from lakehouse_assets.run.table_lock import table_lock
from resources.catalog import with_retries
from resources.launchers.base import Attempt, Launcher

STAGINGS, UNLOCKED_STAGINGS = 5, 2
"""How often a run is staged at most, where others always change rows meanwhile that its merge could meet, or the
columns that it changes; and how many of these times without the table's lock, while other such runs may land."""
CHANGES = {"schema_change": "lakehouse.schema-change", "layout_change": "lakehouse.layout-change"}
"""The entries of a snapshot's summary that say what its commit changed of the table beside its rows, by their names in
the materialization."""


@dataclass
class Materialization:
    """One run of one table's asset."""

    context: dg.AssetExecutionContext
    table: Table
    lakehouse: Lakehouse
    results: Results[Receipt] = field(default_factory=Results)
    """What the run's workers have done so far."""
    findings: list[AuditFinding] = field(default_factory=list)
    """What the audit found."""
    started: float = field(default_factory=time.time)

    def run(self) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult[None]]:
        """Yields the audit's result, then the materialization; an error is noted for the queue before it is raised."""
        try:
            yield from self._run()
        except Exception as error:
            with suppress(Exception):  # of a run that has no token: that is its error
                chunks = self.chunks if self.findings else ()
                self.queue.failed(self.context, bad_keys(chunks, self.results.failures, self.findings), error)
            raise

    def _run(self) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult[None]]:
        proofs = ReceiptProofs(self.receipts, self.token, lambda: self.work)
        records = AttemptRecords(self.receipts.io, self.receipts.folder(self.token))
        with driving(self.context, self.launcher, proofs, records, self._report_progress) as drive:
            self.results = drive.results
            ready, staged, published = yield from self._land(drive)
            self.queue.published(self.context, [key for c in (*ready, *self._chunks_earlier()) for key in c.keys])
            if self.launcher.durable:
                drive.settle()  # what is billed is known at a worker's end only
            yield from self._report([*staged, *self._staged_earlier()], published)

    def _land(
        self, drive: Drive[Receipt]
    ) -> Generator[dg.AssetCheckResult, None, tuple[list[Chunk], list[StagedChunk], Published]]:
        """Writes, audits and publishes: once, or again where others changed meanwhile what the run depends on."""
        merges = self.table.write_mode.merge is not None
        with table_lock(self.context, self.table.identifier) as lock:
            for staging in range(1, STAGINGS + 1):
                if staging > UNLOCKED_STAGINGS:
                    lock.take()
                self._write(drive, is_first=staging == 1)
                ready = self._ready()
                staged = read_all(self._table_io, [self.results.proofs[c.ordinal] for c in ready])
                check = self._audit(ready, staged)
                again = staging < STAGINGS and (merges or bool(self.evolution.applied))
                if self.findings or not again:  # Dagster takes one result of a check
                    yield check
                if self.findings:
                    raise audit_failure(self.table, self.keys, self.findings)
                try:
                    if merges:
                        lock.wait_for_others()
                    published = self._publish(ready, staged) if ready else self._published_earlier()
                except HeadMoved as moved:
                    if staging == STAGINGS:
                        raise HeadMoved(
                            f"{moved}. So it was each of {STAGINGS} times that the run was staged. Nothing was "
                            "published; materialize again when the others are done"
                        ) from moved
                    if not again:
                        raise
                    self._begin_again(moved)
                    continue
                if again:
                    yield check
                return ready, staged, published
        raise AssertionError("the last staging returns or raises")

    def _begin_again(self, moved: HeadMoved) -> None:
        """Forgets what depends on the table as it was."""
        self.context.log.info(f"{moved}. It is staged again, on the table as it is now")
        self.results.proofs.clear()
        self.results.failures.clear()
        for name in ("target", "evolution", "earlier", "attempts", "work", "_table_now"):
            self.__dict__.pop(name, None)

    # plan

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The run's partition keys; none for a table without partitions."""
        # From the asset's own partitions, never from run tags: a range run's tags reach every asset in it.
        partitioned = self.context.has_partition_key or self.context.has_partition_key_range
        return tuple(self.context.partition_keys) if partitioned and self.table.partitions is not None else ()

    @cached_property
    def region(self) -> Region:
        """The part of the table that the keys own. Refuses keys that can't work."""
        return self.table.alignment.region(self.keys)

    @property
    def plans(self) -> Plans:
        """The plans of the table's runs."""
        return Plans(self.receipts)

    @cached_property
    def _planned(self) -> tuple[RunPlan, bool]:
        """The run's plan, and whether an earlier attempt has written it."""
        run_id = self.context.run.run_id
        return self.plans.of_run(self.table, self.token, run_id, self.keys, self.target.metadata)

    @property
    def plan(self) -> RunPlan:
        """The run's plan. Read where an earlier attempt has written it, else made and written."""
        return self._planned[0]

    @property
    def _resumes(self) -> bool:
        """Whether another run, or an earlier process of this one, began the work."""
        return self._planned[1]

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """The run's keys, as workers share them."""
        return self.plan.chunks

    @cached_property
    def run_token(self) -> RunToken:
        """The token that the run publishes with, or that of the run that it resumes."""
        return run_token(self.table.identifier, self.context.instance, self.context.run)

    @property
    def token(self) -> str:
        """The run token as text."""
        return self.run_token.text

    @cached_property
    def target(self) -> IcebergTable:
        """The table as it was when the run, or its staging, began; created if it was not there."""
        return with_retries(lambda: open_target(self.lakehouse.catalog(), self.table))

    @cached_property
    def evolution(self) -> Evolution:
        """The changes of the run to the table beside its rows. Refuses what the table's policies don't allow."""
        found = Evolution.of(self.table, self.target)
        found.refuse_to_drop_others(self.plan.columns)
        return found

    @cached_property
    def earlier(self) -> dict[int, int]:
        """The chunks that earlier runs or processes with this token published, each with its snapshot."""
        refuse_forgotten(self.table.identifier, self.target.metadata, self.run_token, self.context.run)
        return published_chunks(self.table.identifier, self.target.metadata, self.plan)

    @cached_property
    def receipts(self) -> Receipts:
        """The receipts of the table's runs."""
        return Receipts(self.lakehouse.staging_io(), f"{self.lakehouse.settings.staging}/{self.table.identifier}")

    @cached_property
    def queue(self) -> QueuePart:
        """The run's part in the queue."""
        adds_again = self.table.write_mode.adds_again
        return QueuePart(self.lakehouse, self.table.identifier, self.token, self.keys, adds_again=adds_again)

    @cached_property
    def launcher(self) -> Launcher:
        """The launcher of the table's workers."""
        return self.lakehouse.launcher(self.table.compute)

    @cached_property
    def attempts(self) -> dict[int, Attempt]:
        """The first attempt at each chunk, by ordinal. Writes the fork base."""
        mode, run_id = self.table.write_mode, self.context.run.run_id
        fork_base = write_run_fork(mode, self.evolution.target, self.token, round(self.started * 1000))
        return first_attempts(
            self.table,
            self.lakehouse,
            self.receipts,
            self.token,
            fork_base,
            run_id,
            self.chunks,
            left_out=self.evolution.left_out,
            undeclared=self.evolution.undeclared,
        )

    @cached_property
    def work(self) -> dict[int, str]:
        """The work that each chunk's receipt must prove, by the chunk's ordinal."""
        return {ordinal: attempt.work for ordinal, attempt in self.attempts.items()}

    # write
    #
    # The order matters, because properties act when they are first read: `region` refuses bad keys, `target` opens or
    # creates the table, `earlier` refuses runs that are too old to resume, and drive.resume() reads `attempts`, which
    # writes the fork base.

    def _write(self, drive: Drive[Receipt], *, is_first: bool) -> None:
        region = self.region  # refuses keys that can't work, before the table is created
        check_paths(self.table.identifier, region, self.evolution.target)
        self._refuse_repeated_append(self.target.metadata)
        if is_first:
            self._warn_of_another_owner()
        self.queue.begin(self.context, self.target.metadata.current_snapshot_id)
        left = drive.resume(self.chunks, done=self.earlier)
        self.context.log.info(
            f"{self.table.identifier}: {len(self.keys) or 'no'} partitions, chunks of work: {len(self.chunks)}, "
            f"{len(left)} to stage, run token {self.token}"
        )
        if self._resumes:
            for text in staged_again(self.receipts.find(self.token, [chunk.ordinal for chunk in left]), self.attempts):
                self.context.log.info(f"{self.table.identifier}: {text}")
        others = self.table.publish_others
        drive.run(left, self.attempts, keep_on=others)
        if self.results.failures and not (others and self.earlier.keys() | self.results.proofs.keys()):
            advice = advice_after(self.results.failures, added=False)
            raise staging_failure(self.table.identifier, "Nothing was published", advice, self.results)

    def _warn_of_another_owner(self) -> None:
        with suppress(OSError):  # storage that refuses to be asked for what is not there
            if found := other_owner(self.target, read_mark(self.target)):
                self.context.log.warning(found)

    def _report_progress(self, results: Results[Receipt]) -> None:
        done = sum(len(self.chunks[ordinal].keys) or 1 for ordinal in results.proofs)
        table, total = self.table.identifier, len(self.keys) or 1
        report(Progress(table, done, total, results.running, self.started, results.waiting))

    # audit

    def _ready(self) -> list[Chunk]:
        """Returns the chunks to publish: staged, and not published by an earlier run or process with this token."""
        return [c for c in self.chunks if c.ordinal in self.results.proofs.keys() - self.earlier.keys()]

    @cached_property
    def _table_now(self) -> IcebergTable:
        """The table, loaded after everything was staged."""
        return with_retries(lambda: self.lakehouse.catalog().load_table(self.table.identifier))

    @property
    def _table_io(self) -> Mapping[str, Any]:
        """Properties of the table's FileIO, read anew: credentials vended when the run began may have expired."""
        return self._table_now.io.properties

    def _region_of(self, chunks: Sequence[Chunk]) -> Region:
        every = len(chunks) == len(self.chunks)
        return self.region if every else self.table.alignment.region([k for c in chunks for k in c.keys])

    def _audit(self, ready: Sequence[Chunk], staged: Sequence[StagedChunk]) -> dg.AssetCheckResult:
        start = time.monotonic()
        findings = audit(self.table, self._region_of(ready), staged) if ready else []
        # Inline: this JVM, whose application id is the workers', may have written for another run before.
        known = {s.snapshot_id for s in self.target.snapshots()} if self.launcher.blocking else ()
        findings += own_commits(self.table, self._table_now.metadata, staged, known)
        self.findings = findings
        seconds = time.monotonic() - start
        return check_result(self.table, self.context.run.run_id, self.keys, staged, findings, seconds)

    # publish

    def _publish(self, ready: Sequence[Chunk], staged: Sequence[StagedChunk]) -> Published:
        keys = [key for chunk in ready for key in chunk.keys]
        summary = {
            "lakehouse.run-id": self.context.run.run_id,
            "lakehouse.asset-key": self.table.key.to_user_string(),
            "lakehouse.partitions": keys_text(keys),
            "lakehouse.code-version": self.table.code_version,
        }
        summary |= {CHANGES[name]: text for name, text in evolution_texts(self.evolution.applied).items()}
        token = replace(self.run_token, text=publish_token(self.plan, ready))
        change = change_of_run(self.table.write_mode, keys, self._region_of(ready), staged)
        published = publish(
            self.lakehouse.catalog(),
            self.table.identifier,
            change,
            token,
            summary,
            evolve=self.evolution.apply,
            before=self._before_commit,
        )
        text = f"{self.table.identifier}: published snapshot {published.snapshot_id} in {published.seconds:.2f} s"
        text += " (already done by an earlier attempt)" if published.repeated else ""
        text += f" at attempt {published.attempts}" if published.attempts > 1 else ""
        self.context.log.info(text)
        return published

    def _before_commit(self, metadata: TableMetadata) -> None:
        """Runs before each attempt of publish() to commit. metadata: of the table that it would land on."""
        self._refuse_repeated_append(metadata)
        self.queue.before_commit(metadata)

    def _refuse_repeated_append(self, metadata: TableMetadata) -> None:
        refuse_repeated_append(self.table, metadata, self.plans, self.context.instance, self.context.run)

    def _published_earlier(self) -> Published:
        snapshot_id = max(self.earlier.items())[1]
        self.context.log.info(f"{self.table.identifier}: snapshot {snapshot_id} of an earlier attempt holds it already")
        return Published(snapshot_id, repeated=True)

    # report

    def _chunks_earlier(self) -> list[Chunk]:
        return [chunk for chunk in self.chunks if chunk.ordinal in self.earlier]

    def _staged_earlier(self) -> list[StagedChunk]:
        """Reads the chunks published earlier, for their numbers only: it is no failure if files are gone or broken."""
        receipts = [r for n, r in self.results.proofs.items() if n in self.earlier]
        try:
            return read_all(self._table_io, receipts)
        except Exception as error:  # PyIceberg raises errors of all kinds for files that are broken
            self.context.log.warning(f"the partitions published earlier are reported without their numbers: {error}")
            return []

    def _schema_change(self, published: Published) -> dict[str, str]:
        """Returns what the run changed of the table beside its rows.

        A process that resumes the run after its commit finds no difference any more, and reads it from the snapshot.
        """
        if not published.repeated:
            return evolution_texts(self.evolution.applied)
        snapshot = self.target.snapshot_by_id(published.snapshot_id)
        summary = snapshot.summary if snapshot else None
        return {name: text for name, entry in CHANGES.items() if summary and (text := summary[entry])}

    def _told(
        self, staged: Sequence[StagedChunk], published: Published
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Returns the metadata of the run, and by partition what differs. Raises nothing.

        The rows are published, and a run that failed because of what it shows would be requested again for ever.
        """
        try:
            of_run = metadata.run_metadata(
                self.table, self.evolution.target, self._schema_change(published), staged, published, self.results
            )
            chunks = [self.chunks[chunk.receipt.chunk] for chunk in staged]
            region = self._region_of(chunks)
            stats, shown = (partition_stats(region, staged), previews(region, staged)) if staged else ({}, {})
            messages, partitioned = self.queue.metadata(), self.table.partitions is not None
            return of_run, {
                key: metadata.partition_metadata(*stat, partitioned=partitioned)
                | dict(messages.get(key, {}))
                | ({"preview": shown[key]} if key in shown else {})
                for key, stat in stats.items()
            }
        except Exception as error:
            text = f"published, but what is there can't be shown: {error!r}"
            self.context.log.warning(f"{self.table.identifier}: {text}")
            return {"snapshot_id": str(published.snapshot_id), "not_shown": text}, {}

    def _report(self, staged: Sequence[StagedChunk], published: Published) -> Iterator[dg.MaterializeResult[None]]:
        of_run, of_key = self._told(staged, published)
        if self.table.partitions is None:
            yield dg.MaterializeResult(asset_key=self.table.key, metadata=of_key.get("", {}) | of_run)
            return
        failed = {key for failure in self.results.failures for key in failure.chunk.keys}
        good = [key for key in self.keys if key not in failed]
        # Both under each key, in this order: the UI would show a result's metadata before a key's.
        by_key = {key: of_key.get(key, {}) | of_run for key in good}
        self.context.log.info(f"{self.table.identifier}: reporting {len(good)} materialized partitions to Dagster")
        if failed:
            made_by = {CODE_VERSION: self.table.code_version}  # as Dagster gives to results
            events = [
                dg.AssetMaterialization(self.table.key, partition=key, metadata=by_key[key], tags=made_by)
                for key in good
            ]
            log_materializations(self.context, events)
            published_text = f"The other {len(good)} partitions are published"
            advice = advice_after(self.results.failures, added=self.table.write_mode.adds_again)
            raise staging_failure(self.table.identifier, published_text, advice, self.results)
        add_metadata(self.context, self.table.key, by_key)
        yield dg.MaterializeResult(asset_key=self.table.key)
