"""The sensor ``lakehouse_maintenance_due``: asks for a run of the maintenance job for each table that needs one.
What a table needs is planned as the job plans it; when a run may be asked for is run_history.py's."""

# No `from __future__ import annotations`: Dagster needs the annotations as objects, not as text.

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import dagster as dg

from lakehouse_assets.declare.table import Table
from lakehouse_assets.health.health_cursor import short
from lakehouse_assets.health.health_reader import HealthReader
from lakehouse_assets.health.health_sensor import EVERY_SECONDS, TICK_SECONDS
from lakehouse_assets.health.look import TimeIsUp
from lakehouse_assets.maintenance.candidates import Policy, Writing
from lakehouse_assets.maintenance.costs import rates
from lakehouse_assets.maintenance.due_cursor import DueCursor
from lakehouse_assets.maintenance.job import BUDGET_GIB, GIB, POOL, run_config
from lakehouse_assets.maintenance.memory_store import MemoryStore, memory_store
from lakehouse_assets.maintenance.planned import Plan
from lakehouse_assets.maintenance.policy import LEVELS, plan
from lakehouse_assets.maintenance.run_history import TABLE_TAG, RunHistory
from lakehouse_assets.run.in_flight import MAINTENANCE, flights, location_of_sensor
from lakehouse_assets.run.resource import Lakehouse
from resources.catalog import load_lake

NAME = "lakehouse_maintenance_due"


def due_sensor(
    tables: Sequence[Table],
    job: dg.JobDefinition,
    status: dg.DefaultSensorStatus,
    clock: Callable[[], float] = time.time,
) -> dg.SensorDefinition:
    """One sensor for all tables. clock: seconds since 1970."""

    @dg.sensor(
        name=NAME,
        job=job,
        minimum_interval_seconds=EVERY_SECONDS,
        default_status=status,
        description="Asks for a run of the maintenance job for each table that needs one, by the table's health.",
    )
    def ask(context: dg.SensorEvaluationContext, lakehouse: dg.ResourceParam[Lakehouse]) -> dg.SensorResult:
        bound_pool(context.instance)
        # Without the retries of lakehouse.catalog(), which take as long as a tick may: the tick fails, the next tries.
        reader = HealthReader.of(lakehouse, load_lake(lakehouse.settings), context.instance)
        tick = DueTick(
            reader,
            memory_store(lakehouse),
            policy(lakehouse, tables),
            tables,
            DueCursor.parse(context.cursor),
            clock(),
            time.monotonic() + TICK_SECONDS,
            location_of_sensor(context),
        )
        requests = tick.requests()
        looked = f"{tick.looked} of {len(tables)} tables looked at, none is due"
        reason = None if requests else "; ".join([looked, *tick.waits])
        return dg.SensorResult(run_requests=requests, skip_reason=reason, cursor=tick.cursor.text())

    return ask


def policy(lakehouse: Lakehouse, tables: Sequence[Table]) -> Policy:
    """As the job has it that is asked for."""
    return Policy(LEVELS, rates(lakehouse.settings), {t.identifier: t.maintenance for t in tables})


def bound_pool(instance: dg.DagsterInstance) -> None:
    """Let one run at a time maintain tables, where nobody has set the pool's limit: an instance has one default for all
    pools, which is too many here. A limit that a person sets stays."""
    storage = instance.event_log_storage
    if storage.supports_global_concurrency_limits and POOL not in storage.get_concurrency_keys():
        storage.set_concurrency_slots(POOL, 1)


@dataclass
class DueTick:
    """One evaluation. now: seconds since 1970. deadline: on the monotonic clock. location: the name of the code
    location, if it has one. looked: at so many tables so far. waits: why tables are left for later, a sentence each."""

    reader: HealthReader
    store: MemoryStore
    policy: Policy
    tables: Sequence[Table]
    cursor: DueCursor
    now: float
    deadline: float
    location: str | None
    looked: int = 0
    waits: list[str] = field(default_factory=list)

    def requests(self) -> list[dg.RunRequest]:
        """For the tables after the last tick's last one, until time is up."""
        self.cursor.forget_others({table.identifier for table in self.tables})
        found: list[dg.RunRequest] = []
        for table in self.cursor.in_turn(self.tables):
            if self.looked and time.monotonic() > self.deadline:
                break
            self.looked += 1
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
        history = RunHistory.of(self.reader.instance, MAINTENANCE, identifier)
        if wait := history.wait(self.now):
            self.waits.append(f"{identifier}: {wait}")
        elif self._is_due(table):
            config = run_config(tables=[identifier], dry_run=False)
            return [dg.RunRequest(history.run_key(identifier), run_config=config, tags={TABLE_TAG: identifier})]
        return []

    def _is_due(self, table: Table) -> bool:
        loaded = self.reader.load(table)
        if loaded is None:
            return False
        location = short(loaded.metadata_location)
        if self.cursor.idle.get(table.identifier) == location:
            return False
        health = self.reader.health(table, loaded, self.deadline)
        memory = {table.identifier: self.store.read(health.uuid)}
        planned = plan([health], self.policy, int(BUDGET_GIB * GIB), memory, self._writing, self.now)
        if planned == Plan((), ()):
            self.cursor.idle[table.identifier] = location
        elif not planned.taken:
            self.waits.append(f"{table.identifier}: {planned.not_taken[0].why}")
        return bool(planned.taken)

    @cached_property
    def _writing(self) -> Writing:
        return flights(self.reader.instance, self.tables, self.location)
