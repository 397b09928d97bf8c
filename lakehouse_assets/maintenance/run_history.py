"""Knows from Dagster's own records which maintenance was done, failed or was killed, and when more may be asked for.

Each run notes in its tags what it is doing, so that a killed one tells as well; nothing else is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from lakehouse_assets.run.in_flight import MAINTENANCE, UNFINISHED, tags_of_location

SENSOR = "lakehouse_maintenance_due"
"""The sensor whose runs count. What a person or a schedule asks for is bounded by who asks."""
TABLE_TAG = "lakehouse/maintained."
"""The beginning of a run's tag for each of its tables; the rest is the table's identifier."""
DONE, FAILED, UNDER_WAY = "done", "failed", "under way"
"""The values of that tag. In a run that has ended, a table that is under way was at work when the run was killed."""
REWRITTEN_TAG = "lakehouse/rewritten-bytes"
"""The tag with the bytes that a run has rewritten; while an action is at work, those that it is expected to."""
HOUR, DAY = 3600.0, 86_400.0
PAUSE = HOUR
"""Seconds from one run's end to the next run: what needs work meanwhile is planned together."""
AFTER_SUCCESS = 16 * HOUR
"""Seconds until a table that was maintained is maintained again; the number is OpenHouse's. What work can't mend, as
snapshots that tags keep, costs no more than that."""
FIRST_WAIT, LONGEST_WAIT = HOUR, 24 * HOUR
"""Seconds that a table waits after it failed: the first, doubled with each further failure, up to the longest, so that
it is tried once a day at the least."""
LATEST = 100
"""The number of runs that are looked at: four days' and more, so all failures until the wait is the longest."""


def forget_parent(context: dg.OpExecutionContext) -> None:
    """Empties the notes in the run's tags when it begins: Dagster gives a re-executed run its parent's."""
    notes = [name for name in context.run.tags if name.startswith((TABLE_TAG, REWRITTEN_TAG))]
    context.instance.add_run_tags(context.run_id, dict.fromkeys(notes, ""))


def note_table(context: dg.OpExecutionContext, table: str, fared: str) -> None:
    """Notes in the run's tags how a table fares. fared: DONE, FAILED or UNDER_WAY."""
    context.instance.add_run_tags(context.run_id, {f"{TABLE_TAG}{table}": fared})


def note_rewritten(context: dg.OpExecutionContext, size: int) -> None:
    """Notes in the run's tags how many bytes it has rewritten, or is about to have."""
    context.instance.add_run_tags(context.run_id, {REWRITTEN_TAG: str(size)})


@dataclass(frozen=True)
class RunHistory:
    """The runs of maintenance that the sensor asked for, the latest first."""

    records: Sequence[dg.RunRecord]

    @classmethod
    def of(cls, instance: dg.DagsterInstance, location: str | None) -> RunHistory:
        """Reads the history by one query.

        location: the name of the caller's code location, if it has one: another one may have such a sensor too.
        """
        tags = {"dagster/sensor_name": SENSOR, **tags_of_location(location)}
        return cls(instance.get_run_records(dg.RunsFilter(job_name=MAINTENANCE, tags=tags), limit=LATEST))

    def wait(self, now: float) -> str:
        """Tells why no run may be asked for, whatever the tables need; empty if one may. now: seconds since 1970."""
        if not self.records:
            return ""
        latest = self.records[0]
        if latest.dagster_run.status in UNFINISHED:
            return f"run {latest.dagster_run.run_id} is queued or under way"
        return "the last run ended less than an hour ago" if now - _ended(latest) < PAUSE else ""

    def wait_of(self, table: str, now: float) -> str:
        """Tells why a table is left for later: it was done a short while ago, or it failed; empty if it is not."""
        failures, ended = 0, 0.0
        for record in self.records:
            if not (fared := _fared(record.dagster_run, table)):
                continue
            ended = ended or _ended(record)
            if fared == DONE:
                break
            failures += 1
        pause = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** (failures - 1)) if failures else AFTER_SUCCESS
        if now - ended >= pause:
            return ""
        if failures:
            return f"failures in a row: {failures}; it is tried again {pause / HOUR:g} h after the last"
        return f"it was maintained less than {pause / HOUR:g} hours ago"

    def rewritten(self, now: float) -> int:
        """Counts the bytes that runs of the last 24 hours have rewritten."""
        runs = [record.dagster_run for record in self.records if now - record.create_timestamp.timestamp() < DAY]
        return sum(int(run.tags.get(REWRITTEN_TAG) or 0) for run in runs)

    @property
    def run_key(self) -> str:
        """The key of the next run, by which a tick that is repeated asks for the same run.

        Dagster never starts a second run with a key, whatever became of the first, so each names the run before it.
        """
        return f"after {self.records[0].dagster_run.run_id if self.records else 'none'}"


def _ended(record: dg.RunRecord) -> float:
    return record.end_time or record.update_timestamp.timestamp()


def _fared(run: dg.DagsterRun, table: str) -> str:
    """Returns how a table fared in a run that has ended: DONE or FAILED; empty if nothing was done to it.

    A run that failed before it noted anything failed for all its tables.
    """
    if noted := run.tags.get(f"{TABLE_TAG}{table}"):
        return DONE if noted == DONE else FAILED
    if run.status is dg.DagsterRunStatus.SUCCESS or any(
        value and name.startswith(TABLE_TAG) for name, value in run.tags.items()
    ):
        return ""
    asked_for: Any = run.run_config.get("tables", ())
    return FAILED if table in asked_for else ""
