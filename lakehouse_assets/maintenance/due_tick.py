"""One tick of the sensor ``lakehouse_maintenance_due``: asks for a run of the job for each table that needs one.

What a table needs is planned as the job plans it; when a run may be asked for is run_history.py's.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import dagster as dg

from lakehouse_assets.declare.table import Table
from lakehouse_assets.health.health_reader import HealthReader
from lakehouse_assets.health.health_tick import TICK_SECONDS
from lakehouse_assets.health.look import TimeIsUp
from lakehouse_assets.health.look_cursor import HOUR, LookCursor, Seen, materializations, short
from lakehouse_assets.maintenance.candidates import LeftOut, Policy, Writing
from lakehouse_assets.maintenance.costs import rates
from lakehouse_assets.maintenance.job import BUDGET_GIB, GIB, LEVELS, run_config
from lakehouse_assets.maintenance.memory_store import MemoryStore, memory_store
from lakehouse_assets.maintenance.policy import plan
from lakehouse_assets.maintenance.pool import bound_pool
from lakehouse_assets.maintenance.run_history import TABLE_TAG, RunHistory
from lakehouse_assets.run.in_flight import MAINTENANCE, flights, location_of_sensor
from lakehouse_assets.run.resource import Lakehouse
from resources.catalog import load_lake

WAIT_SECONDS = 900.0
"""Seconds until a table that only waits is looked at again: what is too young was written 15 minutes ago by then."""


def ask(
    context: dg.SensorEvaluationContext, lakehouse: Lakehouse, tables: Sequence[Table], now: float
) -> dg.SensorResult:
    """Evaluates the sensor over these tables. now: seconds since 1970."""
    bound_pool(context.instance)
    cursor, events = LookCursor.parse(context.cursor), materializations(context.instance, tables)
    cursor.forget_others({table.identifier for table in tables})
    due = cursor.due(tables, events, now)
    requests, waits = list[dg.RunRequest](), list[str]()
    if due:
        # Without the retries of lakehouse.catalog(), which take as long as a tick may: it fails, the next tries.
        reader = HealthReader.of(lakehouse, load_lake(lakehouse.settings), context.instance)
        rules, deadline = policy(lakehouse, tables), time.monotonic() + TICK_SECONDS
        location = location_of_sensor(context)
        tick = DueTick(reader, memory_store(lakehouse), rules, tables, cursor, events, now, deadline, location)
        requests, waits = tick.requests(due), tick.waits
    looked = f"{len(due)} of {len(tables)} tables to be looked at; none needs a run"
    reason = None if requests else "; ".join([looked, *waits])
    return dg.SensorResult(run_requests=requests, skip_reason=reason, cursor=cursor.text())


def policy(lakehouse: Lakehouse, tables: Sequence[Table]) -> Policy:
    """Returns the policy of the job's default config, with which the sensor's runs plan too."""
    return Policy(LEVELS, rates(lakehouse.settings), {t.identifier: t.maintenance for t in tables})


@dataclass
class DueTick:
    """One evaluation of the sensor."""

    reader: HealthReader
    store: MemoryStore
    policy: Policy
    tables: Sequence[Table]
    """All declared tables."""
    cursor: LookCursor
    events: Mapping[str, int]
    """The storage id of each table's latest materialization, by identifier."""
    now: float
    """Seconds since 1970."""
    deadline: float
    """On the monotonic clock."""
    location: str | None
    """The name of the code location, if it has one."""
    waits: list[str] = field(default_factory=list)
    """Why tables are left for later, a sentence each."""

    def requests(self, due: Sequence[Table]) -> list[dg.RunRequest]:
        """Returns the runs to ask for, of these tables, until time is up; notes in ``waits`` why others get none."""
        found: list[dg.RunRequest] = []
        for number, table in enumerate(due):
            if number and time.monotonic() > self.deadline:
                break
            self.cursor.last = table.identifier  # also when time is up: a large table must not keep out the others
            try:
                found += self._request(table)
            except TimeIsUp:
                self.waits.append(f"{table.identifier}: time was up before all of it was read; the next tick goes on")
            except Exception as error:  # of one table: the others are asked for
                self.waits.append(f"{table.identifier}: could not be read: {type(error).__name__}: {error}")
        return found

    def _request(self, table: Table) -> list[dg.RunRequest]:
        identifier = table.identifier
        history = RunHistory.of(self.reader.instance, MAINTENANCE, identifier, self.location)
        if wait := history.wait(self.now):
            self.waits.append(f"{identifier}: {wait}")
        elif self._needs_a_run(table):
            config = run_config(tables=[identifier], dry_run=False)
            return [dg.RunRequest(history.run_key(identifier), run_config=config, tags={TABLE_TAG: identifier})]
        return []

    def _needs_a_run(self, table: Table) -> bool:
        """Tells whether the table needs a run.

        If it needs none, the cursor notes how the table was seen. If it needs one, the cursor notes nothing: the next
        tick looks whether there is a run.
        """
        identifier, event = table.identifier, self.events[table.identifier]
        seen, loaded = self.cursor.seen.get(identifier), self.reader.load(table)
        location = short(loaded.metadata_location) if loaded else ""
        if loaded is None or (seen and seen.location == location):
            self.cursor.seen[identifier] = Seen(location, event, self.now + HOUR)
            return False
        health = self.reader.health(table, loaded, self.deadline)
        memory = {identifier: self.store.read(health.uuid)}
        planned = plan([health], self.policy, int(BUDGET_GIB * GIB), memory, self._writing, self.now)
        if planned.taken:
            return True
        waits = [left.why for left in planned.not_taken if not isinstance(left.why, LeftOut)]
        if waits:
            self.waits.append(f"{identifier}: {waits[0]}")
            self.cursor.seen[identifier] = Seen("", event, self.now + WAIT_SECONDS)
        else:
            self.cursor.seen[identifier] = Seen(location, event, self.now + HOUR)
        return False

    @cached_property
    def _writing(self) -> Writing:
        return flights(self.reader.instance, self.tables, self.location)
