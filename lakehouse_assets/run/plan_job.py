"""The job ``lakehouse_plan``: shows what the declarations would change on the lake, and changes nothing.

What differs is found in declared.py.
"""

# No `from __future__ import annotations`: Dagster needs the annotations as objects, not as text.

from collections.abc import Sequence

import dagster as dg
from pydantic import Field

from lakehouse_assets.declare.table import Table
from lakehouse_assets.errors import LakehouseError
from lakehouse_assets.run.jobs import chosen_tables, job_of, shown_table
from lakehouse_assets.run.resource import Lakehouse

PLAN = "lakehouse_plan"
LOOKED_AT, FAILING = "tables_looked_at", "tables_whose_next_run_fails"


class PlanConfig(dg.Config):
    """Config of the job: the tables to look at. The field shows in the launchpad."""

    tables: list[str] = Field([], description="Identifiers such as nyc.flights; none: all declared tables.")


def plan_job(tables: Sequence[Table]) -> dg.JobDefinition:
    """Returns the job over these tables."""

    @dg.op(name="plan", out=dg.Out(dg.Nothing))
    def plan(context: dg.OpExecutionContext, config: PlanConfig, lakehouse: dg.ResourceParam[Lakehouse]) -> None:
        from lakehouse_assets.run.asset import table_asset
        from lakehouse_assets.run.declared import (  # definitions need not load it
            COLUMNS,
            all_differences,
            failing_tables,
        )

        chosen = chosen_tables(config.tables, tables)
        location = dg.Definitions([*map(table_asset, tables)], resources={"lakehouse": lakehouse})
        try:
            rows = list(all_differences(context.instance, lakehouse.catalog(), chosen, location.resolve_asset_graph()))
        except (LakehouseError, OSError) as error:  # OSError: networks, catalogs
            raise dg.Failure(str(error)) from error
        plan = shown_table(COLUMNS, rows)
        context.add_output_metadata({"plan": plan, LOOKED_AT: len(chosen), FAILING: failing_tables(rows)})

    return job_of(plan, PlanConfig, PLAN, "Shows what the declarations would change on the lake. Changes nothing.")
