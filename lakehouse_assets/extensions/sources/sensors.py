"""Sensors and checks of tables with a source."""

# No `from __future__ import annotations`: Dagster needs the annotations as objects, not as text.

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any

import dagster as dg

from lakehouse_assets.declare.row_source import Lag, RowSource, SourceState
from lakehouse_assets.declare.table import Table
from lakehouse_assets.drive.liveness import stored_verdict
from lakehouse_assets.environment.catalog import find_table, load_lake
from lakehouse_assets.errors import LakehouseError, SourceLost
from lakehouse_assets.extensions.sources.hook import mover_of
from lakehouse_assets.extensions.sources.hot_and_cold import moved_to
from lakehouse_assets.extensions.sources.postgres import PostgresTable, Writer
from lakehouse_assets.extensions.sources.purge import PURGE, purgeable
from lakehouse_assets.run.in_flight import ENDED, flights, location_of_sensor
from lakehouse_assets.run.jobs import SensorCursor
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.step.window import MOVE

FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 60.0, 3600.0
"""The wait after a failed run, doubled with each further one, and the longest wait."""
NEAR = 0.5
"""The share of a topic's retention after which the oldest record's wait is a warning."""
LONG_WRITER_SECONDS = 300.0
"""Longer transactions are warnings: they block the move of later rows."""


def is_due(source: RowSource, lag: Lag, now: datetime) -> bool:
    """Whether the rows, or the oldest one's wait, are worth a commit.

    Offsets without a readable row, as of aborted records, never wait too long.
    """
    return lag.rows >= source.floor or (lag.oldest is not None and now - lag.oldest >= source.latency)


def wait_after(failures: int) -> float:
    """Returns the seconds after consecutive failures."""
    return min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2 ** (failures - 1)) if failures else 0.0


@dataclass(frozen=True)
class SourceLook:
    """What a tick sees of a source."""

    state: SourceState
    lag: Lag
    writing: float = 0.0
    """Seconds of the oldest writing transaction; 0 if unknown."""
    writer: str = ""
    """That transaction, for a message."""
    blind_role: str = ""
    """The asking role, if others' transactions are hidden."""
    advice: Sequence[str] = ()
    """Faults that don't stop moves."""

    def metadata(self, now: datetime) -> dict[str, Any]:
        """Returns numbers for Dagster to plot."""
        waiting = [at for at in (self.lag.oldest, self.lag.held_since) if at]
        age = (now - min(waiting)).total_seconds() if waiting else 0.0
        return {
            "depth": self.lag.depth,
            "lag_rows": self.lag.rows + self.lag.held,
            "lag_seconds": round(max(0.0, age), 1),
            "held_back": self.state.held_back,
            "oldest_writer_seconds": round(self.writing, 1),
        }


def verdict(source: RowSource, look: SourceLook, now: datetime) -> dg.AssetCheckResult:
    """Says whether the source keeps its unmoved rows, and what blocks their move.

    Its text must not change at each tick, as the sensor reports each change: durations are in SourceLook.metadata().
    """
    state, lag, blind = look.state, look.lag, look.blind_role
    unseen = f". {blind} can't see other roles' transactions: GRANT pg_read_all_stats TO {blind}" if blind else ""
    age = (now - lag.oldest).total_seconds() if lag.oldest else 0.0
    if state.retention and age > NEAR * state.retention.total_seconds():
        return warning(
            f"{source.name} keeps records for {state.retention.total_seconds():,.0f} s, but the oldest one not yet "
            f"moved is older than {NEAR:.0%} of that: materialize the table, or raise retention.ms"
        )
    if state.held_back and look.writing > LONG_WRITER_SECONDS:
        return warning(
            f"a transaction ({look.writer}) has been writing for more than {LONG_WRITER_SECONDS:,.0f} s, and nothing "
            f"written after it began can be moved: end it{unseen}"
        )
    if lag.held_since and (now - lag.held_since).total_seconds() > LONG_WRITER_SECONDS:
        return warning(
            f"{source.name} has rows that were written more than {LONG_WRITER_SECONDS:,.0f} s ago and can't be moved, "
            f"because an older transaction is open: see pg_stat_activity and pg_prepared_xacts{unseen}"
        )
    if look.advice:
        return warning(f"{source.name}: {'; '.join(look.advice)}")
    return dg.AssetCheckResult(
        passed=True, description=f"{source.name} still has all rows that have not been moved{unseen}"
    )


