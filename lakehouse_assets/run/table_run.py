"""One run of a table's asset: plan, stage, audit, publish, report."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

import dagster as dg
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.commit.audit import audit, own_commits
from lakehouse_assets.commit.commit_part import CommitPart
from lakehouse_assets.commit.evolution import Evolution
from lakehouse_assets.commit.expire import oldest_first
from lakehouse_assets.commit.owner import other_owner, read_mark
from lakehouse_assets.commit.publish import Published, publish
from lakehouse_assets.commit.staged import StagedChunk, read_all
from lakehouse_assets.commit.target import open_target
from lakehouse_assets.declare.table import Table
from lakehouse_assets.drive.loop import Drive, driving
from lakehouse_assets.environment.catalog import with_retries
from lakehouse_assets.errors import DeclarationError, StageAgain
from lakehouse_assets.run import report
from lakehouse_assets.run.attempts import first_attempts
from lakehouse_assets.run.extension import Extension, RunHook, Shown
from lakehouse_assets.run.plan import (
    RunPlan,
    asked_keys,
    plan_chunks,
    publish_token,
    published_chunks,
    refuse_unplanned_parts,
)
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.run.resume import AppendOnce, refuse_forgotten, run_token
from lakehouse_assets.run.run import Run, Staged, Staging
from lakehouse_assets.run.run_tags import RunTags
from lakehouse_assets.run.table_lock import TableLock
from lakehouse_assets.wire.work import Cause

STAGINGS, UNLOCKED_STAGINGS = 5, 2
"""The most stagings of a run that others disturb; and how many of these come before it takes the table's lock."""

Events = Iterator[dg.AssetCheckResult | dg.MaterializeResult[None]]
T = TypeVar("T")


def materialize(
    context: dg.AssetExecutionContext, table: Table, lakehouse: Lakehouse, extensions: Sequence[Extension]
) -> Events:
    """Runs a table's asset: yields the audit's result, then the materialization.

    Before the plan, it only creates a missing table. Raises Failure if a person must act, UnknownPartitions for keys
    that can't work, and as Evolution.of(), Plans.find(), publish(), hooks and launchers.
    """
    RunTags.of(context.run.tags)  # refuses unknown values before anything starts
    token = run_token(table.identifier, context.instance, context.run)
    run = TableRun(context, table, lakehouse, token, asked_keys(context, table))
    of_core = [report.RunFacts(), *([AppendOnce(run)] if table.write_mode.adds_again else [])]
    run.hooks = [*of_core, *(hook for extension in extensions for hook in extension.hooks(run))]
    if len({hook.name for hook in run.hooks}) < len(run.hooks):
        raise DeclarationError(
            f"two extensions have hooks with the same name: {', '.join(hook.name for hook in run.hooks)}"
        )
    try:
        yield from run.events()
    except Exception as error:
        reason = error
        run.tell("failed", lambda hook: hook.failed(run, reason))
        raise


