"""The job ``lakehouse_rollback``: shows what a rollback undoes, performs it, and updates Dagster's partitions."""

# No `from __future__ import annotations`: Dagster needs the annotations as objects, not as text.

from collections.abc import Sequence
from typing import Any

import dagster as dg
from pydantic import Field

from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import find_table, with_retries
from lakehouse_assets.errors import LakehouseError, RollbackRefused
from lakehouse_assets.keys_text import keys_text
from lakehouse_assets.run.in_flight import flights, location_of
from lakehouse_assets.run.jobs import chosen_tables, job_of, shown_table
from lakehouse_assets.run.resource import Lakehouse

ROLLBACK = "lakehouse_rollback"
UNDONE, HEAD, TARGET, TOLD = "undone", "head", "target", "partitions_changed"
"""The metadata of the job's output."""
BACK = "back: "
"""Precedes the operation of a restored snapshot."""


class RollbackConfig(dg.Config):
    """The table, and the snapshot to roll it back to. Shows in the launchpad."""

    # The launchpad fills in only fields that have a default. The job refuses these defaults.
    table: str = Field("", description="Required: the identifier of the table, such as nyc.flights.")
    to: str = Field(
        "",
        description="Required: the id of a snapshot; a time in ISO 8601, for the snapshot that was current then; or "
        "release:12, for the one in a release.",
    )
    head: str = Field(
        "", description="The snapshot at which main must be: nothing is done if others have committed since."
    )
    dry_run: bool = Field(True, description="true: only show what would be undone. false: roll back.")


def rollback_job(tables: Sequence[Table]) -> dg.JobDefinition:
    """Returns the job for these tables."""

    @dg.op(name="rollback", out=dg.Out(dg.Nothing))
    def rollback(
        context: dg.OpExecutionContext, config: RollbackConfig, lakehouse: dg.ResourceParam[Lakehouse]
    ) -> None:
        if not (config.table and config.to):
            raise dg.Failure("name a table, and the snapshot to roll it back to", allow_retries=False)
        (table,) = chosen_tables([config.table], tables)
        try:
            context.add_output_metadata(_rollback(context, config, table, lakehouse))
        except (LakehouseError, OSError) as error:  # OSError: networks, catalogs
            raise dg.Failure(str(error), allow_retries=False) from error

    return job_of(rollback, RollbackConfig, ROLLBACK, "Rolls a table back to one of its snapshots.")


def _rollback(
    context: dg.OpExecutionContext, config: RollbackConfig, table: Table, lakehouse: Lakehouse
) -> dict[str, Any]:
    """Rolls the table back, or with ``dry_run`` only looks; returns the output's metadata."""
    # Imported here, because definitions then load faster.
    from lakehouse_assets.rollback.rollback import (
        COLUMNS,
        Rollback,
        events_after,
        partitions_by_snapshot,
        roll_back,
        snapshot_of,
        snapshot_rows,
        source_problem,
    )

    catalog = lakehouse.catalog()
    found = with_retries(lambda: find_table(catalog, table.identifier))
    if found is None or (head := found.current_snapshot()) is None:
        raise RollbackRefused(f"table {table.identifier}: there is nothing to roll back, because it has no snapshot")
    rollback = Rollback(found.metadata, snapshot_of(table.identifier, found.metadata, config.to, catalog))
    target = rollback.target.snapshot_id
    # A job that died after its commit can be run again: main is at the target, and only events are missing.
    if config.head not in ("", str(head.snapshot_id)) and head.snapshot_id != target:
        raise RollbackRefused(
            f"table {table.identifier}: expected main at snapshot {config.head}, found {head.snapshot_id}: another "
            "commit came in between. Nothing was changed; check the table again"
        )
    _refuse_meanwhile(context, table)
    if problem := source_problem(table, rollback.after):
        raise RollbackRefused(
            f"table {table.identifier}: after the rollback, no run could move the removed rows again: {problem}. "
            "Nothing was changed"
        )
    keys = partitions_by_snapshot(context.instance, table, [*rollback.undone, *rollback.restored])
    rows = [*snapshot_rows(rollback.undone, keys), *snapshot_rows(rollback.restored, keys, BACK)]
    changed = {key for of in keys.values() for key in of}
    events = list(events_after(context.instance, table, changed, rollback.elsewhere, target))
    if not config.dry_run:
        roll_back(catalog, table.identifier, target, head.snapshot_id)
        for event in events:
            context.log_event(event)
    return {
        UNDONE: shown_table(COLUMNS, rows),
        HEAD: str(head.snapshot_id),
        TARGET: str(target),
        TOLD: keys_text([event.partition or "" for event in events]) if events else "none",
    }


def _refuse_meanwhile(context: dg.OpExecutionContext, table: Table) -> None:
    """Raises RollbackRefused while runs write the table: they would publish on top of undone snapshots."""
    writing = flights(context.instance, [table], location_of(context.run)).get(table.identifier, [])
    if writing:
        names = ", ".join(flight.name for flight in writing)
        raise RollbackRefused(
            f"table {table.identifier}: {names} is writing to it. Wait until it ends, or terminate it. Nothing was "
            "changed"
        )
