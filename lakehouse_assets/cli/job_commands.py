"""Runs the jobs of `lakehouse plan` and `lakehouse maintain`, and prints what their ops have shown as metadata.

What the jobs do is run/'s and maintenance/'s; how text is laid out is terminal.py's.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

from lakehouse_assets.cli.instance import opened
from lakehouse_assets.cli.pipeline import Pipeline, failure_reason, was_interrupted
from lakehouse_assets.cli.terminal import output_to
from lakehouse_assets.cli.terminal import table as text_table
from lakehouse_assets.environment.machine import command
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.hot.warm import WARM
from lakehouse_assets.maintenance import maintenance_run
from lakehouse_assets.maintenance.job import POOL
from lakehouse_assets.run import asset
from lakehouse_assets.run.in_flight import MAINTENANCE

WIDEST = 10
"""The most columns that are shown side by side."""


def show_plan(settings: Settings, tables: Sequence[str]) -> int:
    """Shows what the declarations would change on the lake. Returns 0, or 1 if the job failed or a next run would.

    tables: identifiers; all declared tables where there are none. Expects that home.prepare was called. Raises
    KeyboardInterrupt when a signal ended the run.
    """
    failing: list[str] = []

    def told(result: dg.JobExecutionResult) -> Iterable[str]:
        if not result.success:
            return ()
        values = shown_values(result)
        failing.extend(values[asset.FAILING].value)
        count = values[asset.LOOKED_AT].value
        same = "1 table is on the lake as it is" if count == 1 else f"{count} tables are on the lake as they are"
        return shown_tables(result) or [f"{same} declared"]

    with opened(settings) as (instance, _):
        status = run_job(settings, instance, asset.PLAN, {"tables": [*tables]}, "plan.log", told)
    if failing:
        print(f"error: the next run of {', '.join(failing)} would fail", file=sys.stderr)
    return 1 if failing else status


def maintain(settings: Settings, config: Mapping[str, Any]) -> int:
    """Shows which maintenance is worth doing and, if asked to, does it. config: fields of MaintenanceConfig.

    Returns 0, or 1 if the job failed or would have to wait for others. Expects that home.prepare was called. Raises
    KeyboardInterrupt when a signal ended the run.
    """
    whole = {**config, "patient": False}  # who asks by hand does not mean later
    with opened(settings) as (instance, _):
        if problem := full_pool(instance):
            print(f"error: {problem}", file=sys.stderr)
            return 1
        return run_job(settings, instance, MAINTENANCE, whole, "maintain.log", lambda result: _told(result, config))


def warm_rows(settings: Settings, table: str, where: str) -> int:
    """Puts rows of a table back into its source. Returns 0, or 1 if the job failed.

    table: its identifier. where: a condition over its columns. Expects that home.prepare was called.
    """

    def told(result: dg.JobExecutionResult) -> Iterable[str]:
        return (
            [f"{shown_values(result)['rows'].value} rows of {table} are in its source again"] if result.success else ()
        )

    with opened(settings) as (instance, _):
        return run_job(settings, instance, WARM, {"table": table, "where": where}, "warm.log", told)


def run_job(
    settings: Settings,
    instance: dg.DagsterInstance,
    job: str,
    config: Mapping[str, Any],
    log: str,
    told: Callable[[dg.JobExecutionResult], Iterable[str]],
) -> int:
    """Runs a job and prints what is told of its result. Returns the exit status: 0, or 1 if the job failed.

    log: the name of the file below the home that gets the process's output meanwhile. Raises KeyboardInterrupt when a
    signal ended the run.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends this process like Ctrl-C
    with output_to(settings.home / log) as terminal:
        result = Pipeline().execute_job(instance, job, config)
        if was_interrupted(result):
            raise KeyboardInterrupt
        if texts := [*told(result)]:
            print("\n\n".join(texts), file=terminal)
    if result.success:
        return 0
    print(f"error: {failure_reason(result)}", file=sys.stderr)
    return 1


def full_pool(instance: dg.DagsterInstance) -> str:
    """Says why this run would wait, and what a person can do; empty if there is a free slot.

    It would wait without a word and with a busy processor: Dagster's in-process executor asks for a slot of a pool over
    and over.
    """
    info = instance.event_log_storage.get_concurrency_info(POOL)
    if not info.slot_count:
        return f"the pool {POOL} has no slots: give it one in the UI (Deployment, Concurrency)"
    holders = info.active_run_ids | info.assigned_run_ids
    if len(holders) < info.slot_count:  # a run that maintains tables has one op, and so one slot
        return ""
    return f"the run {', '.join(sorted(holders))} maintains tables: wait for its end, or terminate it in the UI"


def _told(result: dg.JobExecutionResult, config: Mapping[str, Any]) -> Iterator[str]:
    """Yields what the run has shown, and what a person may do next."""
    values = shown_values(result)
    tables = (values.get(name) for name in (maintenance_run.PLAN, maintenance_run.MEASURED))
    has_plan, measured = (bool(getattr(table, "records", ())) for table in tables)
    if result.success and not has_plan:
        numbers = ". Of each number, the limit from which on there is:" if measured else ""
        yield f"{_looked_at(result)}; nothing to mend{numbers}"
    yield from shown_tables(result)
    if has_plan and config["dry_run"]:
        yield f"nothing was changed; `{command('maintain --apply')}` does it"
    elif result.success and measured and not config["force"]:
        yield f"`{command('maintain --force')}` shows what could be done below the limits (--levels, --tables)"


def _looked_at(result: dg.JobExecutionResult) -> str:
    count = shown_values(result)[maintenance_run.LOOKED_AT].value
    return f"{count} table{'' if count == 1 else 's'} looked at" if count else "no table exists yet"


def shown_tables(result: dg.JobExecutionResult) -> list[str]:
    """Returns the shown tables that have rows, as text."""
    shown = shown_values(result).values()
    return [_text(value) for value in shown if isinstance(value, dg.TableMetadataValue) and value.records]


def shown_values(result: dg.JobExecutionResult) -> dict[str, dg.MetadataValue[Any]]:
    """Returns all metadata that the job's op has shown, by name, including what its failure has shown."""
    outputs = [event.step_output_data.metadata for event in result.all_events if event.is_successful_output]
    failures = [event.step_failure_data.user_failure_data for event in result.all_events if event.is_step_failure]
    outputs += [failure.metadata for failure in failures if failure]
    return {name: value for metadata in outputs for name, value in metadata.items()}


def _text(table: dg.TableMetadataValue) -> str:
    """Writes a line for each record, or a block where lines would be too long to read."""
    names = [column.name for column in table.schema.columns]
    rows = [[str(record.data[name]) for name in names] for record in table.records]
    if len(names) <= WIDEST:
        return text_table(names, rows)
    width = max(map(len, names))
    blocks = ((f"{name:<{width}}  {cell}" for name, cell in zip(names, row, strict=True) if cell) for row in rows)
    return "\n\n".join("\n".join(block) for block in blocks)