class TableRun(Run):
    """The steps of a run."""

    hooks: Sequence[RunHook] = ()

    def tell(self, what: str, call: Callable[[RunHook], T]) -> list[tuple[RunHook, T | Exception]]:
        """Calls each hook; returns what each returned or raised. Logs the errors: none of them may fail the run.

        what: the call's name in the log.
        """
        found: list[tuple[RunHook, T | Exception]] = []
        for hook in self.hooks:
            try:
                found.append((hook, call(hook)))
            except Exception as error:  # hooks call catalogs and storages, which have their own
                self.context.log.warning(f"{self.table.identifier}: {hook.name}, {what}: {error!r}")
                found.append((hook, error))
        return found

    def events(self) -> Events:
        """Plans, stages, audits, publishes and reports."""
        self.region  # noqa: B018  before the table is created: it may refuse keys
        evolution = self._evolution()
        found = self.plans.find(self.token.text)
        self.is_resumed = found is not None
        self.plan = found or self._planned(evolution.found.metadata)
        self.plan.refuse_other(self.table.identifier, self.keys, evolution.found.metadata.table_uuid)
        with driving(
            self.context, self.launcher, self.journal, partial(report.report_progress, self), self.results
        ) as drive:
            yield from self._land(drive, evolution)
            earlier = [chunk for chunk in self.plan.chunks if chunk.ordinal in self.staging.earlier]
            keys = [key for chunk in (*self.staged.chunks, *earlier) for key in chunk.keys]
            self.tell("published", lambda hook: hook.published(self, keys))
            if self.launcher.durable:
                drive.settle()  # a worker's bill is known only at its end
            yield from report.materialized(self, self._shown())

    def _evolution(self) -> Evolution:
        return Evolution.of(self.table, with_retries(lambda: open_target(self.lakehouse.catalog(), self.table)))

    def _planned(self, now: TableMetadata) -> RunPlan:
        refuse_unplanned_parts(self.table.identifier, now, self.token.text)
        parts = {hook.name: part for hook in self.hooks if (part := hook.plan(self, now)) is not None}
        try:
            parts = json.loads(json.dumps(parts))  # this run must see the same values as a run that resumes it
        except TypeError as error:
            raise DeclarationError(f"an extension's plan is not JSON ({error}): {parts}") from error
        plan = RunPlan(
            token=self.token.text,
            run_id=self.context.run.run_id,
            made_at=datetime.now(UTC),
            table_uuid=now.table_uuid,
            snapshot_id=now.current_snapshot_id,
            columns=tuple(now.schema().column_names),
            write_mode=repr(self.table.write_mode),
            code_version=self.table.code_version,
            chunks=tuple(plan_chunks(self.table, self.keys)),
            extensions=parts,
        )
        self.plans.write(plan)
        return plan

    def _land(self, drive: Drive, evolution: Evolution) -> Generator[dg.AssetCheckResult, None, None]:
        """Stages, audits and publishes; again if others changed what the rows depend on (StageAgain).

        Dagster accepts one result of a check: while the rows may be staged again, a green one is yielded only after the
        publish.
        """
        with closing(TableLock(self.context, self.table.identifier, drive.settle)) as lock:
            again: StageAgain | None = None
            for number in range(1, STAGINGS + 1):
                if number > UNLOCKED_STAGINGS:
                    lock.take()
                if again:
                    evolution = self._evolution()  # after the wait: others have committed meanwhile
                is_audited = False
                try:
                    self.staging = self._begin(evolution, again)
                    self._stage(drive)
                    self.staged = self._staged()
                    check = self._audit()
                    if self.findings:
                        yield check
                        raise report.audit_failure(self.table, self.keys, self.findings)
                    parts = self._parts()
                    can_be_disturbed = bool(self.strategy.merge) or any(part.may_stage_again for part in parts)
                    # At the last staging, too: nothing is staged again after it.
                    if is_audited := number == STAGINGS or not can_be_disturbed:
                        yield check
                    # While another run holds the table's lock, this one must not disturb that run's publish.
                    if can_be_disturbed:
                        lock.wait_for_others()
                    self.published = self._publish(parts)
                    if not is_audited:
                        yield check
                except StageAgain as why:
                    if number == STAGINGS:
                        raise StageAgain(
                            f"{why}. This happened each of the {STAGINGS} times that the run was staged. Nothing was "
                            "published; materialize again when the other writers are done"
                        ) from why
                    if is_audited:  # a second audit could not be reported
                        raise
                    self.context.log.info(f"{why}. Everything is staged again, from the current state of the tables")
                    self.results.forget_chunks()
                    again = why
                else:
                    return

    def _begin(self, evolution: Evolution, again: StageAgain | None) -> Staging:
        """Begins a staging. again: why the previous one did not count.

        Raises PublishRefused if the run may not write, and as RunHook.begin().
        """
        table, plan, now = self.table, self.plan, evolution.found
        evolution.refuse_to_drop_others(plan.columns)
        refuse_forgotten(table.identifier, now.metadata, self.token, self.context.run)
        earlier = published_chunks(table.identifier, now.metadata, plan)
        if again is None:  # once a run is enough
            self._warn_of_another_owner(now)
        for hook in self.hooks:
            hook.begin(self, now, again)
        # A resumed merge keeps the snapshot on which most of its chunks were staged: their receipts count only with it.
        may_go_on = self.is_resumed and again is None and self.strategy.merge
        staged_on = self.journal.staged_on(chunk.ordinal for chunk in plan.chunks) if may_go_on else None
        base = self.strategy.fork(evolution.target, plan.token, plan.made_ms, staged_on)
        work = {hook.name: told for hook in self.hooks if (told := hook.work(self))}
        return Staging(evolution, earlier, first_attempts(self, base, evolution, work))

    def _warn_of_another_owner(self, now: IcebergTable) -> None:
        with suppress(OSError):  # some storages deny requests for missing files
            if found := other_owner(now, read_mark(now)):
                self.context.log.warning(found)

    def _stage(self, drive: Drive) -> None:
        """Stages the chunks that have no receipt yet.

        Raises StageAgain, and Failure if a chunk failed and the others may not be published without it.
        """
        table, chunks, results, staging = self.table, self.plan.chunks, self.results, self.staging
        left = drive.resume(chunks, staging.attempts, done=staging.earlier)
        report.log_beginning(self, left)
        if self.is_resumed and left:
            for hook in self.hooks:
                hook.resume(self)
        drive.run(left, staging.attempts, keep_on=table.publish_others)
        if moved := [failure.message for failure in results.failures if failure.cause is Cause.MOVED]:
            text = f"table {table.identifier}: {moved[0]}, and its workers read the current state of their inputs"
            raise StageAgain(text, inputs_moved=True)
        if results.failures and not (table.publish_others and (staging.earlier or results.receipts)):
            advice = report.advice_after(results.failures, added=False)
            raise report.staging_failure(table.identifier, "Nothing was published", advice, results)

    def _staged(self) -> Staged:
        now = with_retries(lambda: self.lakehouse.catalog().load_table(self.table.identifier))
        ready = self.results.receipts.keys() - self.staging.earlier.keys()
        chunks = [chunk for chunk in self.plan.chunks if chunk.ordinal in ready]
        receipts = [self.results.receipts[chunk.ordinal] for chunk in chunks]
        return Staged(chunks, read_all(now.io.properties, receipts), now)

    def _audit(self) -> dg.AssetCheckResult:
        """Adds what the audit finds to ``findings``, and returns it as the check's result."""
        start, strategy, staged = time.monotonic(), self.strategy, self.staged
        if staged.chunks:
            region = self.region_of(staged.chunks)
            self.findings += audit(self.table, region, staged.forks, strategy.rules, strategy.at_most_changed)
        # A worker's commits are recognized by Spark's application id, which workers in this process share with earlier
        # runs: their snapshots must not count.
        known = {s.snapshot_id for s in self.staging.evolution.found.snapshots()} if self.launcher.blocking else ()
        self.findings += own_commits(self.table, staged.table.metadata, staged.forks, known)
        seconds, run_id = time.monotonic() - start, self.context.run.run_id
        return report.check_result(self.table, strategy.rules, run_id, self.keys, staged.forks, self.findings, seconds)

    def _parts(self) -> list[CommitPart]:
        """Returns what the commit carries besides its rows; nothing if there is nothing to publish."""
        if not self.staged.chunks:
            return []
        # In reverse: the part of the hook that looked first at the table is asked last, when no other part has refused.
        of_hooks = (part for hook in reversed(self.hooks) for part in hook.parts(self, self.staged))
        return [self.staging.evolution, *of_hooks]

    def _publish(self, parts: Sequence[CommitPart]) -> Published:
        """Commits what is staged. If earlier attempts have published all chunks, returns their newest commit."""
        staged = self.staged
        if not staged.chunks:
            return report.log_published(self, Published(self._newest_published(), repeated=True))
        published = publish(
            self.lakehouse.catalog(),
            self.table.identifier,
            self.strategy.change(self.region_of(staged.chunks), staged.forks),
            replace(self.token, text=publish_token(self.plan, staged.chunks)),
            parts,
        )
        return report.log_published(self, published)

    def _newest_published(self) -> int:
        """Returns the run's newest snapshot: its parts may have been published one after another, in any order."""
        # -1: a snapshot that has expired is older than those that have not.
        order = {one.snapshot_id: n for n, one in enumerate(oldest_first(self.staged.table.metadata))}
        return max(self.staging.earlier.values(), key=lambda snapshot_id: order.get(snapshot_id, -1))

    def _shown(self) -> Shown:
        """Returns what all hooks show. Raises nothing.

        The rows are published: if the run failed now, automation would request it again, for ever.
        """
        forks = [*self.staged.forks, *self._forks_published_earlier()]
        # Text: JavaScript would round a 64-bit snapshot id.
        all_shown = Shown({"snapshot_id": str(self.published.snapshot_id)})
        for hook, found in self.tell("what it shows", lambda hook: hook.shown(self, forks)):
            if isinstance(found, Exception):
                before = all_shown.of_run.get("not_shown", "")
                found = Shown({"not_shown": f"{before}; {hook.name}: {found!r}".removeprefix("; ")})
            all_shown.add(found)
        return all_shown

    def _forks_published_earlier(self) -> list[StagedChunk]:
        """Reads the chunks that an earlier attempt has published, for their numbers: broken files are no failure."""
        receipts = [r for ordinal, r in self.results.receipts.items() if ordinal in self.staging.earlier]
        try:
            return read_all(self.staged.table.io.properties, receipts)
        except Exception as error:  # PyIceberg raises all kinds of errors for broken files
            self.context.log.warning(f"the partitions published earlier are reported without their numbers: {error}")
            return []
