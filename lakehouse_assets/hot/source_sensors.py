"""The sensors of sources: one asks for runs that move rows and shows how far behind tables are, one asks for purges.

When a run is due, and what the check says, is pace.py's.
"""

# No `from __future__ import annotations`: Dagster needs the annotations as objects, not as text.

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import takewhile

import dagster as dg

from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import find_table, load_lake
from lakehouse_assets.errors import LakehouseError, SourceLost
from lakehouse_assets.hot.hot_rows import moved_to
from lakehouse_assets.hot.pace import SourceLook, is_due, verdict, wait_after, warning
from lakehouse_assets.hot.purge import PURGE, purgeable
from lakehouse_assets.run.in_flight import ENDED, flights, location_of_sensor
from lakehouse_assets.run.jobs import SensorCursor
from lakehouse_assets.run.moving import mover_of
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.sources.postgres import PostgresTable, Writer
from lakehouse_assets.step.window import MOVE

CHECK = "source"
DESCRIPTION = "Whether the source still has all rows that the table has not, and whether they can be moved."
MOVER_TAG = "lakehouse/mover"
"""The tag of a run that the sensor asked for: the table's identifier."""
EVERY_SECONDS, SHOWN_EVERY_SECONDS, PURGE_EVERY_SECONDS = 10, 60.0, 300
LOOKS_AT_ONCE = 16
"""How many sources are asked at the same time."""
REMEMBERED = 8
"""The number of ended runs that are looked at; eight failures wait for the longest time."""


def look_at_source(lakehouse: Lakehouse, table: Table) -> SourceLook:
    """Asks the source how far the table is behind. Raises SourceLost, SourceUnreachable and what catalogs raise."""
    source = table.source
    assert source is not None
    # Without the retries of lakehouse.catalog(), which outlast a tick: it fails, the next tries.
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
    """Returns what the check of a table's source says, and what was seen of the source; None where nothing was."""
    assert table.source is not None
    try:
        look = look_at_source(lakehouse, table)
    except SourceLost as lost:
        return dg.AssetCheckResult(passed=False, description=str(lost)), None
    except (LakehouseError, OSError) as error:  # it may answer the next time
        return warning(str(error)), None
    return verdict(table.source, look, now), look


@dataclass(frozen=True)
class SourceCursor(SensorCursor):
    """The cursor of the sensor, as the next tick reads it. Losing it loses nothing."""

    shown_at: float = 0.0
    """When the sources were observed last, seconds since 1970."""
    said: dict[str, str] = field(default_factory=dict)
    """What the check of each table said last, by identifier."""


def movers_sensor(
    tables: Sequence[Table], status: dg.DefaultSensorStatus, clock: Callable[[], float] = time.time
) -> dg.SensorDefinition:
    """Returns one sensor for all tables with a source. clock: returns seconds since 1970."""

    @dg.sensor(
        name="lakehouse_movers",
        asset_selection=dg.AssetSelection.assets(*(table.key for table in tables)),
        minimum_interval_seconds=EVERY_SECONDS,
        default_status=status,
        description="Asks for runs that move what sources hold, and shows how far behind their tables are.",
    )
    def ask(context: dg.SensorEvaluationContext, lakehouse: dg.ResourceParam[Lakehouse]) -> dg.SensorResult:
        now, cursor = clock(), SourceCursor.parse(context.cursor)
        at, shows = datetime.fromtimestamp(now, UTC), not 0 <= now - cursor.shown_at < SHOWN_EVERY_SECONDS
        busy = flights(context.instance, tables, location_of_sensor(context))
        requests, sentences, said = list[dg.RunRequest](), list[str](), dict[str, str]()
        events: list[dg.AssetObservation | dg.AssetMaterialization | dg.AssetCheckEvaluation] = []
        # At once: one that does not answer holds up no other.
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
                waits = None if name in busy else _waits(context.instance, table, now)
                if is_due(source, look.lag, at) and waits == 0:
                    requests.append(dg.RunRequest(asset_selection=[table.key], tags={MOVER_TAG: name}))
                under_way = (
                    "is being moved" if name in busy else f"waits {waits:.0f} s after a failure" if waits else ""
                )
                sentences.append(f"{name}: {look.lag.rows:,} rows to move {under_way}".strip())
            said[name] = found.description or ""
            if cursor.said.get(name) != said[name]:
                events.append(_evaluation(table, found))
        cursor = replace(cursor, shown_at=now if shows else cursor.shown_at, said={**cursor.said, **said})
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
    """Returns for how many seconds the table is still left alone after runs that failed, one after the other."""
    filters = dg.RunsFilter(tags={MOVER_TAG: table.identifier}, statuses=ENDED)
    records = instance.get_run_records(filters, limit=REMEMBERED, order_by="update_timestamp", ascending=False)
    statuses = (record.dagster_run.status for record in records)
    failures = list(takewhile(lambda status: status is dg.DagsterRunStatus.FAILURE, statuses))
    ended = records[0].end_time or records[0].update_timestamp.timestamp() if records else 0.0
    return max(0.0, ended + wait_after(len(failures)) - now) if failures else 0.0


def purges_sensor(
    tables: Sequence[Table], status: dg.DefaultSensorStatus, clock: Callable[[], float] = time.time
) -> dg.SensorDefinition:
    """Returns one sensor that asks for the job lakehouse_purge. clock: returns seconds since 1970."""

    @dg.sensor(
        name="lakehouse_purges",
        job_name=PURGE,
        minimum_interval_seconds=PURGE_EVERY_SECONDS,
        default_status=status,
        description="Asks for purges of sources in PostgreSQL, of what the lake has had for their grace.",
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
    """Returns the check of one table's source, as an op; without runs the sensor evaluates it. It fails no run."""

    @dg.asset_check(asset=table.key, name=CHECK, description=DESCRIPTION)
    def look(lakehouse: dg.ResourceParam[Lakehouse]) -> dg.AssetCheckResult:
        return judged(lakehouse, table, datetime.now(UTC))[0]

    return look


def source_key(table: Table) -> dg.AssetKey:
    """Returns the key of the asset that a table's source is shown as."""
    assert table.source_key is not None
    return table.source_key
