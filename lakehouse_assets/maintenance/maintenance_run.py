"""One run of the maintenance job: look, plan, carry out, remember, and let the checks say how the tables are now.

The job and its config are job.py's; each of these steps is a module of its own.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import dagster as dg

from lakehouse_assets.commit.tokens import RunToken
from lakehouse_assets.declare.care import Level
from lakehouse_assets.declare.table import Table
from lakehouse_assets.health.health import TableHealth
from lakehouse_assets.health.health_reader import HealthReader
from lakehouse_assets.health.health_tick import verdicts_now
from lakehouse_assets.health.said import Stored
from lakehouse_assets.health.text import error_text
from lakehouse_assets.health.thresholds import DEFAULTS, FORCED
from lakehouse_assets.maintenance.actions import Done, carry_out
from lakehouse_assets.maintenance.candidates import Policy
from lakehouse_assets.maintenance.collection import collection_tables, look_through, site_of
from lakehouse_assets.maintenance.costs import Rates, rates
from lakehouse_assets.maintenance.means import Means
from lakehouse_assets.maintenance.memory import Ending, Found, Memory
from lakehouse_assets.maintenance.memory_store import MemoryStore, memory_store
from lakehouse_assets.maintenance.plan_tables import done_table, measured_table, plan_table
from lakehouse_assets.maintenance.planned import OF_PARTITIONS, Action, NotTaken, Plan
from lakehouse_assets.maintenance.policy import plan
from lakehouse_assets.rewrite.rewrite_plan import LEAST_INPUT_FILES, MIN_INPUT_FILES
from lakehouse_assets.run.in_flight import flights, location_of
from lakehouse_assets.run.resource import Lakehouse
from resources.disk import full_disk

LOOKED_AT, PLAN, MEASURED = "tables", "plan", "measured"
"""Keys of what the run shows: number of tables looked at, plan, numbers of tables that nothing is done to."""


@dataclass
class MaintenanceRun:
    """One run of the maintenance job, with what it has found and done so far."""

    context: dg.OpExecutionContext
    lakehouse: Lakehouse
    tables: Sequence[Table]
    """The chosen tables."""
    patient: bool
    allow_large: bool
    force: bool
    """Whether work is done below its thresholds too."""
    healths: dict[str, TableHealth] = field(default_factory=dict)
    memories: dict[str, Memory] = field(default_factory=dict)
    done: list[Done] = field(default_factory=list)
    left: list[NotTaken] = field(default_factory=list)
    """Actions that the budget did not suffice for after all."""
    faults: list[str] = field(default_factory=list)
    """What must be shown in red, a sentence each."""

    def run(self, levels: Collection[Level], budget: int, dry_run: bool) -> tuple[dict[str, Any], list[str]]:
        """Maintains the tables, and returns what the run shows and its faults.

        budget: bytes that may be rewritten. dry_run: only plan.
        """
        self._look()
        cares = {table.identifier: table.maintenance for table in self.tables}
        policy = Policy(levels, self.rates, cares, FORCED if self.force else DEFAULTS, self.patient)
        busy = flights(self.context.instance, self.tables, location_of(self.context.run))
        planned = plan(self.healths.values(), policy, budget, self.memories, busy, time.time())
        if dry_run:
            self._look_through(planned.taken)
            return {PLAN: plan_table(planned), **self._shown(planned.taken, levels)}, self.faults
        self._carry_out(planned.taken, budget)
        self._evaluate_checks({action.table for action in planned.taken})
        left = [of.action for of in self.left]
        shown = Plan(tuple(a for a in planned.taken if a not in left), (*planned.not_taken, *self.left))
        tables = {PLAN: plan_table(shown), "done": done_table(self.done)}
        return {**tables, **self._shown(planned.taken, levels)}, self.faults

    def _shown(self, taken: Sequence[Action], levels: Collection[Level]) -> dict[str, Any]:
        """Returns what the collector found, if it was asked, and the numbers of tables that nothing is done to."""
        done_to = {action.table for action in taken}
        others = [health for name, health in self.healths.items() if name not in done_to]
        measured = measured_table(others, levels)
        return {LOOKED_AT: len(self.healths), **collection_tables(self.means.reports), MEASURED: measured}

    def _look_through(self, actions: Sequence[Action]) -> None:
        """Looks through the storage of tables in a dry run, as only that shows which files nobody needs."""
        for action in (of for of in actions if of.level is Level.COLLECT):
            try:
                report = look_through(
                    self.means.site, action.table, self.means.run.text, allow_large=self.allow_large, dry_run=True
                )
            except Exception as error:  # catalogs and storages have errors of their own
                self._fault(f"{action.table}, {action.level}", error)
                continue
            self.means.reports.append(report)
            self.faults += [f"{action.table}, {action.level}: {problem.message}" for problem in report.problems]

    @cached_property
    def reader(self) -> HealthReader:
        """The reader of the tables' health, from the catalog and Dagster's instance."""
        return HealthReader.of(self.lakehouse, self.lakehouse.catalog(), self.context.instance)

    @cached_property
    def store(self) -> MemoryStore:
        """The store of what maintenance remembers of each table."""
        return memory_store(self.lakehouse)

    @cached_property
    def rates(self) -> Rates:
        """The rates by which the cost of work on each engine is estimated in this environment."""
        return rates(self.lakehouse.settings)

    @cached_property
    def means(self) -> Means:
        """The means by which this run carries out its actions; its own id and creation time are their token."""
        record = self.context.instance.get_run_record_by_id(self.context.run.run_id)
        assert record, "Dagster's storage has the run that it executes"
        return Means(
            self.context,
            self.lakehouse,
            self.reader.catalog,
            {table.identifier: table for table in self.tables},
            self.rates,
            RunToken(self.context.run.run_id, record.create_timestamp),
            {"lakehouse.run-id": self.context.run.run_id},
            site_of(self.lakehouse, self.context.instance),
            self.allow_large,
            LEAST_INPUT_FILES if self.force else MIN_INPUT_FILES,
        )

    def _look(self) -> None:
        """Reads the health and the memory of the tables that exist.

        A table whose health can't be read is a fault; the others are maintained.
        """
        for table in self.tables:
            try:
                if loaded := self.reader.load(table):
                    health = self.reader.health(table, loaded)
                    self.healths[table.identifier] = health
                    self.memories[table.identifier] = self.store.read(health.uuid)
            except Exception as error:
                self._fault(table.identifier, error)

    def _fault(self, where: str, error: Exception) -> None:
        self.faults.append(f"{where}: {full_disk(error, self.lakehouse.settings) or error_text(error)}")

    def _carry_out(self, actions: Sequence[Action], budget: int) -> None:
        for action in actions:
            spent = sum(done.cost.size for done in self.done)
            if spent + action.size > budget:
                self.left.append(NotTaken(action, "budget: the actions before it rewrote more than was expected"))
                continue
            started = time.time()
            try:
                done = carry_out(self.means, action)
            except Exception as error:  # catalogs and storages have errors of their own
                self._fault(f"{action.table}, {action.level}", error)
                cost = self.rates[action.engine].of_seconds(time.time() - started)
                self._remember(action, Found(Ending.FAILED, 0, cost))
                continue
            result = done.result
            self.context.log.info(f"{action.table}, {action.level}: {result.summary}, in {done.cost.seconds:.1f} s")
            self.done.append(done)
            self.faults += [f"{action.table}, {action.level}: {fault}" for fault in result.faults]
            self._remember(action, done.found)

    def _remember(self, action: Action, found: Found) -> None:
        """Keeps what became of an action, at once: the run may be killed before its next action."""
        start = self.rates[action.engine].start if action.level in OF_PARTITIONS else 0.0
        known = self.memories[action.table]
        self.memories[action.table] = known.after(action, found, self.context.run.run_id, time.time(), start)
        try:
            self.store.write(self.healths[action.table].uuid, self.memories[action.table])
        except OSError as error:
            self._fault(f"{action.table}: what was learned can't be kept, nothing will cool down", error)

    def _evaluate_checks(self, identifiers: Collection[str]) -> None:
        """Reports the checks' results after the work, which is done whether or not they can be found out.

        The checks of a table that a run writes are left to that run.
        """
        instance = self.context.instance
        for table in (table for table in self.tables if table.identifier in identifiers):
            stored = Stored.of(instance, table.key, time.time())
            for check, verdict in verdicts_now(table, lambda: self.reader).items() if not stored.is_awaited else ():
                evaluation, said = verdict.evaluation(table.key, check), stored.said.get(check)
                if not (said and said.says(evaluation)):
                    instance.report_runless_asset_event(evaluation)
