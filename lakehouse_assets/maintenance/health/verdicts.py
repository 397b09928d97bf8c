"""The verdicts of health checks, and the tick that evaluates them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg
from dagster._core.storage.asset_check_execution_record import (
    AssetCheckExecutionRecord,
    AssetCheckExecutionRecordStatus,
)

from lakehouse_assets.commit.fork import FORMAT_VERSION
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.maintenance.collect.report import LastLook
from lakehouse_assets.maintenance.health.findings import Check, Finding, Measures, Severity, by_check, size_text
from lakehouse_assets.maintenance.health.health import TableHealth
from lakehouse_assets.maintenance.health.look import (
    HOUR,
    HealthReader,
    LookCursor,
    Seen,
    TimeIsUp,
    materializations,
    short,
)
from lakehouse_assets.run.in_flight import UNFINISHED
from lakehouse_assets.run.resource import Lakehouse

UNREADABLE = "unreadable"
NEEDS = "needs"
"""The metadata key of what is wrong: for the same findings the same text, whatever the numbers."""
HOURS_SINCE = "hours_since_"
"""The prefix of metadata that changes although the table does not."""
MS_AN_HOUR = 3_600_000


@dataclass(frozen=True)
class Verdict:
    """One check's result."""

    passed: bool
    severity: dg.AssetCheckSeverity
    description: str
    metadata: Mapping[str, Any]
    """Dagster plots its numbers, so each is there if known."""

    def result(self, key: dg.AssetKey, check: Check) -> dg.AssetCheckResult:
        """Returns the result for an op."""
        return dg.AssetCheckResult(asset_key=key, check_name=check.value, **vars(self))  # Dagster can't store an enum

    def evaluation(self, key: dg.AssetKey, check: Check) -> dg.AssetCheckEvaluation:
        """Returns the event for a sensor or job."""
        return dg.AssetCheckEvaluation(asset_key=key, check_name=check.value, **vars(self))


Verdicts = Mapping[Check, Verdict]


def verdicts(health: TableHealth, measures: Measures, now_ms: int) -> Verdicts:
    """Returns each check's verdict. now_ms: epoch milliseconds."""
    found = by_check(health, measures)
    numbers: dict[Check, dict[str, Any]] = {
        Check.FILES: _files(health),
        Check.HISTORY: {"snapshots": health.snapshots, **_hours_since("last_write", health.last_write_ms, now_ms)},
        Check.STORAGE: _storage(health, now_ms),
    }
    is_left = health.format_version != FORMAT_VERSION
    left = f"its format version is {health.format_version}, so maintenance leaves it alone" if is_left else ""
    return {check: _verdict(found[check], numbers[check], left) for check in Check}


def not_there() -> Verdicts:
    """Returns the verdicts before a table's first run."""
    return _all_alike(
        True, "the table does not exist yet: its first materialization creates it", {NEEDS: "a first run"}
    )


def unreadable(error: Exception) -> Verdicts:
    """Returns warnings: unknown is neither green nor red."""
    name = type(error).__name__
    text, needs = f"could not be read: {name}: {error}", f"to be readable ({name})"
    return _all_alike(False, text, {NEEDS: needs, UNREADABLE: True})


def _all_alike(passed: bool, text: str, metadata: Mapping[str, Any]) -> Verdicts:
    return dict.fromkeys(Check, Verdict(passed, dg.AssetCheckSeverity.WARN, text, metadata))


def _verdict(found: Sequence[Finding], numbers: Mapping[str, Any], left: str) -> Verdict:
    """left: why maintenance leaves the table alone, if it does."""
    # by_check() puts the gravest first.
    severity = found[0].severity if found else Severity.WARN
    texts = [f.message + (f" ({f.action} fixes it)" if f.action and not left else "") for f in found]
    text = "; ".join([*texts, left] if found and left else texts) or "nothing to do"
    needs = ", ".join(f"{finding.action or 'a person'} ({finding.severity})" for finding in found) or "nothing"
    worst = {f"worst: {finding.action}": _worst(finding) for finding in found if finding.worst}
    metadata: dict[str, Any] = {**numbers, "findings": len(found), NEEDS: needs, **worst}
    return Verdict(not found, dg.AssetCheckSeverity(severity), text, metadata)


