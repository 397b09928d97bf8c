"""One tick of the sensor ``lakehouse_maintenance_due``: plans the tables that need work, and requests a run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import dagster as dg

from lakehouse_assets.declare.table import Table
from lakehouse_assets.drive.liveness import reap
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.maintenance.health.look import (
    HOUR,
    HealthReader,
    LookCursor,
    Seen,
    TimeIsUp,
    materializations,
    short,
)
from lakehouse_assets.maintenance.health.verdicts import TICK_SECONDS
from lakehouse_assets.maintenance.job import BUDGET_GIB, GIB, bound_pool
from lakehouse_assets.maintenance.level import Candidate
from lakehouse_assets.maintenance.levels import LEVELS, is_long
from lakehouse_assets.maintenance.policy import LeftOut, Policy, candidates, plan
from lakehouse_assets.maintenance.run_history import RunHistory
from lakehouse_assets.run.in_flight import Flight, flights, location_of_sensor
from lakehouse_assets.run.resource import Lakehouse

WAIT_SECONDS = 900.0
"""Seconds until a table whose work has to wait is looked at again: the default quiet period after a write."""
NOT_THERE = "none"
"""Instead of a missing table's location in the cursor."""


def ask(
    context: dg.SensorEvaluationContext, lakehouse: Lakehouse, tables: Sequence[Table], now: float
) -> dg.SensorResult:
    """Evaluates the sensor. now: epoch seconds."""
    bound_pool(context.instance)
    reap(context.instance)  # a dead run must not count as one under way
    location = location_of_sensor(context)
    history = RunHistory.of(context.instance, location)
    if wait := history.wait(now):
        return dg.SensorResult(skip_reason=wait, cursor=context.cursor)
    cursor, events = LookCursor.parse(context.cursor), materializations(context.instance, tables)
    cursor.forget_others({table.identifier for table in tables})
    later = {table.identifier: wait for table in tables if (wait := history.wait_of(table.identifier, now))}
    ready = [table for table in tables if table.identifier not in later]
    due = cursor.due(ready, events, now)
    request, waits = None, [f"{identifier}: {wait}" for identifier, wait in later.items()]
    if due:
        # Not lakehouse.catalog(), whose retries take as long as a tick may: fail, and let the next tick try.
        reader = HealthReader.of(lakehouse, load_lake(lakehouse.settings), context.instance)
        policy = Policy([level for level in LEVELS if level.by_itself], {t.identifier: t.maintenance for t in tables})
        tick = DueTick(reader, policy, tables, history, cursor, events, now, time.monotonic() + TICK_SECONDS, location)
        # With the tables whose work was left: they compete for the same run and budget.
        request = tick.request([*due, *cursor.waiting(ready, due)])
        waits += tick.waits
    looked = f"{len(due)} of {len(tables)} tables to check; " + ("these wait" if waits else "none needs a run")
    reason = None if request else "; ".join([looked, *waits])
    return dg.SensorResult(run_requests=[request] if request else [], skip_reason=reason, cursor=cursor.text())


@dataclass
class DueTick:
    """One evaluation of the sensor."""

    reader: HealthReader
    policy: Policy
    tables: Sequence[Table]
    history: RunHistory
    cursor: LookCursor
    events: Mapping[str, int]
    """The storage id of each table's latest materialization, by identifier."""
    now: float
    deadline: float
    """On the monotonic clock."""
    location: str | None
    waits: list[str] = field(default_factory=list)
    """Which tables wait, and why, for the UI."""

    def request(self, due: Sequence[Table]) -> dg.RunRequest | None:
        """Looks at tables up to the deadline. Returns one run for all that need it, or None.

        The budget is for one day: BUDGET_GIB for each declared table.
        """
        found: list[Candidate] = []
        for number, table in enumerate(due):
            if number and time.monotonic() > self.deadline:  # at least one table in each tick
                break
            self.cursor.last = table.identifier  # also if time is up: a large table must not starve the others
            try:
                found += self._candidates(table)
            except TimeIsUp:
                self.waits.append(
                    f"{table.identifier}: the time limit ended before all of it was read; the next tick continues"
                )
            except Exception as error:  # one table must not stop the others
                self.waits.append(f"{table.identifier}: could not be read: {type(error).__name__}: {error}")
        budget = int(BUDGET_GIB * GIB) * len(self.tables)
        # The rest is the run's budget, which must not be negative.
        spent = min(budget, self.history.rewritten(self.now))
        planned = plan(found, self.policy, budget, spent)
        taken = {action.table for action in planned.taken}
        not_taken = ((left.action.table, left.why) for left in planned.not_taken)
        waiting = {name: why for name, why in not_taken if not isinstance(why, LeftOut)}
        for name, why in waiting.items():
            self.waits.append(f"{name}: {why}")
            # Without a location: something is left to do even if the table stays as it is.
            self.cursor.seen[name] = Seen("", self.events[name], self.now + WAIT_SECONDS)
        for name in taken:
            self.cursor.seen.pop(name)  # due again; RunHistory.wait() ends each tick until the run has ended
        if not taken:
            return None
        config = {"tables": sorted(taken), "budget_gib": (budget - spent) / GIB, "dry_run": False}
        return dg.RunRequest(self.history.run_key, run_config=config)

    def _candidates(self, table: Table) -> list[Candidate]:
        """Returns a table's work. Notes the table as if it had none; request() corrects this if there is some."""
        identifier, event = table.identifier, self.events[table.identifier]
        seen, loaded = self.cursor.seen.get(identifier), self.reader.load(table)
        care = replace(table.maintenance, without=sorted(table.maintenance.without))  # a set has no order
        # With the declared care: if it changes, the table is planned again.
        location = short(f"{loaded.metadata_location} {care}") if loaded else NOT_THERE
        found: list[Candidate] = []
        # A table in the same state has no new work until its snapshots are old enough to expire.
        changes = seen.changes if seen and seen.location == location else self.now
        if loaded and changes is not None and self.now >= changes:
            health = self.reader.health(table, loaded, self.deadline)
            found = candidates(health, self.policy, self._writing.get(identifier, ()), self.now)
            # None: without a write, the table will never have new work.
            expirable_ms = health.more_expirable_ms if is_long(health) else None
            changes = expirable_ms and expirable_ms / 1000
        self.cursor.seen[identifier] = Seen(location, event, self.now + HOUR, changes)
        return found

    @cached_property
    def _writing(self) -> Mapping[str, Sequence[Flight]]:
        return flights(self.reader.instance, self.tables, self.location)
