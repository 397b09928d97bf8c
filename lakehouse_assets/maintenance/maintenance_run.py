"""One run of the maintenance job: looks, plans, works table by table, and shows the results."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import dagster as dg

from lakehouse_assets.commit.tokens import RunToken
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.disk import full_disk
from lakehouse_assets.maintenance.health.findings import error_text, size_text
from lakehouse_assets.maintenance.health.health import TableHealth
from lakehouse_assets.maintenance.health.look import HealthReader
from lakehouse_assets.maintenance.health.verdicts import LastEvaluations, verdicts_now
from lakehouse_assets.maintenance.level import Action, MaintenanceContext, MaintenanceLevel, Result
from lakehouse_assets.maintenance.levels import collection_tables, site_of
from lakehouse_assets.maintenance.policy import Plan, Policy, candidates, plan
from lakehouse_assets.maintenance.run_history import DONE, FAILED, UNDER_WAY, forget_parent, note_rewritten, note_table
from lakehouse_assets.run.extension import Extension
from lakehouse_assets.run.in_flight import flights, location_of
from lakehouse_assets.run.jobs import shown_table
from lakehouse_assets.run.resource import Lakehouse

PLAN_COLUMNS = ("table", "level", "by", "why", "expected gain", "size", "seconds", "verdict")
DONE_COLUMNS = (
    *("table", "level", "by", "expected gain", "gain", "expected size", "size", "expected seconds", "seconds"),
    *("USD", "proof", "result", "dropped"),
)


@dataclass(frozen=True)
class Done:
    """What an action did."""

    action: Action
    result: Result
    seconds: float


def plan_table(plan: Plan) -> dg.TableMetadataValue:
    """Returns the plan for the UI."""
    return shown_table(PLAN_COLUMNS, _rows(plan))


def done_table(done: Iterable[Done]) -> dg.TableMetadataValue:
    """Compares results with estimates."""
    return shown_table(DONE_COLUMNS, map(_done_cells, done))


def measured_table(healths: Sequence[TableHealth], levels: Iterable[MaintenanceLevel]) -> dg.TableMetadataValue:
    """Returns each table's numbers and their limits, for the levels that have some."""
    shown = [level for level in levels if any(map(level.measured, healths))]
    rows = ((health.identifier, *(level.measured(health) for level in shown)) for health in healths)
    return shown_table(("table", *(level.name for level in shown)), rows if shown else ())


def _rows(plan: Plan) -> Iterator[tuple[str, ...]]:
    for action in plan.taken:
        yield (*_cells(action), "taken")
    for left in plan.not_taken:
        yield (*_cells(left.action), f"not taken: {left.why}")


def _cells(action: Action) -> tuple[str, ...]:
    numbers = str(action.gain), size_text(action.size), f"{action.seconds:.1f}"
    return action.table, action.level.name, action.engine.value, action.reason, *numbers


def _done_cells(done: Done) -> tuple[str, ...]:
    action, result = done.action, done.result
    usd = sum(usage.estimated_usd for usage in result.usages)
    return (
        *(action.table, action.level.name, action.engine.value, str(action.gain), str(result.gain)),
        *(size_text(action.size), size_text(result.size), f"{action.seconds:.1f}", f"{done.seconds:.1f}"),
        *(f"{usd:.4f}" if usd else "0", result.proof, result.summary, "; ".join(result.dropped)),
    )


LOOKED_AT, PLAN, MEASURED = "tables", "plan", "measured"
"""Names of the run's metadata that ``lakehouse maintain`` reads."""


