"""The sensor ``lakehouse_health``: evaluates the checks of every table's health without a run, a few tables a tick.
What the checks say is in health_verdicts.py; the cursor is health_cursor.py's."""

# No `from __future__ import annotations`: Dagster needs the annotations as objects, not as text.

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import dagster as dg

from lakehouse_assets.declare.table import Table
from lakehouse_assets.health.findings import Check
from lakehouse_assets.health.health_cursor import HealthCursor, Said, short
from lakehouse_assets.health.health_reader import HealthReader
from lakehouse_assets.health.health_verdicts import UNREADABLE, Verdicts, digest, unreadable, verdicts
from lakehouse_assets.health.look import TimeIsUp
from lakehouse_assets.run.resource import Lakehouse
from resources.catalog import load_lake

NAME = "lakehouse_health"
EVERY_SECONDS = 300
# Dagster ends a tick after 60 s and drops all its events.
TICK_SECONDS = 20.0
# So that a check's page shows that somebody still looks.
AGAIN_SECONDS = 24 * 3600.0


def health_sensor(
    tables: Sequence[Table], status: dg.DefaultSensorStatus, clock: Callable[[], float] = time.time
) -> dg.SensorDefinition:
    """One sensor for all tables. clock: seconds since 1970."""

    @dg.sensor(
        name=NAME,
        minimum_interval_seconds=EVERY_SECONDS,
        default_status=status,
        description="Evaluates the checks files, history and storage of every table, from metadata alone: when what "
        "they say has changed, and once a day.",
    )
    def evaluate(context: dg.SensorEvaluationContext, lakehouse: dg.ResourceParam[Lakehouse]) -> dg.SensorResult:
        # Without the retries of lakehouse.catalog(), which take as long as a tick may: the tick fails, the next tries.
        reader = HealthReader.of(lakehouse, load_lake(lakehouse.settings), context.instance)
        tick = Tick(reader, HealthCursor.parse(context.cursor), clock(), time.monotonic() + TICK_SECONDS)
        events = tick.events(tables)
        reason = None if events else f"{tick.looked} of {len(tables)} tables looked at, nothing has changed"
        return dg.SensorResult(asset_events=events, skip_reason=reason, cursor=tick.cursor.text())

    return evaluate


@dataclass
class Tick:
    """One evaluation. now: seconds since 1970. deadline: on the monotonic clock. looked: at so many tables so far."""

    reader: HealthReader
    cursor: HealthCursor
    now: float
    deadline: float
    looked: int = 0

    def events(self, tables: Sequence[Table]) -> list[dg.AssetCheckEvaluation]:
        """The evaluations of the tables after the last tick's last one, until time is up."""
        self.cursor.forget_others({table.identifier for table in tables})
        for identifier in self._unread(tables):
            self.cursor.said.pop(identifier, None)
        found: list[dg.AssetCheckEvaluation] = []
        for table in self.cursor.in_turn(tables):
            if self.looked and time.monotonic() > self.deadline:
                break
            self.looked += 1
            self.cursor.last = table.identifier  # also when time is up: a large table must not keep out the others
            news = self._news(table) or {}
            found += [verdict.evaluation(table.key, check) for check, verdict in news.items()]
        return found

    def _unread(self, tables: Sequence[Table]) -> Iterator[str]:
        """Tables that this sensor has read, but whose checks could not be read when a run or a person evaluated them
        later: no commit follows, so they would say so for a day."""
        keys = {
            dg.AssetCheckKey(table.key, Check.FILES): table.identifier
            for table in tables
            if (said := self.cursor.said.get(table.identifier)) and said.location
        }
        latest = self.reader.instance.event_log_storage.get_latest_asset_check_execution_by_key(list(keys))
        for key, record in latest.items():
            event = record.event.dagster_event if record.event else None
            if event is None or event.event_type is not dg.DagsterEventType.ASSET_CHECK_EVALUATION:
                continue
            if (event.asset_check_evaluation_data.description or "").startswith(UNREADABLE):
                yield keys[key]

    def _news(self, table: Table) -> Verdicts | None:
        """The table's verdicts, or None where they are what was last said."""
        said, location = self.cursor.said.get(table.identifier), ""
        due = said is None or self.now - said.at >= AGAIN_SECONDS
        try:
            loaded = self.reader.load(table)
            if loaded is None:
                return None
            location = short(loaded.metadata_location)
            if said and said.location == location and not due:
                return None  # no commit since
            health = self.reader.health(table, loaded, self.deadline)
            text, found = digest(health), verdicts(health, int(self.now * 1000))
        except TimeIsUp:
            return None
        except Exception as error:  # of one table: it must not take the events of the others with it
            # No location: the next tick tries again.
            location, text, found = "", type(error).__name__, unreadable(error)
        if said and said.digest == text and not due:
            self.cursor.said[table.identifier] = Said(location, text, said.at)
            return None
        self.cursor.said[table.identifier] = Said(location, text, self.now)
        return found
