"""Commands: `plan`, `maintain`, `rollback`, `source`, `trace`, `warm`. They expect that home.prepare was called."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any

import dagster as dg
from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.cli.instance import opened
from lakehouse_assets.cli.pipeline import Pipeline, failure_reason, was_interrupted
from lakehouse_assets.cli.terminal import output_to
from lakehouse_assets.cli.terminal import table as text_table
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.machine import command
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.errors import LakehouseError
from lakehouse_assets.extensions.sources.definitions import SQL
from lakehouse_assets.extensions.sources.postgres_session import READING, connected
from lakehouse_assets.extensions.sources.warm import WARM
from lakehouse_assets.inputs.trace import Trace, parse_time, tree_lines
from lakehouse_assets.maintenance import maintenance_run
from lakehouse_assets.maintenance.job import POOL
from lakehouse_assets.rollback.rollback_job import HEAD, ROLLBACK, TARGET, TOLD
from lakehouse_assets.run import asset
from lakehouse_assets.run.in_flight import MAINTENANCE
from lakehouse_assets.run.outdated import Metadata
from lakehouse_assets.run.what_if import metadata_of

WIDEST = 10
"""Columns side by side, at most."""


def show_plan(settings: Settings, tables: Sequence[str]) -> int:
    """Shows what declarations would change on the lake. Returns 0, or 1 if the job failed or a next run would.

    tables: empty for all. Raises KeyboardInterrupt if a signal ended the run.
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
    """Shows worthwhile maintenance and, if requested, does it. config: fields of MaintenanceConfig.

    Returns 0, or 1 if the job failed or would have to wait. Raises KeyboardInterrupt if a signal ended the run.
    """
    whole = {**config, "patient": False}  # who runs it by hand does not mean later
    with opened(settings) as (instance, _):
        if problem := full_pool(instance):
            print(f"error: {problem}", file=sys.stderr)
            return 1
        return run_job(settings, instance, MAINTENANCE, whole, "maintain.log", lambda result: _told(result, config))


def warm_rows(settings: Settings, table: str, where: str) -> int:
    """Puts rows back into a table's source. Returns 0, or 1 if the job failed.

    where: a condition over its columns.
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
    """Runs a job and prints what ``told`` makes of its result. Returns 0, or 1 if the job failed.

    log: for this process's output, below the home. Raises KeyboardInterrupt if a signal ended the run.
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
    """Returns why this run would wait, and a remedy; empty if a slot is free.

    It would wait silently and keep a processor busy: Dagster's in-process executor polls the pool.
    """
    info = instance.event_log_storage.get_concurrency_info(POOL)
    if not info.slot_count:
        return f"the pool {POOL} has no slots: give it one in the UI (Deployment, Concurrency)"
    holders = info.active_run_ids | info.assigned_run_ids
    if len(holders) < info.slot_count:  # a maintenance run has one op, and so one slot
        return ""
    return f"the run {', '.join(sorted(holders))} maintains tables: wait for its end, or terminate it in the UI"


def _told(result: dg.JobExecutionResult, config: Mapping[str, Any]) -> Iterator[str]:
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
    """Returns the tables with rows, as text."""
    shown = shown_values(result).values()
    return [_text(value) for value in shown if isinstance(value, dg.TableMetadataValue) and value.records]


def shown_values(result: dg.JobExecutionResult) -> dict[str, dg.MetadataValue[Any]]:
    """Returns the metadata of the job's op by name, including its failure's."""
    outputs = [event.step_output_data.metadata for event in result.all_events if event.is_successful_output]
    failures = [event.step_failure_data.user_failure_data for event in result.all_events if event.is_step_failure]
    outputs += [failure.metadata for failure in failures if failure]
    return {name: value for metadata in outputs for name, value in metadata.items()}


def _text(table: dg.TableMetadataValue) -> str:
    names = [column.name for column in table.schema.columns]
    rows = [[str(record.data[name]) for name in names] for record in table.records]
    if len(names) <= WIDEST:
        return text_table(names, rows)
    width = max(map(len, names))
    blocks = ((f"{name:<{width}}  {cell}" for name, cell in zip(names, row, strict=True) if cell) for row in rows)
    return "\n\n".join("\n".join(block) for block in blocks)