@dataclass
class MaintenanceRun:
    """One run of the maintenance job."""

    context: dg.OpExecutionContext
    lakehouse: Lakehouse
    declared: Sequence[Table]
    """All tables: runs of any may read a chosen one."""
    extensions: Sequence[Extension]
    tables: Sequence[Table]
    """The chosen ones."""
    known: Sequence[MaintenanceLevel]
    """All levels, chosen or not: the checks evaluate all."""
    policy: Policy
    allow_large: bool
    domains: Collection[str] = ()
    healths: dict[str, TableHealth] = field(default_factory=dict)
    done: list[Done] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)
    """Tables with an action that failed, or of which nothing landed."""

    def run(self, budget: int, dry_run: bool) -> tuple[dict[str, Any], list[str]]:
        """Looks, plans and, unless it is a dry run, works. Returns metadata, and faults. budget: bytes to rewrite."""
        forget_parent(self.context)
        self._look()
        writing, now = flights(self.context.instance, self.tables, location_of(self.context.run)), time.time()
        asked = [candidates(of, self.policy, writing.get(name, ()), now) for name, of in self.healths.items()]
        planned = plan([candidate for of_table in asked for candidate in of_table], self.policy, budget)
        if dry_run:
            self._look_closer(planned.taken)
            return {PLAN: plan_table(planned), **self._shown(planned.taken)}, self.faults
        self._carry_out(planned.taken)
        self._evaluate_checks({action.table for action in planned.taken})
        return {PLAN: plan_table(planned), "done": done_table(self.done), **self._shown(planned.taken)}, self.faults

    def _shown(self, taken: Sequence[Action]) -> dict[str, Any]:
        with_work = {action.table for action in taken}
        # The plan shows the numbers of tables with work. Unless it is a dry run, the work has changed them.
        others = [health for name, health in self.healths.items() if name not in with_work]
        measured = measured_table(others, self.policy.levels)
        return {LOOKED_AT: len(self.healths), **collection_tables(self.means.reports), MEASURED: measured}

    @cached_property
    def reader(self) -> HealthReader:
        """Reads the tables' health."""
        return HealthReader.of(self.lakehouse, self.lakehouse.catalog(), self.context.instance)

    @cached_property
    def means(self) -> MaintenanceContext:
        """What this run's actions need."""
        record = self.context.instance.get_run_record_by_id(self.context.run.run_id)
        assert record, "Dagster's storage has the run that it executes"
        return MaintenanceContext(
            self.context,
            self.lakehouse,
            self.reader.catalog,
            {table.identifier: table for table in self.declared},
            RunToken(self.context.run.run_id, record.create_timestamp),
            site_of(self.lakehouse, self.context.instance),
            self.extensions,
            self.allow_large,
            self.policy.force,
            {*self.domains, *(table.domain for table in self.declared)},
        )

    def _look(self) -> None:
        """Reads the health of all chosen tables. One that can't be read is a fault; the others are maintained."""
        for table in self.tables:
            try:
                if loaded := self.reader.load(table):
                    self.healths[table.identifier] = self.reader.health(table, loaded)
            except Exception as error:
                self._fault(table.identifier, error)
                note_table(self.context, table.identifier, FAILED)

    def _look_closer(self, actions: Sequence[Action]) -> None:
        for action in actions:
            try:
                faults = action.level.look(self.means, action).faults
            except Exception as error:  # catalogs and storages raise errors of many classes
                self._fault(f"{action.table}, {action.level.name}", error)
                continue
            self.faults += [f"{action.table}, {action.level.name}: {fault}" for fault in faults]

    def _fault(self, where: str, error: Exception) -> None:
        self.faults.append(f"{where}: {full_disk(error, self.lakehouse.settings) or error_text(error)}")

    def _carry_out(self, actions: Sequence[Action]) -> None:
        """Carries actions out. Tags name the table and the expected bytes beforehand, so that a killed run counts."""
        rewritten = 0
        for action in actions:
            note_rewritten(self.context, rewritten + action.size)
            note_table(self.context, action.table, UNDER_WAY)
            rewritten += self._done(action)
            note_rewritten(self.context, rewritten)
            note_table(self.context, action.table, FAILED if action.table in self.failed else DONE)

    def _done(self, action: Action) -> int:
        """Carries an action out. Returns the rewritten bytes, or the expected ones after a failure."""
        where, started = f"{action.table}, {action.level.name}", time.monotonic()
        try:
            result = action.level.carry_out(self.means, action)
        except Exception as error:  # catalogs and storages raise errors of many classes
            self._fault(where, error)
            self.failed.add(action.table)
            return action.size
        seconds = time.monotonic() - started
        self.context.log.info(f"{where}: {result.summary}, in {seconds:.1f} s")
        self.done.append(Done(action, result, seconds))
        self.faults += [f"{where}: {fault}" for fault in result.faults]
        if result.faults or result.nothing_landed:
            self.failed.add(action.table)
        return result.size

    def _evaluate_checks(self, identifiers: Collection[str]) -> None:
        """Evaluates tables' checks and stores changed results. Leaves out tables that a current run will evaluate."""
        instance = self.context.instance
        for table in (table for table in self.tables if table.identifier in identifiers):
            stored = LastEvaluations.of(instance, table.key, time.time())
            if stored.run_pending:
                continue
            for check, verdict in verdicts_now(table, self.known, lambda: self.reader).items():
                evaluation, said = verdict.evaluation(table.key, check), stored.said.get(check)
                if not (said and said.same_as(evaluation)):
                    instance.report_runless_asset_event(evaluation)
