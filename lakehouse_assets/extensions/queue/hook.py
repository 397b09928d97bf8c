"""A run's part in the inbox of the queue; inbox.py says what it covers."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.commit.commit_part import CommitPart
from lakehouse_assets.commit.staged import StagedChunk
from lakehouse_assets.commit.tokens import runs_since
from lakehouse_assets.environment.catalog import catalog_properties
from lakehouse_assets.errors import ForeignVersion, StageAgain
from lakehouse_assets.extensions.queue.inbox import (
    Failed,
    Inbox,
    PartitionMessages,
    RunInbox,
    RunMessages,
    inbox_at,
    waiting_for,
)
from lakehouse_assets.extensions.queue.messages import LONGEST_REASON
from lakehouse_assets.keys_text import parts_of
from lakehouse_assets.run.extension import RunHook, Shown
from lakehouse_assets.run.plan import Plans, RunPlan
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.wire.receipts import read_json
from lakehouse_assets.wire.work import encode

if TYPE_CHECKING:
    from lakehouse_assets.run.run import Run, Staged

logger = logging.getLogger(__name__)

MESSAGES, OLDEST = "lakehouse/messages", "lakehouse/oldest_message_seconds"
"""Run tags: the number of messages that a run covers, and how long the oldest one had waited when the plan was made."""
Covered = dict[str, PartitionMessages]
"""By partition key, as in plans."""


def inbox_of(lakehouse: Lakehouse) -> Inbox:
    """Returns the inbox of a code location."""
    return inbox_at(catalog_properties(lakehouse.settings), lakehouse.settings.staging)


@dataclass(frozen=True)
class QueueRecords:
    """What runs of one table have recorded, by run token."""

    plans: Plans

    def covers(self, token: str) -> RunMessages | None:
        """Returns what a run covers; None without a readable plan. Raises OSError."""
        try:
            plan = self.plans.find(token)
            return covered(plan, self.plans.table) if plan else None
        except ForeignVersion as error:
            logger.warning("%s", error)
            return None

    def keys_of(self, token: str) -> Collection[str] | None:
        """Returns a run's partitions; None, or raises, as covers()."""
        covers = self.covers(token)
        return covers.keys if covers else None

    def failed(self, token: str) -> Failed | None:
        """Returns why a run failed, if recorded. Raises OSError."""
        return read_json(self.plans.io, self._failed(token), Failed.from_json)

    def write_failed(self, token: str, failed: Failed) -> None:
        """Replaces an earlier attempt's record."""
        failed.write(self.plans.io, self._failed(token))

    def _failed(self, token: str) -> str:
        return f"{self.plans.prefix}/{token}/failed.json"


def covered(plan: RunPlan, table: str) -> RunMessages:
    """Returns the part of the inbox that a plan covers."""
    found = plan.part(RunQueue.name, Covered) or {}
    return RunMessages(table, plan.token, tuple(parts_of(plan.keys)), found, plan.snapshot_id, plan.made_ms)


class RunQueue(RunHook):
    """One run's part in the inbox."""

    name: ClassVar[str] = "covers"
    """Plans of version 1 have this name, too."""

    def __init__(self, run: Run) -> None:
        self._inbox, self._records = inbox_of(run.lakehouse), QueueRecords(run.plans)
        self._run: RunInbox | None = None
        self._published: tuple[str, ...] = ()

    def plan(self, run: Run, now: TableMetadata) -> Any:
        """Returns the messages that wait for the run's partitions.

        A resumed run without a plan covers none: its workers may have read before these messages came.
        """
        if run.resumes_another:
            return None
        return encode(Covered, waiting_for(self._inbox, run.table.identifier, parts_of(run.keys)))

    def begin(self, run: Run, now: IcebergTable, again: StageAgain | None) -> None:
        """Takes what the run covers from its plan."""
        if again:  # the first staging has done it, and what a run covers never changes
            return
        covers = covered(run.plan, run.table.identifier)
        self._run = RunInbox(self._inbox, covers, self._records.keys_of)
        if found := covers.found.values():
            oldest = (covers.noted_ms - min(one.sent_ms for one in found)) / 1000
            tags = {MESSAGES: str(sum(one.messages for one in found)), OLDEST: f"{oldest:.0f}"}
            try:
                run.context.instance.add_run_tags(run.context.run.run_id, tags)
            except Exception as error:  # Dagster's storage; a tag is no reason to fail
                run.context.log.warning(f"{run.table.identifier}: the run's tags could not be set: {error}")

    def parts(self, run: Run, staged: Staged) -> Iterable[CommitPart]:
        """Returns AskAgain; nothing for a run that only adds rows: it replaces nothing that others wrote."""
        return [AskAgain(self._run)] if self._run and not run.table.write_mode.adds_again else []

    def published(self, run: Run, keys: Sequence[str]) -> None:
        """Removes published partitions from the inbox. A leftover costs one more run."""
        self._published = tuple(parts_of(keys))
        if self._run:
            self._run.remove(self._published)

    def failed(self, run: Run, error: Exception) -> None:
        """Records why, with bad and published partitions, for the next tick."""
        keys, why = tuple(sorted(run.bad_keys)), str(error)[:LONGEST_REASON]
        self._records.write_failed(run.token.text, Failed(run.context.run.run_id, keys, why, self._published))

    def shown(self, run: Run, forks: Sequence[StagedChunk]) -> Shown:
        """Returns each partition's messages and waits."""
        found: Mapping[str, PartitionMessages] = self._run.covers.found if self._run else {}
        noted_ms, now_ms = run.plan.made_ms, time.time() * 1000
        return Shown(
            of_key={
                key: {
                    "messages": one.messages,
                    "message_wait_seconds": round((noted_ms - one.sent_ms) / 1000, 1),
                    "message_end_to_end_seconds": round((now_ms - one.sent_ms) / 1000, 1),
                }
                for key, one in found.items()
            }
        )


@dataclass(frozen=True)
class AskAgain(CommitPart):
    """Asks again for partitions that others published meanwhile; refuses nothing."""

    run: RunInbox

    def refuse(self, now: IcebergTable) -> None:
        """Asks again before each attempt to commit. If the storage raises, the run must not commit."""
        self.run.ask_again(runs_since(now.metadata, self.run.covers.snapshot_id))