def _worst(finding: Finding) -> dg.TableMetadataValue:
    rows: Iterable[Mapping[str, str | int]] = (
        {
            "partition": partition.name,
            "files": partition.files,
            "size": size_text(partition.size),
            "fragments": partition.fragments,
            "undersized": partition.undersized,
            "delete files": partition.delete_files,
            "rows": partition.rows,
            "rows deleted at most": partition.rows_deleted_at_most,
        }
        for partition in finding.worst
    )
    return dg.MetadataValue.table([dg.TableRecord(row) for row in rows])


def _files(health: TableHealth) -> dict[str, Any]:
    return {
        "partitions": len(health.partitions),
        "files": health.total("files"),
        "bytes": health.total("size"),
        "rows": health.total("rows"),
        "target_bytes": health.target,
        "fragments": health.total("fragments"),
        "undersized": health.total("undersized"),
        "delete_files": health.total("delete_files"),
        "rows_deleted_at_most": health.total("rows_deleted_at_most"),
    }


def _hours_since(what: str, at_ms: int | None, now_ms: int) -> dict[str, float]:
    return {} if at_ms is None else {f"{HOURS_SINCE}{what}": round(max(0, now_ms - at_ms) / MS_AN_HOUR, 2)}


def _storage(health: TableHealth, now_ms: int) -> dict[str, Any]:
    return {
        "metadata_bytes": health.metadata_size,
        "data_manifests": health.data_manifests,
        "delete_manifests": health.delete_manifests,
        "empty_manifests": health.empty_manifests,
        "manifest_bytes": health.manifest_size,
        **_unneeded(health.collected, now_ms),
    }


def _unneeded(found: LastLook | None, now_ms: int) -> dict[str, float]:
    if found is None or found.at_ms is None:
        return {}
    return {
        "unneeded_files": found.files,
        "unneeded_bytes": found.size,
        "unneeded_files_due": found.due,
        **_hours_since("last_look", found.at_ms, now_ms),
    }


PLANNED = AssetCheckExecutionRecordStatus.PLANNED
NUMBERS_AGAIN_SECONDS = 3600.0
"""Seconds between evaluations that differ only in numbers. When each commit was reported, 500 tables that commit every
five minutes wrote 3 GB a day to Dagster's log."""
SAME_AGAIN_SECONDS = 24 * 3600.0
"""Seconds between equal evaluations, which show that checks still run."""


@dataclass(frozen=True)
class Said:
    """A stored evaluation of one check."""

    evaluation: dg.AssetCheckEvaluation
    at: float
    """Epoch seconds."""

    def same_as(self, found: dg.AssetCheckEvaluation) -> bool:
        """Whether both agree, but for HOURS_SINCE values."""
        same_text = self.evaluation.description == found.description
        return self._agrees(found) and same_text and _numbers(self.evaluation) == _numbers(found)

    def due(self, found: dg.AssetCheckEvaluation) -> float:
        """Returns when to store what was found: at once if the verdict or the findings changed."""
        if not self._agrees(found):
            return self.at
        return self.at + (SAME_AGAIN_SECONDS if self.same_as(found) else NUMBERS_AGAIN_SECONDS)

    @property
    def is_unknown(self) -> bool:
        """Whether the table was unreadable."""
        return UNREADABLE in self.evaluation.metadata

    def _agrees(self, found: dg.AssetCheckEvaluation) -> bool:
        return _state(self.evaluation) == _state(found)


@dataclass(frozen=True)
class LastEvaluations:
    """The stored evaluations of a table's checks."""

    said: Mapping[Check, Said]
    """Lacks a check that the latest run planned and did not evaluate."""
    run_pending: bool
    """Whether a run will evaluate them. Then nothing may be stored: Dagster would take the run's evaluation for older,
    and keep showing what was stored."""

    @classmethod
    def of(cls, instance: dg.DagsterInstance, key: dg.AssetKey, now: float) -> LastEvaluations:
        """Reads them by one query, or by two if a run has planned an evaluation and not made it."""
        keys = [dg.AssetCheckKey(key, check.value) for check in Check]
        records = instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
        found = {Check(key.name): said for key, record in records.items() if (said := _said(record))}
        # A run that has not evaluated them within a day is no longer waited for.
        late = now - SAME_AGAIN_SECONDS
        planned = [r.run_id for r in records.values() if r.status is PLANNED and r.create_timestamp > late]
        runs = instance.get_runs(dg.RunsFilter(planned, statuses=UNFINISHED), limit=1) if planned else ()
        return cls(found, bool(runs))

    def due(self, found: Mapping[Check, dg.AssetCheckEvaluation]) -> dict[Check, float]:
        """Returns when to store each evaluation; 0 if none is stored."""
        return {
            check: said.due(evaluation) if (said := self.said.get(check)) else 0.0
            for check, evaluation in found.items()
        }

    def is_settled(self, now: float) -> bool:
        """Whether an unchanged table has nothing to report."""
        return len(self.said) == len(Check) and not any(
            said.is_unknown or now >= said.at + SAME_AGAIN_SECONDS for said in self.said.values()
        )


