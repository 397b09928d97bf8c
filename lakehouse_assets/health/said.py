"""Compares what is found of a table's health with the latest stored evaluations, so that nothing is said twice.

What the verdicts are is health_verdicts.py's; who says them is health_tick.py and the maintenance job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg
from dagster._core.storage.asset_check_execution_record import (
    AssetCheckExecutionRecord,
    AssetCheckExecutionRecordStatus,
)

from lakehouse_assets.health.findings import Check
from lakehouse_assets.health.health_verdicts import HOURS_SINCE, NEEDS, UNREADABLE
from lakehouse_assets.run.in_flight import UNFINISHED

PLANNED = AssetCheckExecutionRecordStatus.PLANNED
NUMBERS_AGAIN_SECONDS = 3600.0
"""The least seconds between two evaluations of which only the numbers differ. With one at each commit, 500 tables that
commit every five minutes wrote 3 GB a day to Dagster's log."""
SAME_AGAIN_SECONDS = 24 * 3600.0
"""The seconds after which the same is said again, so that a check's page shows that somebody still looks."""


@dataclass(frozen=True)
class Said:
    """A stored evaluation of one check."""

    evaluation: dg.AssetCheckEvaluation
    at: float
    """When it was stored, seconds since 1970."""

    def says(self, found: dg.AssetCheckEvaluation) -> bool:
        """Tells whether it says all that was found, but for the times since the last write and look."""
        same_text = self.evaluation.description == found.description
        return self._agrees(found) and same_text and _numbers(self.evaluation) == _numbers(found)

    def due(self, found: dg.AssetCheckEvaluation) -> float:
        """Tells when what was found is to be said, seconds since 1970."""
        if not self._agrees(found):
            return self.at
        return self.at + (SAME_AGAIN_SECONDS if self.says(found) else NUMBERS_AGAIN_SECONDS)

    @property
    def is_unknown(self) -> bool:
        """Whether the table could not be read."""
        return (self.evaluation.description or "").startswith(UNREADABLE)

    def _agrees(self, found: dg.AssetCheckEvaluation) -> bool:
        """Tells whether both passed or not, are as grave, and have the same findings, whatever their numbers."""
        return _state(self.evaluation) == _state(found)


@dataclass(frozen=True)
class Stored:
    """The stored evaluations of a table's checks."""

    said: Mapping[Check, Said]
    """The latest evaluation of each check, where the latest run that had to evaluate it did so."""
    is_awaited: bool
    """Whether a run that was asked for within a day and is not over will evaluate them. Dagster takes the run's
    evaluation for older than one that is stored before it, and would go on to show that one."""

    @classmethod
    def of(cls, instance: dg.DagsterInstance, key: dg.AssetKey, now: float) -> Stored:
        """Reads what is stored, by one query; by two where a run has planned an evaluation and not made it.

        now: seconds since 1970.
        """
        keys = [dg.AssetCheckKey(key, check.value) for check in Check]
        records = instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
        found = {Check(key.name): said for key, record in records.items() if (said := _said(record))}
        late = now - SAME_AGAIN_SECONDS
        planned = [r.run_id for r in records.values() if r.status is PLANNED and r.create_timestamp > late]
        runs = instance.get_runs(dg.RunsFilter(planned, statuses=UNFINISHED), limit=1) if planned else ()
        return cls(found, bool(runs))

    def due(self, found: Mapping[Check, dg.AssetCheckEvaluation]) -> dict[Check, float]:
        """Tells when each evaluation is to be said, seconds since 1970; 0 for one of a check without a stored one."""
        return {
            check: said.due(evaluation) if (said := self.said.get(check)) else 0.0
            for check, evaluation in found.items()
        }

    def is_settled(self, now: float) -> bool:
        """Tells whether there is nothing to say of a table that has not changed. now: seconds since 1970."""
        return len(self.said) == len(Check) and not any(
            said.is_unknown or now >= said.at + SAME_AGAIN_SECONDS for said in self.said.values()
        )


def _said(record: AssetCheckExecutionRecord) -> Said | None:
    """Returns a record's evaluation; None for one that a run has planned and not made."""
    if record.status is PLANNED or record.event is None or record.evaluation is None:
        return None
    return Said(record.evaluation, record.event.timestamp)


def _state(evaluation: dg.AssetCheckEvaluation) -> tuple[Any, ...]:
    return evaluation.passed, evaluation.severity, evaluation.metadata.get(NEEDS)


def _numbers(evaluation: dg.AssetCheckEvaluation) -> dict[str, dg.MetadataValue[Any]]:
    return {name: value for name, value in evaluation.metadata.items() if not name.startswith(HOURS_SINCE)}
