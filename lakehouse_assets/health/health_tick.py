"""Evaluates the checks of tables' health: of one now, and of many in a tick of the sensor, a few tables a tick.

What the checks say is in health_verdicts.py, what is said already in said.py; the cursor is look_cursor.py's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import dagster as dg

from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.health.findings import Measures
from lakehouse_assets.health.health_verdicts import Verdicts, not_there, unreadable, verdicts
from lakehouse_assets.health.look import HealthReader, TimeIsUp
from lakehouse_assets.health.look_cursor import HOUR, LookCursor, Seen, materializations, short
from lakehouse_assets.health.said import Stored
from lakehouse_assets.run.resource import Lakehouse

# Dagster ends a tick after 60 s and drops all its events.
TICK_SECONDS = 20.0
# The daemon stores about 35 a second, and works for no other sensor meanwhile.
MOST_EVENTS = 300


def evaluate(
    context: dg.SensorEvaluationContext, lakehouse: Lakehouse, tables: Sequence[Table], measures: Measures, now: float
) -> dg.SensorResult:
    """Evaluates the sensor over these tables. now: seconds since 1970."""
    cursor, events = LookCursor.parse(context.cursor), materializations(context.instance, tables)
    cursor.forget_others({table.identifier for table in tables})
    due = cursor.due(tables, events, now)
    found: list[dg.AssetCheckEvaluation] = []
    if due:
        # Without the retries of lakehouse.catalog(), which take as long as a tick may: it fails, the next tries.
        reader = HealthReader.of(lakehouse, load_lake(lakehouse.settings), context.instance)
        deadline = time.monotonic() + TICK_SECONDS
        for number, table in enumerate(due):
            if (number and time.monotonic() > deadline) or len(found) >= MOST_EVENTS:
                break
            cursor.last = table.identifier  # also when time is up: a large table must not keep out the others
            found += _news(reader, measures, cursor, table, events[table.identifier], now, deadline)
    reason = None if found else f"{len(due)} of {len(tables)} tables to be looked at; there is nothing new to say"
    return dg.SensorResult(asset_events=found, skip_reason=reason, cursor=cursor.text())


def verdicts_now(table: Table, measures: Measures, open_reader: Callable[[], HealthReader]) -> Verdicts:
    """Returns what the checks say of the table as it is now.

    Raises nothing: what can't be read is a warning of the checks.
    """
    try:
        reader = open_reader()
        loaded = reader.load(table)
        if loaded is None:
            return not_there()
        return verdicts(reader.health(table, loaded), measures, int(time.time() * 1000))
    except Exception as error:  # whatever it is: the run's rows are published, and a failed check would fail the run
        return unreadable(error)


def _news(
    reader: HealthReader, measures: Measures, cursor: LookCursor, table: Table, event: int, now: float, deadline: float
) -> list[dg.AssetCheckEvaluation]:
    """Returns the table's evaluations that are to be said now, and notes in the cursor how it was seen.

    event: the storage id of its latest materialization. deadline: when time is up, on the monotonic clock.
    """
    stored = Stored.of(reader.instance, table.key, now)
    if stored.is_awaited:
        return []
    seen, location, again = cursor.seen.get(table.identifier), "", now + HOUR
    found: Verdicts = {}
    try:
        if loaded := reader.load(table):
            location = short(loaded.metadata_location)
            if not (seen and seen.location == location and stored.is_settled(now)):
                found = verdicts(reader.health(table, loaded, deadline), measures, int(now * 1000))
    except TimeIsUp:
        return []
    except Exception as error:  # of one table: it must not take the events of the others with it
        found, location, again = unreadable(error), "", now  # the next tick tries again
    evaluations = {check: verdict.evaluation(table.key, check) for check, verdict in found.items()}
    due = stored.due(evaluations)
    waiting = [at for at in due.values() if at > now]
    if any(at <= now + HOUR for at in waiting):
        location, again = "", min(again, *waiting)
    cursor.seen[table.identifier] = Seen(location, event, again)
    return [evaluation for check, evaluation in evaluations.items() if due[check] <= now]