def warning(text: str) -> dg.AssetCheckResult:
    """Returns a failed check of severity WARN."""
    return dg.AssetCheckResult(passed=False, severity=dg.AssetCheckSeverity.WARN, description=text)


CHECK = "source"
DESCRIPTION = "Whether the source still has all rows that the table lacks, and whether they can be moved."
MOVER_TAG = "lakehouse/mover"
"""The tag of runs that the sensor requested: the table's identifier."""
EVERY_SECONDS, SHOWN_EVERY_SECONDS, PURGE_EVERY_SECONDS = 10, 60.0, 300
LOOKS_AT_ONCE = 16
"""The most sources that are asked at the same time."""
REMEMBERED = 8
"""Ended runs that _waits() looks at: eight failures reach the longest wait."""


def look_at_source(lakehouse: Lakehouse, table: Table) -> SourceLook:
    """Asks how far the table is behind. Raises SourceLost, SourceUnreachable and the catalog's errors."""
    source = table.source
    assert source is not None
    # Without the retries of lakehouse.catalog(): they outlast a tick, and the next tick tries again.
    cold = find_table(load_lake(lakehouse.settings), table.identifier)
    position = moved_to(table, cold)
    state = source.state(position)
    faults = source.faults(state)
    refused = [f"{source.name}: {fault.text}" for fault in faults if fault.is_refused]
    others = cold and state.of_another(source.name, mover_of(table, cold.metadata))
    if problem := state.problem(source.name, position) or others or "; ".join(refused):
        raise SourceLost(problem)
    names = [column.name for column in table.schema.columns]
    if column := source.column_problem(names, may_lack=table.step != MOVE):
        raise SourceLost(column)
    writer = source.oldest_writer() if isinstance(source, PostgresTable) else Writer()
    advice = [fault.text for fault in faults]
    return SourceLook(state, source.lag(state, state.begin(position)), *writer, advice=advice)


def judged(lakehouse: Lakehouse, table: Table, now: datetime) -> tuple[dg.AssetCheckResult, SourceLook | None]:
    """Returns the check of a table's source, and the look unless it failed."""
    assert table.source is not None
    try:
        look = look_at_source(lakehouse, table)
    except SourceLost as lost:
        return dg.AssetCheckResult(passed=False, description=str(lost)), None
    except Exception as error:  # each kind of catalog has its own; it may answer the next time
        return warning(str(error)), None
    return verdict(table.source, look, now), look


@dataclass(frozen=True)
class SourceCursor(SensorCursor):
    """The sensor's cursor. Losing it loses nothing."""

    shown_at: float = 0.0
    """When the numbers were shown last, in epoch seconds."""


