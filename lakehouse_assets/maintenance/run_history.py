"""When the next run may be asked for that maintains a table, from the runs that did so before. Pure, but for one query.
Whether there is anything to do is policy.py's question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import dagster as dg

from lakehouse_assets.run.in_flight import UNFINISHED, tags_of_location

TABLE_TAG = "lakehouse/maintains"
"""On runs that were asked for, one table each."""
HOUR = 3600.0
FIRST_WAIT, LONGEST_WAIT = HOUR, 24 * HOUR
"""Seconds after a failed run; doubled with each, so that a table is asked for once a day at the least."""
LATEST = 8
"""So many runs of a table are looked at: after five failures in a row the wait is the longest."""


@dataclass(frozen=True)
class RunHistory:
    """The runs that maintained one table. last: the id of the latest; None without any. failures: how many in a row
    failed, or were terminated, the latest included. ended: when the latest did, seconds since 1970."""

    last: str | None = None
    is_unfinished: bool = False
    failures: int = 0
    ended: float = 0.0

    @classmethod
    def of(cls, instance: dg.DagsterInstance, job: str, identifier: str, location: str | None) -> RunHistory:
        """By one query. location: the name of the caller's code location, if it has one: another one may have a job and
        a table of the same names."""
        runs = dg.RunsFilter(job_name=job, tags={TABLE_TAG: identifier, **tags_of_location(location)})
        return cls.of_records(instance.get_run_records(runs, limit=LATEST))

    @classmethod
    def of_records(cls, records: Sequence[dg.RunRecord]) -> RunHistory:
        """records: the latest first."""
        if not records:
            return cls()
        newest = records[0]
        failed = takewhile(lambda record: record.dagster_run.status is not dg.DagsterRunStatus.SUCCESS, records)
        return cls(
            last=newest.dagster_run.run_id,
            is_unfinished=newest.dagster_run.status in UNFINISHED,
            failures=len(list(failed)),
            ended=newest.end_time or newest.update_timestamp.timestamp(),
        )

    def wait(self, now: float) -> str | None:
        """Why no run is asked for; None if one may be. now: seconds since 1970."""
        if self.is_unfinished:
            return f"run {self.last} of it is queued or under way"
        if self.last is None or now - self.ended >= self._pause:
            return None
        if not self.failures:
            return "a run of it ended less than an hour ago"
        return f"failed runs in a row: {self.failures}; the next is asked for {self._pause / HOUR:g} h after the last"

    @property
    def _pause(self) -> float:
        """An hour after a success too: what a run could not mend, the next would not either."""
        return min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** max(0, self.failures - 1))

    def run_key(self, identifier: str) -> str:
        """Of the next run. Dagster never starts a second run with a key, whatever became of the first, so each has the
        run before it and its own number in it; a tick that is repeated asks for the same one."""
        return f"{identifier} attempt {self.failures + 1} after {self.last or 'none'}"
