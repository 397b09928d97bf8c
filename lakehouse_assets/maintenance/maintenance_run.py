"""One run of the maintenance job: what it does table by table, what it shows, and what earlier runs did."""

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
from lakehouse_assets.health.health import TableHealth, error_text, size_text
from lakehouse_assets.health.look import HealthReader
from lakehouse_assets.health.verdicts import Stored, verdicts_now
from lakehouse_assets.maintenance.level import Action, MaintenanceLevel, Means, Result
from lakehouse_assets.maintenance.levels import collection_tables, site_of
from lakehouse_assets.maintenance.policy import Plan, Policy, candidates, plan
from lakehouse_assets.run.in_flight import MAINTENANCE, UNFINISHED, flights, location_of, tags_of_location
from lakehouse_assets.run.jobs import shown_table
from lakehouse_assets.run.resource import Lakehouse

PLAN_COLUMNS = ("table", "level", "by", "why", "expected gain", "size", "seconds", "verdict")
DONE_COLUMNS = (
    *("table", "level", "by", "expected gain", "gain", "expected size", "size", "expected seconds", "seconds"),
    *("USD", "proof", "result", "dropped"),
)


@dataclass(frozen=True)
class Done:
    """The work that an action really did, beside what was expected of it."""

    action: Action
    result: Result
    seconds: float


def plan_table(plan: Plan) -> dg.TableMetadataValue:
    """Returns the plan as the UI shows it; empty where nothing is worth doing."""
    return shown_table(PLAN_COLUMNS, _rows(plan))


def done_table(done: Iterable[Done]) -> dg.TableMetadataValue:
    """Returns the table of what the actions did, beside what was expected of them."""
    return shown_table(DONE_COLUMNS, map(_done_cells, done))


def measured_table(healths: Sequence[TableHealth], levels: Iterable[MaintenanceLevel]) -> dg.TableMetadataValue:
    """Returns the numbers of tables beside their limits, for those of these levels that have a limit."""
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


SENSOR = "lakehouse_maintenance_due"
"""The sensor whose runs count. What a person or a schedule asks for is bounded by who asks."""
TABLE_TAG = "lakehouse/maintained."
"""The beginning of a run's tag for each of its tables; the rest is the table's identifier."""
DONE, FAILED, UNDER_WAY = "done", "failed", "under way"
"""The values of that tag. In a run that has ended, a table that is under way was at work when the run was killed."""
REWRITTEN_TAG = "lakehouse/rewritten-bytes"
"""The tag with the bytes that a run has rewritten; while an action is at work, those that it is expected to."""
HOUR, DAY = 3600.0, 86_400.0
PAUSE = HOUR
"""Seconds from one run's end to the next run: what needs work meanwhile is planned together."""
AFTER_SUCCESS = 16 * HOUR
"""Seconds until a table that was maintained is maintained again; the number is OpenHouse's. What work can't mend, as
snapshots that tags keep, costs no more than that."""
FIRST_WAIT, LONGEST_WAIT = HOUR, 24 * HOUR
"""Seconds that a table waits after it failed: the first, doubled with each further failure, up to the longest, so that
it is tried once a day at the least."""
LATEST = 100
"""The number of runs that are looked at: four days' and more, so all failures until the wait is the longest."""


def forget_parent(context: dg.OpExecutionContext) -> None:
    """Empties the notes in the run's tags when it begins: Dagster gives a re-executed run its parent's."""
    notes = [name for name in context.run.tags if name.startswith((TABLE_TAG, REWRITTEN_TAG))]
    context.instance.add_run_tags(context.run_id, dict.fromkeys(notes, ""))


def note_table(context: dg.OpExecutionContext, table: str, fared: str) -> None:
    """Notes in the run's tags how a table fares. fared: DONE, FAILED or UNDER_WAY."""
    context.instance.add_run_tags(context.run_id, {f"{TABLE_TAG}{table}": fared})


