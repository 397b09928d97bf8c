"""Past maintenance, from tags that runs set as they work, so that killed runs count too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from lakehouse_assets.run.in_flight import MAINTENANCE, UNFINISHED, tags_of_location

SENSOR = "lakehouse_maintenance_due"
TABLE_TAG = "lakehouse/maintained."
"""Followed by the table's identifier."""
DONE, FAILED, UNDER_WAY = "done", "failed", "under way"
"""Values of TABLE_TAG. A run that ended with UNDER_WAY was killed at work on the table."""
REWRITTEN_TAG = "lakehouse/rewritten-bytes"
"""The bytes that a run has rewritten, with those expected of its current action."""
HOUR, DAY = 3600.0, 86_400.0
PAUSE = HOUR
"""Seconds from the end of a run to the next one: what needs work meanwhile is planned together."""
AFTER_SUCCESS = 16 * HOUR
"""Seconds until a table's next turn, as in OpenHouse. Bounds the cost of futile work, such as the expiry of tagged
snapshots."""
FIRST_WAIT, LONGEST_WAIT = HOUR, 24 * HOUR
"""Seconds after a failure, doubled with each further one."""
LATEST = 100
"""The most runs to read: those of four days, at one an hour. Among them are the six failures in a row,
over 31 hours, that lead to LONGEST_WAIT."""


def forget_parent(context: dg.OpExecutionContext) -> None:
    """Empties a new run's notes: Dagster gives a re-executed run its parent's."""
    notes = [name for name in context.run.tags if name.startswith((TABLE_TAG, REWRITTEN_TAG))]
    context.instance.add_run_tags(context.run_id, dict.fromkeys(notes, ""))


def note_table(context: dg.OpExecutionContext, table: str, fared: str) -> None:
    """Notes DONE, FAILED or UNDER_WAY in the run's tags."""
    context.instance.add_run_tags(context.run_id, {f"{TABLE_TAG}{table}": fared})


def note_rewritten(context: dg.OpExecutionContext, size: int) -> None:
    """Notes the bytes that the run has rewritten or is about to."""
    context.instance.add_run_tags(context.run_id, {REWRITTEN_TAG: str(size)})


@dataclass(frozen=True)
class RunHistory:
    """The runs that the sensor requested, latest first. Times are epoch seconds.

    Other runs don't count: a person or a schedule decides how often they run.
    """

    records: Sequence[dg.RunRecord]

    @classmethod
    def of(cls, instance: dg.DagsterInstance, location: str | None) -> RunHistory:
        """Reads the history by one query. location: the code location, as another one may have the same sensor."""
        tags = {"dagster/sensor_name": SENSOR, **tags_of_location(location)}
        return cls(instance.get_run_records(dg.RunsFilter(job_name=MAINTENANCE, tags=tags), limit=LATEST))

    def wait(self, now: float) -> str:
        """Returns why no run may be requested now; empty if one may."""
        if not self.records:
            return ""
        latest = self.records[0]
        if latest.dagster_run.status in UNFINISHED:
            return f"run {latest.dagster_run.run_id} is queued or running"
        return "the last run ended less than an hour ago" if now - _ended(latest) < PAUSE else ""

    def wait_of(self, table: str, now: float) -> str:
        """Returns why a table must wait; empty if it need not."""
        failures, ended = 0, 0.0
        for record in self.records:
            if not (fared := _fared(record.dagster_run, table)):
                continue
            # Of the latest run that worked on the table; 0 if none did, so that the table need not wait.
            ended = ended or _ended(record)
            if fared == DONE:
                break
            failures += 1
        pause = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** (failures - 1)) if failures else AFTER_SUCCESS
        if now - ended >= pause:
            return ""
        if failures:
            return f"failed {failures} times in a row; retried {pause / HOUR:g} h after the last failure"
        return f"it was maintained less than {pause / HOUR:g} hours ago"

    def rewritten(self, now: float) -> int:
        """Returns the bytes rewritten in the last 24 hours."""
        runs = [record.dagster_run for record in self.records if now - record.create_timestamp.timestamp() < DAY]
        return sum(int(run.tags.get(REWRITTEN_TAG) or 0) for run in runs)

    @property
    def run_key(self) -> str:
        """The next run's key. It names the previous run, so that a repeated tick requests no second run.

        Dagster never starts two runs with one key, even if the first failed.
        """
        return f"after {self.records[0].dagster_run.run_id if self.records else 'none'}"


def _ended(record: dg.RunRecord) -> float:
    return record.end_time or record.update_timestamp.timestamp()


def _fared(run: dg.DagsterRun, table: str) -> str:
    """Returns DONE, FAILED or nothing. A run that failed before its first note failed for all its tables."""
    if noted := run.tags.get(f"{TABLE_TAG}{table}"):
        return DONE if noted == DONE else FAILED
    if run.status is dg.DagsterRunStatus.SUCCESS or any(
        value and name.startswith(TABLE_TAG) for name, value in run.tags.items()
    ):
        return ""
    asked_for: Any = run.run_config.get("tables", ())
    return FAILED if table in asked_for else ""
