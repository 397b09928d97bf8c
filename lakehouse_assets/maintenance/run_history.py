"""Decides when the next run that maintains a table may be asked for, by earlier such runs.

Pure, but for one query. Whether there is anything to do is policy.py's question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import dagster as dg

from lakehouse_assets.run.in_flight import UNFINISHED, tags_of_location

TABLE_TAG = "lakehouse/maintains"
"""The tag of runs that the sensor asked for: the identifier of their one table."""
HOUR = 3600.0
FIRST_WAIT, LONGEST_WAIT = HOUR, 24 * HOUR
"""Seconds that the next run waits after a failed one: the first, doubled with each further failure, up to the longest,
so that a table is asked for once a day at the least. After a success it waits for the first."""
LATEST = 8
"""The number of runs of a table that are looked at: after six failures in a row the wait is the longest."""


@dataclass(frozen=True)
class RunHistory:
    """The runs that maintained one table."""

    last: str | None = None
    """The id of the latest run; None if there was none."""
    is_unfinished: bool = False
    failures: int = 0
    """How many runs in a row, the latest included, failed or were terminated."""
    ended: float = 0.0
    """When the latest run ended, in seconds since 1970."""

    @classmethod
    def of(cls, instance: dg.DagsterInstance, job: str, identifier: str, location: str | None) -> RunHistory:
        """Reads the history by one query.

        location: the name of the caller's code location, if it has one: another one may have a job and a table of the
        same names.
        """
        runs = dg.RunsFilter(job_name=job, tags={TABLE_TAG: identifier, **tags_of_location(location)})
        return cls.of_records(instance.get_run_records(runs, limit=LATEST))

    @classmethod
    def of_records(cls, records: Sequence[dg.RunRecord]) -> RunHistory:
        """Returns the history that these records show, the latest first."""
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
        """Tells why no run is asked for; None if one may be. now: seconds since 1970."""
        if self.is_unfinished:
            return f"run {self.last} of it is queued or under way"
        if self.last is None or now - self.ended >= self._pause:
            return None
        if not self.failures:
            return "a run of it ended less than an hour ago"
        return f"failed runs in a row: {self.failures}; the next is asked for {self._pause / HOUR:g} h after the last"

    @property
    def _pause(self) -> float:
        """Seconds from the latest run's end to the next run.

        They are an hour after a success too: what a run could not mend, the next would not either.
        """
        return min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** max(0, self.failures - 1))

    def run_key(self, identifier: str) -> str:
        """Returns the key of the next run.

        Dagster never starts a second run with a key, whatever became of the first. So each key names the run before it
        and its own number, and a tick that is repeated asks for the same run.
        """
        return f"{identifier} attempt {self.failures + 1} after {self.last or 'none'}"
