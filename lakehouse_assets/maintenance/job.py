"""The job ``lakehouse_maintenance``: looks at tables, says what is worth doing and why, and does it unless told not to.
What is worth doing is decided in policy.py; how it is done is in actions.py."""

# No `from __future__ import annotations`: Dagster needs the annotations as objects, not as text.

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from lakehouse_assets.commit.tokens import RunToken
from lakehouse_assets.declare.table import Table
from lakehouse_assets.errors import LakehouseError
from lakehouse_assets.maintenance.checks import verdicts_now
from lakehouse_assets.maintenance.findings import Level
from lakehouse_assets.maintenance.health import TableHealth
from lakehouse_assets.maintenance.health_reader import HealthReader, summary_cache
from lakehouse_assets.maintenance.plan_tables import done_table, plan_table
from lakehouse_assets.maintenance.policy import LEVELS, Plan, plan
from lakehouse_assets.run.reaper import ACTIVE
from lakehouse_assets.run.resource import Lakehouse

if TYPE_CHECKING:
    from lakehouse_assets.maintenance.actions import Done

NAME = "lakehouse_maintenance"
POOL = "lake_maintenance"
GIB = 2**30
# Runs that write a table now, or soon.
UNFINISHED = [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED, *ACTIVE]


class Maintenance(dg.Config):
    """What to maintain. Each field shows in the launchpad."""

    tables: list[str] = Field([], description="Identifiers such as nyc.flights; none: all declared tables.")
    levels: list[str] = Field([level.value for level in LEVELS], description=f"Kinds of work, of {', '.join(LEVELS)}.")
    budget_gib: float = Field(1.0, gt=0, description="How much may be rewritten, over all tables.")
    dry_run: bool = Field(True, description="Only show what would be done, and why.")


def maintenance_job(tables: Sequence[Table]) -> dg.JobDefinition:
    """The job over these tables. One op, as all levels share the budget; Dagster's pool lets one run at a time work."""

    @dg.op(name="maintain", pool=POOL, out=dg.Out(dg.Nothing))
    def maintain(context: dg.OpExecutionContext, config: Maintenance, lakehouse: dg.ResourceParam[Lakehouse]) -> None:
        try:
            _maintain(context, config, lakehouse, tables)
        except (LakehouseError, OSError) as error:  # OSError: disks, networks, catalogs
            raise dg.Failure(str(error)) from error

    @dg.job(name=NAME, description="Rewrites small files and files with deleted rows, and expires snapshots.")
    def job() -> None:
        maintain()

    return job


def _maintain(
    context: dg.OpExecutionContext, config: Maintenance, lakehouse: Lakehouse, tables: Sequence[Table]
) -> None:
    levels, chosen = _levels(config.levels), _chosen(config.tables, tables)
    reader = HealthReader(lakehouse.catalog(), summary_cache(lakehouse), context.instance)
    healths, faults = _healths(reader, chosen)
    budget = int(config.budget_gib * GIB)
    planned = plan(healths, levels, budget, _busy(context.instance, chosen))
    shown: dict[str, Any] = {"plan": plan_table(planned), "dry_run": config.dry_run}
    if not config.dry_run:
        done, failed = _carry_out(context, reader, planned)
        faults += failed
        shown["done"] = done_table(done)
        for table in (t for t in chosen if t.identifier in {action.table for action in planned.taken}):
            _evaluate_checks(context, reader, table)
    if faults:
        raise dg.Failure("; ".join(faults), shown, allow_retries=False)
    context.add_output_metadata(shown)


def _carry_out(context: dg.OpExecutionContext, reader: HealthReader, planned: Plan) -> tuple[list["Done"], list[str]]:
    """Do all actions: what they did, and what went wrong. One that can't be done keeps no other from it."""
    from lakehouse_assets.maintenance.actions import carry_out  # imports PyArrow, which definitions need not load

    record = context.instance.get_run_record_by_id(context.run.run_id)
    assert record, "Dagster's storage has the run that it executes"
    run, properties = RunToken(context.run.run_id, record.create_timestamp), {"lakehouse.run-id": context.run.run_id}
    done: list[Done] = []
    faults: list[str] = []
    for action in planned.taken:
        try:
            found = carry_out(reader.catalog, action, run, properties)
        except Exception as error:  # catalogs and storages have errors of their own
            faults.append(f"{action.table}, {action.level}: {_text(error)}")
            continue
        context.log.info(f"{action.table}, {action.level}: {found.summary}, in {found.seconds:.1f} s")
        done.append(found)
        faults += [f"{action.table}, {action.level}: {fault}" for fault in found.faults]
    return done, faults


def _levels(names: Collection[str]) -> list[Level]:
    if unknown := sorted(set(names) - set(LEVELS)):
        raise dg.Failure(f"unknown levels: {', '.join(unknown)}; known are {', '.join(LEVELS)}", allow_retries=False)
    return [level for level in LEVELS if level in names]


def _chosen(identifiers: Collection[str], tables: Sequence[Table]) -> list[Table]:
    known = {table.identifier: table for table in tables}
    if unknown := sorted(set(identifiers) - known.keys()):
        text = f"unknown tables: {', '.join(unknown)}; declared are {', '.join(known)}"
        raise dg.Failure(text, allow_retries=False)
    return [table for name, table in known.items() if name in identifiers or not identifiers]


def _healths(reader: HealthReader, tables: Iterable[Table]) -> tuple[list[TableHealth], list[str]]:
    """The healths of the tables that are there, and a sentence for each whose health can't be read."""
    found: list[TableHealth] = []
    faults: list[str] = []
    for table in tables:
        try:
            if loaded := reader.load(table):
                found.append(reader.health(table, loaded))
        except Exception as error:  # of one table: the others are maintained all the same
            faults.append(f"{table.identifier}: {_text(error)}")
    return found, faults


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, LakehouseError) else f"{type(error).__name__}: {error}"


def _busy(instance: dg.DagsterInstance, tables: Sequence[Table]) -> set[str]:
    """The tables that a run writes now, or will soon: those of its assets; all of a run that names no assets."""
    runs = [run for run in instance.get_runs(dg.RunsFilter(statuses=UNFINISHED)) if run.job_name != NAME]
    return {t.identifier for t in tables for run in runs if run.asset_selection is None or t.key in run.asset_selection}


def _evaluate_checks(context: dg.OpExecutionContext, reader: HealthReader, table: Table) -> None:
    """Let the table's checks say how it is after the work, which is done whether or not that can be found out."""
    for check, verdict in verdicts_now(table, lambda: reader).items():
        context.instance.report_runless_asset_event(verdict.evaluation(table.key, check))