def movers_sensor(
    tables: Sequence[Table], status: dg.DefaultSensorStatus, clock: Callable[[], float] = time.time
) -> dg.SensorDefinition:
    """Returns the sensor of moves."""

    @dg.sensor(
        name="lakehouse_movers",
        asset_selection=dg.AssetSelection.assets(*(table.key for table in tables)),
        minimum_interval_seconds=EVERY_SECONDS,
        default_status=status,
        description="Requests runs that move the rows of sources, and shows how far behind their tables are.",
    )
    def ask(context: dg.SensorEvaluationContext, lakehouse: dg.ResourceParam[Lakehouse]) -> dg.SensorResult:
        now, cursor = clock(), SourceCursor.parse(context.cursor)
        # Shows the numbers also if the clock was set back.
        at, shows = datetime.fromtimestamp(now, UTC), not 0 <= now - cursor.shown_at < SHOWN_EVERY_SECONDS
        busy = flights(context.instance, tables, location_of_sensor(context))
        requests, sentences = list[dg.RunRequest](), list[str]()
        events: list[dg.AssetObservation | dg.AssetMaterialization | dg.AssetCheckEvaluation] = []
        # At once: a silent source delays no other.
        with ThreadPoolExecutor(min(LOOKS_AT_ONCE, len(tables))) as pool:
            looks = [*pool.map(lambda table: judged(lakehouse, table, at), tables)]
        for table, (found, look) in zip(tables, looks, strict=True):
            name, source = table.identifier, table.source
            assert source is not None
            if look is None:
                sentences.append(f"{name}: {found.description}")
            else:
                if shows:
                    events.append(dg.AssetObservation(source_key(table), metadata=look.metadata(at)))
                # None: a run or a backfill of the table is under way.
                waits = None if name in busy else _waits(context.instance, table, now)
                if is_due(source, look.lag, at) and waits == 0:
                    requests.append(dg.RunRequest(asset_selection=[table.key], tags={MOVER_TAG: name}))
                under_way = (
                    "is being moved" if name in busy else f"waits {waits:.0f} s after a failure" if waits else ""
                )
                sentences.append(f"{name}: {look.lag.rows:,} rows to move {under_way}".strip())
            evaluation = _evaluation(table, found)
            said = evaluation.passed, evaluation.description or ""
            if stored_verdict(context.instance, evaluation.asset_check_key) != said:
                events.append(evaluation)
        cursor = replace(cursor, shown_at=now if shows else cursor.shown_at)
        skipped = None if requests else "; ".join(sentences)
        context.log.info("; ".join(sentences))
        return dg.SensorResult(run_requests=requests, asset_events=events, skip_reason=skipped, cursor=cursor.text())

    return ask


def _evaluation(table: Table, found: dg.AssetCheckResult) -> dg.AssetCheckEvaluation:
    return dg.AssetCheckEvaluation(
        asset_key=table.key,
        check_name=CHECK,
        passed=found.passed,
        severity=found.severity,
        description=found.description,
        metadata={},
    )


def _waits(instance: dg.DagsterInstance, table: Table, now: float) -> float:
    """Returns the seconds until the sensor may request a run after failures; 0 if the last run has not failed."""
    filters = dg.RunsFilter(tags={MOVER_TAG: table.identifier}, statuses=ENDED)
    records = instance.get_run_records(filters, limit=REMEMBERED, order_by="update_timestamp", ascending=False)
    statuses = (record.dagster_run.status for record in records)
    failures = list(takewhile(lambda status: status is dg.DagsterRunStatus.FAILURE, statuses))
    ended = records[0].end_time or records[0].update_timestamp.timestamp() if records else 0.0
    return max(0.0, ended + wait_after(len(failures)) - now) if failures else 0.0


def purges_sensor(
    tables: Sequence[Table], status: dg.DefaultSensorStatus, clock: Callable[[], float] = time.time
) -> dg.SensorDefinition:
    """Returns the sensor of purges."""

    @dg.sensor(
        name="lakehouse_purges",
        job_name=PURGE,
        minimum_interval_seconds=PURGE_EVERY_SECONDS,
        default_status=status,
        description="Requests purges of sources in PostgreSQL, of rows that the lake "
        "has had for at least their grace period.",
    )
    def ask(context: dg.SensorEvaluationContext, lakehouse: dg.ResourceParam[Lakehouse]) -> dg.SensorResult:
        due, problems = list[str](), list[str]()
        for table in tables:
            try:
                if purgeable(lakehouse.catalog(), table, clock()) is not None:
                    due.append(table.identifier)
            except (LakehouseError, OSError) as error:  # the sensor lakehouse_movers shows it
                problems.append(f"{table.identifier}: {error}")
        requests = [dg.RunRequest(run_config={"tables": due})] if due else []
        return dg.SensorResult(run_requests=requests, skip_reason=None if due else "; ".join(problems) or "nothing due")

    return ask


def source_check(table: Table) -> dg.AssetChecksDefinition:
    """Returns a table's check, which fails no run; the sensor evaluates it without runs."""

    @dg.asset_check(asset=table.key, name=CHECK, description=DESCRIPTION)
    def look(lakehouse: dg.ResourceParam[Lakehouse]) -> dg.AssetCheckResult:
        return judged(lakehouse, table, datetime.now(UTC))[0]

    return look


def source_key(table: Table) -> dg.AssetKey:
    """Returns the source's key."""
    assert table.source_key is not None
    return table.source_key
