"""Finds the partitions that runs and backfills of this instance are about to write.

This only saves work: each commit checks for conflicts itself.
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
ENDED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
# The code location's own jobs.
MAINTENANCE, RESTORE, REDRIVE = "lakehouse_maintenance", "lakehouse_restore", "lakehouse_redrive"
DROP_MISSING = "lakehouse_drop_missing"
PARTITION = "dagster/partition"
FIRST, LAST = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
REPOSITORY = ".dagster/repository"
"""The tag by which Dagster's storage finds a code location's runs."""
Keys = Collection[str] | None
"""Partition keys; None means the whole table."""


@dataclass(frozen=True)
class Flight:
    """A queued or active run or backfill that writes a table."""

    keys: Keys
    name: str
    """Such as ``run 8f14e45f-…`` or ``backfill kdqhqvxb``."""
    run: dg.DagsterRun | None = None
    """None for a backfill."""


def flights(instance: dg.DagsterInstance, tables: Sequence[Table], location: str | None) -> dict[str, list[Flight]]:
    """Returns the flights of each table that has any, by identifier.

    Other code locations' runs don't count: they must not hold up this one's tables. Runs that Python code started
    without a code location do count. location: the code location's name; None counts all runs.
    """
    from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus  # definitions don't need it

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
    """Returns the name of the run's code location; None if Python code started the run without one."""
    origin = run.remote_job_origin
    return origin.repository_origin.code_location_origin.location_name if origin else None


def tags_of_location(location: str | None) -> dict[str, str]:
    """Returns the tags by which a code location's runs are found; none for None."""
    return {REPOSITORY: f"__repository__@{location}"} if location else {}


def location_of_sensor(context: dg.SensorEvaluationContext) -> str | None:
    """Returns the name of the sensor's code location, if any."""
    return context.code_location_origin.location_name if context.code_location_origin else None


def assets_of(run: dg.DagsterRun, instance: dg.DagsterInstance) -> Collection[dg.AssetKey]:
    """Returns the run's selection, else all assets of its job; none for an op job."""
    if run.asset_selection is not None:
        return run.asset_selection
    plan = run.execution_plan_snapshot_id
    return instance.get_execution_plan_snapshot(plan).asset_selection if plan else ()


def keys_of_run(run: dg.DagsterRun, table: Table, instance: dg.DagsterInstance) -> Keys:
    """Returns the keys that the run's tags name; None unless they are all keys of this table.

    A run has the same tags for all its assets, so the keys may be another asset's.
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
        except Exception:  # partitions definitions raise all kinds for unknown keys
            return None
    known = table.partitions.get_partition_keys(dynamic_partitions_store=instance)
    return frozenset(keys) if keys and set(keys) <= set(known) else None


def meet(one: Keys, other: Keys) -> bool:
    """Whether keys overlap."""
    return one is None or other is None or not {*one}.isdisjoint(other)


def _of_backfill(backfill: PartitionBackfill, table: Table) -> Keys:
    if table.partitions is None:
        return None
    # The smallest graph with which Dagster can read the backfill's data: the table's asset alone.
    graph = dg.Definitions(assets=[dg.AssetSpec(table.key, partitions_def=table.partitions)]).resolve_asset_graph()
    try:
        target = backfill.get_asset_backfill_data(graph).target_subset
        return frozenset(target.get_partitions_subset(table.key).get_partition_keys())
    except Exception:  # assets unknown to this graph, or older definitions: all of the table
        return None