def _said(record: AssetCheckExecutionRecord) -> Said | None:
    if record.status is PLANNED or record.event is None or record.evaluation is None:
        return None
    return Said(record.evaluation, record.event.timestamp)


def _state(evaluation: dg.AssetCheckEvaluation) -> tuple[Any, ...]:
    """Returns what must be stored at once if it has changed."""
    return evaluation.passed, evaluation.severity, evaluation.metadata.get(NEEDS)


def _numbers(evaluation: dg.AssetCheckEvaluation) -> dict[str, dg.MetadataValue[Any]]:
    return {name: value for name, value in evaluation.metadata.items() if not name.startswith(HOURS_SINCE)}


# Dagster ends a tick after 60 s and drops all its events.
TICK_SECONDS = 20.0
# The daemon stores about 35 a second, and works for no other sensor meanwhile.
MOST_EVENTS = 300


def evaluate(
    context: dg.SensorEvaluationContext, lakehouse: Lakehouse, tables: Sequence[Table], measures: Measures, now: float
) -> dg.SensorResult:
    """Evaluates the sensor. now: epoch seconds."""
    cursor, events = LookCursor.parse(context.cursor), materializations(context.instance, tables)
    cursor.forget_others({table.identifier for table in tables})
    due = cursor.due(tables, events, now)
    found: list[dg.AssetCheckEvaluation] = []
    if due:
        # Not lakehouse.catalog(), whose retries take as long as a tick may: fail, and let the next tick try.
        reader = HealthReader.of(lakehouse, load_lake(lakehouse.settings), context.instance)
        deadline = time.monotonic() + TICK_SECONDS
        for number, table in enumerate(due):
            if (number and time.monotonic() > deadline) or len(found) >= MOST_EVENTS:
                break
            cursor.last = table.identifier  # also if time is up: a large table must not starve the others
            found += _news(reader, measures, cursor, table, events[table.identifier], now, deadline)
    reason = None if found else f"{len(due)} of {len(tables)} tables to check; nothing new to report"
    return dg.SensorResult(asset_events=found, skip_reason=reason, cursor=cursor.text())


def verdicts_now(table: Table, measures: Measures, open_reader: Callable[[], HealthReader]) -> Verdicts:
    """Returns a table's verdicts. Raises nothing: errors become warnings."""
    try:
        reader = open_reader()
        loaded = reader.load(table)
        if loaded is None:
            return not_there()
        return verdicts(reader.health(table, loaded), measures, int(time.time() * 1000))
    except Exception as error:  # the run's rows are published, and a failed check would fail the run
        return unreadable(error)


def _news(
    reader: HealthReader, measures: Measures, cursor: LookCursor, table: Table, event: int, now: float, deadline: float
) -> list[dg.AssetCheckEvaluation]:
    """Returns the evaluations to store now, and notes in the cursor how the table was seen."""
    stored = LastEvaluations.of(reader.instance, table.key, now)
    if stored.run_pending:
        return []
    # An empty location: look again even if the table stays as it is.
    seen, location, again = cursor.seen.get(table.identifier), "", now + HOUR
    found: Verdicts = {}
    try:
        if loaded := reader.load(table):
            location = short(loaded.metadata_location)
            if not (seen and seen.location == location and stored.is_settled(now)):
                found = verdicts(reader.health(table, loaded, deadline), measures, int(now * 1000))
    except TimeIsUp:
        return []
    except Exception as error:  # one table must not cost the events of the others
        found, location, again = unreadable(error), "", now  # the next tick tries again
    evaluations = {check: verdict.evaluation(table.key, check) for check, verdict in found.items()}
    due = stored.due(evaluations)
    # A difference may have to wait. Then look again when it is due, even if the table is the same.
    waiting = [at for at in due.values() if at > now]
    if any(at <= now + HOUR for at in waiting):
        location, again = "", min(again, *waiting)
    cursor.seen[table.identifier] = Seen(location, event, again)
    return [evaluation for check, evaluation in evaluations.items() if due[check] <= now]
