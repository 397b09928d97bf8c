"""A run's part in the inbox of the queue. Without LAKEHOUSE_QUEUE it does nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import dagster as dg
from pyiceberg.table import Table as IcebergTable

from lakehouse_assets.commit.commit_part import CommitPart
from lakehouse_assets.commit.tokens import runs_since
from lakehouse_assets.environment.catalog import catalog_properties
from lakehouse_assets.inbox.inbox import Failed, Inbox, PartitionMessages, RunInbox, inbox_at, waiting_for
from lakehouse_assets.keys_text import parts_of
from lakehouse_assets.run.plan import Plans, RunPlan, plans_of
from lakehouse_assets.run.resource import Lakehouse

logger = logging.getLogger(__name__)

LONGEST_REASON = 1000
MESSAGES, OLDEST = "lakehouse/messages", "lakehouse/oldest_message_seconds"
"""Run tags: the number of messages, and the wait of the oldest when the run began."""


def inbox_of(lakehouse: Lakehouse) -> Inbox:
    """Returns the inbox of a code location."""
    return inbox_at(catalog_properties(lakehouse.settings), lakehouse.settings.staging)


class QueuePart(CommitPart):
    """One run's part in the inbox. adds_again: whether running its keys again would add its rows twice."""

    def __init__(self, lakehouse: Lakehouse, table: str, token: str, keys: Sequence[str], *, adds_again: bool) -> None:
        self.lakehouse, self.table, self.token, self.keys = lakehouse, table, token, parts_of(keys)
        self.adds_again = adds_again
        self.is_on = lakehouse.settings.queue is not None
        self._run: RunInbox | None = None

    @cached_property
    def _plans(self) -> Plans:
        return plans_of(self.lakehouse, self.table)

    def waiting(self) -> Mapping[str, PartitionMessages]:
        """Returns the messages that wait for the run's partitions."""
        return waiting_for(inbox_of(self.lakehouse), self.table, self.keys) if self.is_on else {}

    def begin(self, context: dg.AssetExecutionContext, plan: RunPlan) -> None:
        """Takes what the run covers from its plan."""
        if not self.is_on:
            return
        self._run = RunInbox(inbox_of(self.lakehouse), plan.covered(self.table), self._plans.keys_of)
        if found := plan.covers.values():
            oldest = (self._run.covers.noted_ms - min(one.sent_ms for one in found)) / 1000
            messages = sum(one.messages for one in found)
            try:
                context.instance.add_run_tags(context.run.run_id, {MESSAGES: str(messages), OLDEST: f"{oldest:.0f}"})
            except Exception as error:  # Dagster's storage; a tag is no reason to fail
                context.log.warning(f"{self.table}: the run's tags could not be set: {error}")

    def refuse(self, now: IcebergTable) -> None:
        """Refuses nothing; asks again for partitions that others published since the run began.

        A run that only adds rows asks for nothing: it replaces nothing that others wrote.
        """
        if self._run and not self.adds_again:
            self._run.ask_again(runs_since(now.metadata, self._run.covers.snapshot_id))

    def published(self, context: dg.AssetExecutionContext, keys: Collection[str]) -> None:
        """Removes published partitions from the inbox. Raises nothing: a leftover costs one more run."""
        if not self._run:
            return
        try:
            self._run.remove(parts_of(tuple(keys)))
        except Exception as error:  # whatever the storage raises
            context.log.warning(f"{self.table}: messages that this run has served stay in the inbox: {error}")

    def failed(self, context: dg.AssetExecutionContext, keys: Collection[str], error: Exception) -> None:
        """Records why the run failed. keys: the bad ones. Raises nothing."""
        if not self.is_on:
            return
        try:
            said = Failed(context.run.run_id, tuple(sorted(keys)), str(error)[:LONGEST_REASON])
            self._plans.write_failed(self.token, said)
        except Exception as fault:  # whatever the storage raises
            context.log.warning(f"{self.table}: why the run failed could not be noted: {fault}")

    def metadata(self) -> Mapping[str, Mapping[str, Any]]:
        """Returns the metadata about messages, by partition key."""
        if not self._run:
            return {}
        covers, now_ms = self._run.covers, time.time() * 1000
        return {
            key: {
                "messages": one.messages,
                "message_wait_seconds": round((covers.noted_ms - one.sent_ms) / 1000, 1),
                "message_end_to_end_seconds": round((now_ms - one.sent_ms) / 1000, 1),
            }
            for key, one in covers.found.items()
        }
