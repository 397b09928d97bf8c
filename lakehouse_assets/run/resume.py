"""Resumed and repeated runs: the token to publish with, and what is refused.

A run *resumes* the run that it re-executes from failure, with the same token. Any other re-execution *repeats* a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar

import dagster as dg
from dagster._core.storage.tags import (
    BACKFILL_ID_TAG,
    PARENT_BACKFILL_ID_TAG,
    PARENT_RUN_ID_TAG,
    RESUME_RETRY_TAG,
)
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.commit import tokens
from lakehouse_assets.commit.commit_part import CommitPart
from lakehouse_assets.commit.tokens import KEEP, RESUMABLE, RunToken
from lakehouse_assets.declare.table import Table
from lakehouse_assets.errors import PublishRefused, RolledBack, StageAgain
from lakehouse_assets.run.extension import RunHook
from lakehouse_assets.run.in_flight import Keys, keys_of_run, meet
from lakehouse_assets.run.plan import Plans, published_chunks
from lakehouse_assets.run.run_tags import APPEND_AGAIN, RunTags

if TYPE_CHECKING:
    from lakehouse_assets.run.run import Run, Staged


def chain_head(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str:
    """Returns the id of the run at the head of the resume chain.

    That id is the token. With its own id, a re-execution from failure would not recognize its parent's commits. Any
    other re-execution begins a new chain: with the id of the run that it repeats, it would find that run's commit and
    do nothing.
    """
    while run.tags.get(RESUME_RETRY_TAG) == "true" and (parent := _parent(run)):
        parent_run = instance.get_run_by_id(parent)
        if parent_run is None:  # deleted: the chain can't be followed further
            return parent
        run = parent_run
    return run.run_id


def run_token(table: str, instance: dg.DagsterInstance, run: dg.DagsterRun) -> RunToken:
    """Returns the chain head's token. Raises PublishRefused if that run is too old or gone.

    After RESUMABLE, the table may have pruned the token: then its chunks would look unpublished, and be published again
    over newer rows.
    """
    head = chain_head(instance, run)
    created, resumed = _created(instance, head), _created(instance, run.run_id)
    if created is None or resumed is None:
        raise _not_resumable(table, head, "is no longer in Dagster, so its age is unknown")
    if resumed - created > RESUMABLE:
        when = f"was created on {created:%Y-%m-%d %H:%M} UTC, {(resumed - created).days} days before this one"
        raise _not_resumable(table, head, when)
    return RunToken(head, created)


def refuse_forgotten(table: str, metadata: TableMetadata, token: RunToken, run: dg.DagsterRun) -> None:
    """Raises PublishRefused for a resumed run whose token may be pruned.

    run_token() already refuses runs by age. This refuses one that only looks young enough, because the clock of
    Dagster's storage was set back.
    """
    if token.text != run.run_id and tokens.is_forgotten(metadata, token):
        kept = f"the table has pruned tokens of that age, {KEEP.days} days after the run (or a clock was wrong)"
        when = f"was created on {token.created:%Y-%m-%d %H:%M} UTC, and {kept}"
        raise _not_resumable(table, token.text, when)


class AppendOnce(RunHook, CommitPart):
    """Refuses to add rows that a repeated run has added: before staging, and again in each attempt to commit.

    Two repetitions may be in progress at once.
    """

    name: ClassVar[str] = "append_once"

    def __init__(self, run: Run) -> None:
        self.run = run

    def begin(self, run: Run, now: IcebergTable, again: StageAgain | None) -> None:
        """Raises as refuse()."""
        self.refuse(now)

    def parts(self, run: Run, staged: Staged) -> Iterable[CommitPart]:
        """Returns itself."""
        return [self]

    def refuse(self, now: IcebergTable) -> None:
        """Raises as refuse_repeated_append()."""
        context = self.run.context
        refuse_repeated_append(self.run.table, now.metadata, self.run.plans, context.instance, context.run)


def refuse_repeated_append(
    table: Table, metadata: TableMetadata, plans: Plans, instance: dg.DagsterInstance, run: dg.DagsterRun
) -> None:
    """Raises PublishRefused for a re-execution that would add an earlier run's rows once more.

    The earlier run is one that this run re-executes, directly or through others; one of a re-executed backfill, even if
    it failed later; or another re-execution of the same work. APPEND_AGAIN permits it.
    """
    if not (table.write_mode.adds_again and _repeats(run)):
        return
    # A chain of resumed runs adds its rows once, so what counts is its head; the head may be deleted.
    head = instance.get_run_by_id(chain_head(instance, run)) or run
    repeated, what = next(_added_before(table, metadata, plans, instance, head), ("", ""))
    if repeated and RunTags.of(head.tags).append_again != repeated:
        raise PublishRefused(
            f"table {table.identifier}: this run repeats the work of the run {repeated}, which {what}. Nothing was "
            "staged or published. If that run failed, re-execute it from failure to finish it (in Python also with "
            f"the tag {RESUME_RETRY_TAG}: true); to add its rows once more, re-execute all of it with the tag "
            f"{APPEND_AGAIN}: {repeated}"
        )


def _added_before(
    table: Table, metadata: TableMetadata, plans: Plans, instance: dg.DagsterInstance, run: dg.DagsterRun
) -> Iterator[tuple[str, str]]:
    """Yields each repeated run that has or may have added rows: its id, and what is known, as a predicate."""

    # Of the runs that are only related to this one, those count that may have written the same partitions.
    def meeting(others: Iterable[dg.DagsterRun]) -> Iterator[tuple[str, str]]:
        for other in others:
            what = _added(table, metadata, instance, other.run_id)
            if what and meet(keys_of_run(run, table, instance), _added_keys(table, metadata, plans, instance, other)):
                yield other.run_id, what

    for run_id, repeated in _repeated(instance, run):
        # The first one is this run itself.
        if run_id != run.run_id and (what := _added(table, metadata, instance, run_id)):
            yield run_id, what
        # The runs of a re-executed backfill are new: they have no parent run, only the backfill has a parent backfill.
        for backfill_id in _parent_backfills(instance, repeated):
            found = instance.get_runs(dg.RunsFilter(tags={BACKFILL_ID_TAG: backfill_id}))
            yield from meeting(o for o in found if o.asset_selection is None or table.key in o.asset_selection)
    yield from meeting(_siblings(metadata, instance, run))


def _siblings(metadata: TableMetadata, instance: dg.DagsterInstance, run: dg.DagsterRun) -> Iterator[dg.DagsterRun]:
    """Yields other re-executions of the same work that have published."""
    own = _origins(instance, run)
    published = tokens.publishers(metadata)
    runs = {one.run_id: one for one in instance.get_runs(dg.RunsFilter(run_ids=published))} if published else {}
    for run_id in published:
        other = runs.get(run_id)
        if other and run_id not in own and _repeats(other) and own & _origins(instance, other):
            yield other


def _repeats(run: dg.DagsterRun) -> bool:
    return bool(_parent(run) or PARENT_BACKFILL_ID_TAG in run.tags)


def _origins(instance: dg.DagsterInstance, run: dg.DagsterRun) -> set[str]:
    """Returns the run and what it repeats: also backfills, which may be all that two re-executions have in common."""
    found: set[str] = set()
    for run_id, here in _repeated(instance, run):
        found |= {run_id, *_parent_backfills(instance, here)}
        # Not the run's own backfill: its other runs don't repeat this run's work.
        if here and run_id != run.run_id and (of := here.tags.get(BACKFILL_ID_TAG)):
            found.add(of)
    return found


def _added(table: Table, metadata: TableMetadata, instance: dg.DagsterInstance, run_id: str) -> str:
    """Returns what is known of a run's rows, as a predicate; empty if it added none, or all were rolled back."""
    if (snapshot_id := tokens.find_added(table.identifier, metadata, run_id)) is not None:
        return f"has added its rows with snapshot {snapshot_id}"
    created = _created(instance, run_id) or datetime.fromtimestamp(0, UTC)  # deleted: it may be of any age
    if tokens.is_forgotten(metadata, RunToken(run_id, created)):
        return f"may have added its rows: the table has forgotten runs of its age, {KEEP.days} days and more"
    return ""