def rollback(settings: Settings, table: str, to: str, *, confirmed: bool) -> int:
    """Shows what a rollback undoes, asks, and rolls back. Returns 0, or 1 if refused, failed or unwanted.

    to: as the job takes it. confirmed: skips the question.
    """
    found: dict[str, str] = {}

    def told(result: dg.JobExecutionResult) -> Iterable[str]:
        if not result.success:
            return ()
        values = shown_values(result)
        found.update({name: str(values[name].value) for name in (HEAD, TARGET, TOLD)})
        head, target = found[HEAD], found[TARGET]
        if head == target:
            return [f"{table} is at snapshot {target} already; partitions that Dagster shows otherwise: {found[TOLD]}"]
        moves = f"{table}: main goes from snapshot {head} to {target}; partitions that change: {found[TOLD]}"
        return [*shown_tables(result), moves]

    config = {"table": table, "to": to}
    with opened(settings) as (instance, _):
        if status := run_job(settings, instance, ROLLBACK, config, "rollback.log", told):
            return status
        if not (confirmed or _is_wanted()):
            print("nothing was changed", file=sys.stderr)
            return 1
        # The snapshot itself: by now, a time could mean another one.
        chosen = {**config, "to": found[TARGET], "head": found[HEAD], "dry_run": False}
        return run_job(settings, instance, ROLLBACK, chosen, "rollback.log", lambda result: _done(table, result))


def _done(table: str, result: dg.JobExecutionResult) -> Iterable[str]:
    if result.success:
        head = shown_values(result)[HEAD].value
        yield f"rolled back; `lakehouse rollback {table} --to {head}` undoes it until that snapshot expires"


def _is_wanted() -> bool:
    if not sys.stdin.isatty():
        print("error: there is no terminal to ask on: add --yes to roll back", file=sys.stderr)
        return False
    return input("Roll back? [y/N] ").strip().lower() in ("y", "yes")


def source_sql(settings: Settings, name: str, *, apply: bool) -> int:
    """Prints or executes the SQL. Raises LakehouseError for a name that is no table's source."""
    with output_to(settings.home / "source.log") as terminal, opened(settings):
        graph = Pipeline().graph
        key = dg.AssetKey(["postgres", name])
        known = [one for one in graph.get_all_asset_keys() if one.path[0] == "postgres"]
        if key not in known:
            names = ", ".join(sorted(one.path[-1] for one in known)) or "none"
            raise LakehouseError(f"no table has the source PostgresTable({name!r}); known are {names}")
        text = str(graph.get(key).metadata[SQL].value).removeprefix("```sql\n").removesuffix("```")
        if apply:
            with connected(f"postgres:{name}", READING) as cursor:
                cursor.execute(text)
        print(f"{name} is set up as a source\n" if apply else text, end="", file=terminal)
    return 0


def trace(settings: Settings, name: str, partition: str | None, at: str | None) -> int:
    """Prints the tree. Returns 0, or 1 if nothing was materialized then.

    name: with dots or slashes. at: ISO 8601, UTC without a zone. Raises LakehouseError for an unknown asset, partition
    or time.
    """
    when, key = _time(at), dg.AssetKey(name.replace("/", ".").split("."))
    with output_to(settings.home / "trace.log") as terminal, opened(settings) as (instance, _):
        graph = Pipeline().graph
        if key not in graph.get_all_asset_keys():
            known = (".".join(one.path) for one in graph.materializable_asset_keys)
            raise LakehouseError(f"there is no asset {name}; known are {', '.join(sorted(known))}")
        definition = graph.get(key).partitions_def
        keys = definition.get_partition_keys(dynamic_partitions_store=instance) if definition else ()
        if partition is not None and partition not in keys:
            raise LakehouseError(f"{name} has no partition {partition}" if keys else f"{name} has no partitions")
        problems: list[str] = []
        made = Trace(instance, graph, _metadata(settings, problems)).of(key, partition, when)
        print(*tree_lines(made), *problems[:1], sep="\n", file=terminal)
    return 0 if any(one.at for one in made) else 1


def _metadata(settings: Settings, problems: list[str]) -> Metadata:
    @cache
    def lake() -> Metadata:
        return metadata_of(load_lake(settings))

    def found(key: dg.AssetKey) -> TableMetadata | None:
        try:
            return None if problems else lake()(key)
        except Exception as error:  # each catalog has its own
            problems.append(f"The catalog can't be asked what was rolled back, so this is Dagster's log alone: {error}")
            return None

    return found


def _time(at: str | None) -> datetime | None:
    try:
        return parse_time(at) if at else None
    except (ValueError, OverflowError) as error:
        raise LakehouseError(f"--at {at} is no time such as 2026-01-31T08:00: {error}") from None
