"""Finds the partitions that runs and backfills of this instance are about to write.

It spares work only: commits check again. Runs of other instances, and other engines, are not known here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dagster as dg

from lakehouse_assets.declare.table import Table
from lakehouse_assets.drive.liveness import ACTIVE

if TYPE_CHECKING:
    from dagster._core.execution.backfill import PartitionBackfill

UNFINISHED = [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED, *ACTIVE]
"""The statuses of runs that write a table now, or soon."""
ENDED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
"""The statuses of runs that are over."""
MAINTENANCE, RESTORE, REDRIVE = "lakehouse_maintenance", "lakehouse_restore", "lakehouse_redrive"
DROP_MISSING = "lakehouse_drop_missing"
"""The jobs of the code location that a person may start beside its assets, and beside TAKE_OVER."""
PARTITION = "dagster/partition"
FIRST, LAST = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
REPOSITORY = ".dagster/repository"
"""The tag by which Dagster's storage finds runs of a code location; one made by Definitions has one repository."""
Keys = Collection[str] | None
"""Partition keys of a table; None means all of it."""


@dataclass(frozen=True)
class Flight:
    """A run or a backfill that is queued or under way, and writes a table."""

    keys: Keys
    """The part of the table that it writes."""
    name: str
    """Its name for a person, such as ``run 8f14e45f-…`` or ``backfill kdqhqvxb``."""
    run: dg.DagsterRun | None = None
    """None for a backfill."""


def flights(instance: dg.DagsterInstance, tables: Sequence[Table], location: str | None) -> dict[str, list[Flight]]:
    """Finds what is about to write each table, by the table's identifier; a table that nothing writes is left out.

    A run counts if its own assets are the table's, and if it is of the caller's code location: what jobs of other
    locations do is not known here, and must not hold up this one's tables.

    location: the name of the caller's code location; None where it has none, and then runs of all count. So does a run
    that Python code started and that names no location.
    """
    from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus  # definitions need not load it

    found: dict[str, list[Flight]] = {}
    runs = [
        run
        for run in instance.get_runs(dg.RunsFilter(statuses=UNFINISHED))
        if location is None or location_of(run) in (None, location)
    ]
    backfills = instance.get_backfills(
        filters=BulkActionsFilter(statuses=[BulkActionStatus.REQUESTED, BulkActionStatus.CANCELING])
    )
    assets = {run.run_id: assets_of(run, instance) for run in runs}
    for table in tables:
        own = [
            Flight(keys_of_run(run, table, instance), f"run {run.run_id}", run)
            for run in runs
            if table.key in assets[run.run_id]
        ]
        own += [
            Flight(_of_backfill(backfill, table), f"backfill {backfill.backfill_id}")
            for backfill in backfills
            if table.key in (backfill.asset_selection or ())
        ]
        if own:
            found[table.identifier] = own
    return found


def location_of(run: dg.DagsterRun) -> str | None:
    """Returns the name of the run's code location; None for a run that Python code started without one."""
    origin = run.remote_job_origin
    return origin.repository_origin.code_location_origin.location_name if origin else None


def tags_of_location(location: str | None) -> dict[str, str]:
    """Returns the tags of all runs of a code location, for a filter; none where the caller has no location."""
    return {REPOSITORY: f"__repository__@{location}"} if location else {}


def location_of_sensor(context: dg.SensorEvaluationContext) -> str | None:
    """Returns the name of the sensor's code location; None where it is evaluated without one, as by Python code."""
    return context.code_location_origin.location_name if context.code_location_origin else None


def assets_of(run: dg.DagsterRun, instance: dg.DagsterInstance) -> Collection[dg.AssetKey]:
    """Returns the assets that a run materializes: those that were chosen for it, else all of its job.

    The plan of the run's steps names the job's assets. A run of a job of ops has none.
    """
    if run.asset_selection is not None:
        return run.asset_selection
    plan = run.execution_plan_snapshot_id
    return instance.get_execution_plan_snapshot(plan).asset_selection if plan else ()


def keys_of_run(run: dg.DagsterRun, table: Table, instance: dg.DagsterInstance) -> Keys:
    """Returns the run's keys of this table; None, which means all, where its tags name no keys of the table.

    Keys in its tags that the table does not have may be another asset's.
    """
    if table.partitions is None:
        return None
    keys: Sequence[str] = ()
    if (one := run.tags.get(PARTITION)) is not None:
        keys = [one]
    elif FIRST in run.tags and LAST in run.tags:
        try:
            span = dg.PartitionKeyRange(run.tags[FIRST], run.tags[LAST])
            with dg.partition_loading_context(dynamic_partitions_store=instance):
                keys = table.partitions.get_partition_keys_in_range(span)
        except Exception:  # what a partitions definition raises for keys that are not its own
            return None
    known = table.partitions.get_partition_keys(dynamic_partitions_store=instance)
    return frozenset(keys) if keys and set(keys) <= set(known) else None


def meet(one: Keys, other: Keys) -> bool:
    """Says whether two sets of keys have a partition in common."""
    return one is None or other is None or not {*one}.isdisjoint(other)


def _of_backfill(backfill: PartitionBackfill, table: Table) -> Keys:
    """Returns the table's keys in an asset backfill, including what it has written already."""
    if table.partitions is None:
        return None
    graph = dg.Definitions(assets=[dg.AssetSpec(table.key, partitions_def=table.partitions)]).resolve_asset_graph()
    try:
        target = backfill.get_asset_backfill_data(graph).target_subset
        return frozenset(target.get_partitions_subset(table.key).get_partition_keys())
    except Exception:  # of assets that this graph lacks, or of older definitions: all of the table
        return None