def note_rewritten(context: dg.OpExecutionContext, size: int) -> None:
    """Notes in the run's tags how many bytes it has rewritten, or is about to have."""
    context.instance.add_run_tags(context.run_id, {REWRITTEN_TAG: str(size)})


@dataclass(frozen=True)
class RunHistory:
    """The runs of maintenance that the sensor asked for, the latest first."""

    records: Sequence[dg.RunRecord]

    @classmethod
    def of(cls, instance: dg.DagsterInstance, location: str | None) -> RunHistory:
        """Reads the history by one query.

        location: the name of the caller's code location, if it has one: another one may have such a sensor too.
        """
        tags = {"dagster/sensor_name": SENSOR, **tags_of_location(location)}
        return cls(instance.get_run_records(dg.RunsFilter(job_name=MAINTENANCE, tags=tags), limit=LATEST))

    def wait(self, now: float) -> str:
        """Tells why no run may be asked for, whatever the tables need; empty if one may. now: seconds since 1970."""
        if not self.records:
            return ""
        latest = self.records[0]
        if latest.dagster_run.status in UNFINISHED:
            return f"run {latest.dagster_run.run_id} is queued or under way"
        return "the last run ended less than an hour ago" if now - _ended(latest) < PAUSE else ""

    def wait_of(self, table: str, now: float) -> str:
        """Tells why a table is left for later: it was done a short while ago, or it failed; empty if it is not."""
        failures, ended = 0, 0.0
        for record in self.records:
            if not (fared := _fared(record.dagster_run, table)):
                continue
            ended = ended or _ended(record)
            if fared == DONE:
                break
            failures += 1
        pause = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** (failures - 1)) if failures else AFTER_SUCCESS
        if now - ended >= pause:
            return ""
        if failures:
            return f"failures in a row: {failures}; it is tried again {pause / HOUR:g} h after the last"
        return f"it was maintained less than {pause / HOUR:g} hours ago"

    def rewritten(self, now: float) -> int:
        """Counts the bytes that runs of the last 24 hours have rewritten."""
        runs = [record.dagster_run for record in self.records if now - record.create_timestamp.timestamp() < DAY]
        return sum(int(run.tags.get(REWRITTEN_TAG) or 0) for run in runs)

    @property
    def run_key(self) -> str:
        """The key of the next run, by which a tick that is repeated asks for the same run.

        Dagster never starts a second run with a key, whatever became of the first, so each names the run before it.
        """
        return f"after {self.records[0].dagster_run.run_id if self.records else 'none'}"


def _ended(record: dg.RunRecord) -> float:
    return record.end_time or record.update_timestamp.timestamp()


def _fared(run: dg.DagsterRun, table: str) -> str:
    """Returns how a table fared in a run that has ended: DONE or FAILED; empty if nothing was done to it.

    A run that failed before it noted anything failed for all its tables.
    """
    if noted := run.tags.get(f"{TABLE_TAG}{table}"):
        return DONE if noted == DONE else FAILED
    if run.status is dg.DagsterRunStatus.SUCCESS or any(
        value and name.startswith(TABLE_TAG) for name, value in run.tags.items()
    ):
        return ""
    asked_for: Any = run.run_config.get("tables", ())
    return FAILED if table in asked_for else ""


LOOKED_AT, PLAN, MEASURED = "tables", "plan", "measured"
"""Keys of what the run shows: number of tables looked at, plan, numbers of tables that nothing is done to."""


