"""The job ``lakehouse_take_over``: says for all to see that this catalog has a table, after another one has had it too.

What the collector does with that is collect/'s.
"""

# No `from __future__ import annotations`: Dagster needs the annotations as objects, not as text.

from collections.abc import Sequence
from typing import Any

import dagster as dg
from pydantic import Field

from lakehouse_assets.commit.owner import TAKE_OVER, OwnerMark, mark_location, read_mark
from lakehouse_assets.declare.table import Table
from lakehouse_assets.drive.this_run import process_tag
from lakehouse_assets.errors import LakehouseError
from lakehouse_assets.maintenance.pool import POOL
from lakehouse_assets.run.launchpad import own_fields
from lakehouse_assets.run.resource import Lakehouse
from resources.catalog import with_retries


class TakeOverConfig(dg.Config):
    """Says what to take over. Shows in the launchpad."""

    # It has a default, as the launchpad fills in only fields that have one. The job refuses it.
    table: str = Field(
        "",
        description="Required: its identifier, such as nyc.flights. No other catalog may have the table any more: "
        "versions of it that this catalog lacks are given up, and their files go to the trash in time.",
    )


def take_over_job(tables: Sequence[Table]) -> dg.JobDefinition:
    """Returns the job over these tables.

    It is in the pool of maintenance, so that no pass of the collector is under way meanwhile.
    """
    known = [table.identifier for table in tables]

    @dg.op(name="take_over", pool=POOL, out=dg.Out(dg.Nothing))
    def take_over(
        context: dg.OpExecutionContext, config: TakeOverConfig, lakehouse: dg.ResourceParam[Lakehouse]
    ) -> None:
        context.instance.add_run_tags(context.run_id, process_tag())  # its slot is freed if this process dies
        if config.table not in known:
            what = f"unknown table {config.table}" if config.table else "no table was named"
            raise dg.Failure(f"{what}; declared are {', '.join(known)}", allow_retries=False)
        try:
            context.add_output_metadata(_take_over(context.instance, config.table, lakehouse))
        except (LakehouseError, OSError) as error:  # OSError: disks, networks, catalogs
            raise dg.Failure(str(error)) from error

    @dg.job(
        name=TAKE_OVER,
        description="Notes that this catalog, and no other one, has a table.",
        config=own_fields("take_over", TakeOverConfig),
    )
    def job() -> None:
        take_over()

    return job


def _take_over(instance: dg.DagsterInstance, identifier: str, lakehouse: Lakehouse) -> dict[str, Any]:
    # Import what definitions need not load.
    from lakehouse_assets.collect.refusals import refusals
    from lakehouse_assets.collect.seen import load
    from lakehouse_assets.maintenance.collection import site_of
    from lakehouse_assets.storage.place import place_of

    site = site_of(lakehouse, instance)
    table = with_retries(lambda: load(site, identifier))
    now = OwnerMark.of(table, site.now_ms())
    with refusals(f"table {identifier}", "be read", place_of(mark_location(table.location()))):
        before = read_mark(table)
    site.write_mark(identifier, now, table)
    return {"catalog": now.catalog, "catalog_before": before.catalog if before else "not noted"}