def _repeated(instance: dg.DagsterInstance, run: dg.DagsterRun) -> Iterator[tuple[str, dg.DagsterRun | None]]:
    """Yields the run and those that it re-executes, the latest first; a deleted run is None, and ends the chain."""
    here: dg.DagsterRun | None = run
    yield run.run_id, run
    while here and (parent := _parent(here)):
        here = instance.get_run_by_id(parent)
        yield parent, here


def _parent(run: dg.DagsterRun) -> str | None:
    """Returns the id of the run that this run re-executes, if any.

    Dagster's Python API records the parent only in the run, and sets no RESUME_RETRY_TAG: so a re-execution by it
    counts as a repetition, even from failure.
    """
    return run.parent_run_id or run.tags.get(PARENT_RUN_ID_TAG)


def _parent_backfills(instance: dg.DagsterInstance, run: dg.DagsterRun | None) -> Iterator[str]:
    """Yields the ids of the backfills that the run's backfill re-executes, the latest first."""
    backfill_id = run.tags.get(PARENT_BACKFILL_ID_TAG) if run else None
    while backfill_id:
        yield backfill_id
        backfill = instance.get_backfill(backfill_id)
        backfill_id = backfill.tags.get(PARENT_BACKFILL_ID_TAG) if backfill else None


def _added_keys(
    table: Table, metadata: TableMetadata, plans: Plans, instance: dg.DagsterInstance, run: dg.DagsterRun
) -> Keys:
    """Returns the keys for which a run may have added rows.

    These are the keys of its published chunks; if no such chunk is known, all keys of its plan; without a plan, those
    that its tags name.
    """
    if table.partitions is None or (plan := plans.find(run.run_id)) is None:
        return keys_of_run(run, table, instance)
    published: Mapping[int, int] = {}
    with suppress(RolledBack):  # a part was rolled back: then all keys of the plan count
        published = published_chunks(table.identifier, metadata, plan)
    return frozenset(key for ordinal in published for key in plan.chunks[ordinal].keys) or frozenset(plan.keys)


def _created(instance: dg.DagsterInstance, run_id: str) -> datetime | None:
    record = instance.get_run_record_by_id(run_id)
    return record.create_timestamp if record else None


def _not_resumable(table: str, head: str, why: str) -> PublishRefused:
    return PublishRefused(
        f"table {table}: the run {head}, which this one resumes, {why}; runs can be resumed for {RESUMABLE.days} days. "
        "Nothing was staged or published. Materialize the partitions again in a new run, not by re-executing from "
        "failure"
    )