@dataclass
class MaintenanceRun:
    """One run of the maintenance job, with what it has found and done so far."""

    context: dg.OpExecutionContext
    lakehouse: Lakehouse
    declared: Sequence[Table]
    """All tables of the code location: runs of any may read a chosen one."""
    tables: Sequence[Table]
    """The chosen tables."""
    known: Sequence[MaintenanceLevel]
    """All levels."""
    policy: Policy
    allow_large: bool
    domains: Collection[str] = ()
    """As for maintenance_job()."""
    healths: dict[str, TableHealth] = field(default_factory=dict)
    done: list[Done] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """What must be shown in red, a sentence each."""
    failed: set[str] = field(default_factory=set)
    """The tables of which an action failed, or met a faster writer in all its parts."""

    def run(self, budget: int, dry_run: bool) -> tuple[dict[str, Any], list[str]]:
        """Maintains the tables, and returns what the run shows and its faults.

        budget: bytes that may be rewritten. dry_run: only plan.
        """
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
        """Returns what the collector found, if it was asked, and the numbers of tables that nothing is done to."""
        done_to = {action.table for action in taken}
        others = [health for name, health in self.healths.items() if name not in done_to]
        measured = measured_table(others, self.policy.levels)
        return {LOOKED_AT: len(self.healths), **collection_tables(self.means.reports), MEASURED: measured}

    @cached_property
    def reader(self) -> HealthReader:
        """The reader of the tables' health, from the catalog and Dagster's instance."""
        return HealthReader.of(self.lakehouse, self.lakehouse.catalog(), self.context.instance)

    @cached_property
    def means(self) -> Means:
        """The means by which this run carries out its actions; its own id and creation time are their token."""
        record = self.context.instance.get_run_record_by_id(self.context.run.run_id)
        assert record, "Dagster's storage has the run that it executes"
        return Means(
            self.context,
            self.lakehouse,
            self.reader.catalog,
            {table.identifier: table for table in self.declared},
            RunToken(self.context.run.run_id, record.create_timestamp),
            site_of(self.lakehouse, self.context.instance),
            self.allow_large,
            self.policy.force,
            {*self.domains, *(table.domain for table in self.declared)},
        )

    def _look(self) -> None:
        """Reads the health of the tables that exist.

        A table whose health can't be read is a fault; the others are maintained.
        """
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
            except Exception as error:  # catalogs and storages have errors of their own
                self._fault(f"{action.table}, {action.level.name}", error)
                continue
            self.faults += [f"{action.table}, {action.level.name}: {fault}" for fault in faults]

    def _fault(self, where: str, error: Exception) -> None:
        self.faults.append(f"{where}: {full_disk(error, self.lakehouse.settings) or error_text(error)}")

    def _carry_out(self, actions: Sequence[Action]) -> None:
        """Carries out actions one after the other.

        The run's tags say beforehand which table is at work: whoever kills the run leaves that table's name there.
        """
        rewritten = 0
        for action in actions:
            note_rewritten(self.context, rewritten + action.size)
            note_table(self.context, action.table, UNDER_WAY)
            rewritten += self._done(action)
            note_rewritten(self.context, rewritten)
            note_table(self.context, action.table, FAILED if action.table in self.failed else DONE)

    def _done(self, action: Action) -> int:
        """Carries out an action, and returns the bytes that it rewrote; those that were expected where it failed."""
        where, started = f"{action.table}, {action.level.name}", time.monotonic()
        try:
            result = action.level.carry_out(self.means, action)
        except Exception as error:  # catalogs and storages have errors of their own
            self._fault(where, error)
            self.failed.add(action.table)
            return action.size
        seconds = time.monotonic() - started
        self.context.log.info(f"{where}: {result.summary}, in {seconds:.1f} s")
        self.done.append(Done(action, result, seconds))
        self.faults += [f"{where}: {fault}" for fault in result.faults]
        if result.faults or result.in_vain:
            self.failed.add(action.table)
        return result.size

    def _evaluate_checks(self, identifiers: Collection[str]) -> None:
        """Reports the checks' results after the work, which is done whether or not they can be found out.

        The checks of a table that a run writes are left to that run.
        """
        instance = self.context.instance
        for table in (table for table in self.tables if table.identifier in identifiers):
            stored = Stored.of(instance, table.key, time.time())
            if stored.is_awaited:
                continue
            for check, verdict in verdicts_now(table, self.known, lambda: self.reader).items():
                evaluation, said = verdict.evaluation(table.key, check), stored.said.get(check)
                if not (said and said.says(evaluation)):
                    instance.report_runless_asset_event(evaluation)
