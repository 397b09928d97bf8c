"""Tables as Dagster assets, and the job of `lakehouse plan`."""

# No `from __future__ import annotations`: Dagster needs the annotations as objects, not as text.

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg
from pydantic import Field

from lakehouse_assets.declare.columns import column_schema
from lakehouse_assets.declare.table import AUDIT, Table
from lakehouse_assets.drive.liveness import keep_verdicts
from lakehouse_assets.environment.disk import full_disk
from lakehouse_assets.environment.env_reader import SettingsError
from lakehouse_assets.environment.machine import SetupError
from lakehouse_assets.environment.output import redact
from lakehouse_assets.errors import LakehouseError, PublishContended
from lakehouse_assets.run.extension import Extension
from lakehouse_assets.run.jobs import OWN_ROWS, TABLE_NAME, chosen_tables, job_of, shown_table
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.wire.code import step_of

# Dagster would warn of these beta features in each run. They are used on purpose: its version is pinned.
warnings.filterwarnings("ignore", "Parameter `backfill_policy`", dg.BetaWarning)
warnings.filterwarnings("ignore", "Function `PipesMessageReader.expected_writer_count`", dg.PreviewWarning)


def table_asset(table: Table, extensions: Sequence[Extension]) -> dg.AssetsDefinition:
    """Makes the Dagster asset of a declared table."""

    @dg.asset(
        key=table.key,
        description=table.description or step_of(table.step).description() or None,
        group_name=table.domain,
        owners=list(table.owners),
        kinds={"iceberg", "pyspark", *table.kinds},
        partitions_def=table.partitions,
        deps=[*table.deps, *([table.source_key] if table.source_key else [])],
        backfill_policy=dg.BackfillPolicy.single_run(),
        code_version=table.code_version,
        automation_condition=table.automation,
        retry_policy=table.retry_policy,
        metadata={
            TABLE_NAME: table.identifier,
            "dagster/column_schema": column_schema(table.schema),
            "partitioned_by": ", ".join(table.partitioned_by) or "nothing",
            OWN_ROWS: table.partitions is not None and table.write_mode.owns_partitions,
        },
        check_specs=[
            dg.AssetCheckSpec(
                AUDIT,
                asset=table.key,
                blocking=True,
                description="Checks the staged rows before anyone sees them: their partitions, required columns, "
                "unique keys, empty partitions, declared checks and bounds. If it fails, nothing is published.",
            )
        ],
    )
    def asset(
        context: dg.AssetExecutionContext, lakehouse: dg.ResourceParam[Lakehouse]
    ) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult[Any]]:
        from lakehouse_assets.run.table_run import materialize  # slow to import, and only runs need it

        try:
            yield from materialize(context, table, lakehouse, extensions)
        except Exception as error:
            # Else Dagster would show the run's checks, which are not reached, as failed.
            keep_verdicts(context.instance, context.run, context.get_step_execution_context().step.key)
            redact(error)
            # Only a run that was launched from a code location has this origin.
            by_command = context.run.remote_job_origin is None
            if (failure := _failure(error, table, lakehouse, by_command=by_command)) is None:
                raise
            if by_command:
                failure = _of_command(failure, table)
            # A Failure is raised itself or as a copy. It keeps its cause, and must not become its own cause.
            raise failure from (error.__cause__ if isinstance(error, dg.Failure) else error)

    return asset


def _failure(error: Exception, table: Table, lakehouse: Lakehouse, *, by_command: bool) -> dg.Failure | None:
    """Returns the failure that a person should read; None if the error itself, with its traceback, says it best."""
    if isinstance(error, dg.Failure):
        return error
    if isinstance(error, (LakehouseError, SettingsError, SetupError)):
        # Of these, only contention passes by itself: the others need a person.
        return dg.Failure(str(error), allow_retries=isinstance(error, PublishContended))
    full = full_disk(error, lakehouse.settings)  # libraries raise all kinds of errors for it
    # An OSError comes from a network or an object store. Any other error may be a bug, so its traceback is needed.
    if not (full or isinstance(error, OSError)):
        return None
    advice = "" if by_command else ". What was staged is kept; fix the problem and re-execute from failure"
    return dg.Failure(f"table {table.identifier}: {full or error}{advice}")


def _of_command(failure: dg.Failure, table: Table) -> dg.Failure:
    """Adds what to do instead of re-executing: the UI can't, if Dagster has not stored the run's code location."""
    twice = ", and adds again the rows of partitions that this one has published: leave those out"
    again = twice if table.write_mode.adds_again else ""
    instead = f"the same command begins a new run, which stages everything again{again}"
    text = f"A command launched this run, so the UI can't re-execute it: {instead}"
    said = (failure.description or "").rstrip(".")
    return dg.Failure(f"{said}. {text}", failure.metadata, failure.allow_retries)


PLAN = "lakehouse_plan"
# Names of the output's metadata that the command reads.
LOOKED_AT, FAILING = "tables_looked_at", "tables_whose_next_run_fails"


class PlanConfig(dg.Config):
    """Config of the job of `lakehouse plan`."""

    tables: list[str] = Field([], description="Identifiers such as nyc.flights; if empty, all declared tables.")


def plan_job(tables: Sequence[Table]) -> dg.JobDefinition:
    """Returns the job of `lakehouse plan`."""

    @dg.op(name="plan", out=dg.Out(dg.Nothing))
    def plan(context: dg.OpExecutionContext, config: PlanConfig, lakehouse: dg.ResourceParam[Lakehouse]) -> None:
        from lakehouse_assets.run.what_if import COLUMNS, all_differences, failing_tables

        chosen = chosen_tables(config.tables, tables)
        # Only for the graph of dependencies: no asset of it runs, so it needs no extensions.
        location = dg.Definitions([table_asset(table, ()) for table in tables], resources={"lakehouse": lakehouse})
        try:
            rows = list(all_differences(context.instance, lakehouse.catalog(), chosen, location.resolve_asset_graph()))
        except (LakehouseError, OSError) as error:  # OSError: networks, catalogs
            raise dg.Failure(str(error)) from error
        plan = shown_table(COLUMNS, [row.cells for row in rows])
        context.add_output_metadata({"plan": plan, LOOKED_AT: len(chosen), FAILING: failing_tables(rows)})

    return job_of(plan, PlanConfig, PLAN, "Shows what the declarations would change on the lake. Changes nothing.")
