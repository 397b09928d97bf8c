"""Which partitions runs and backfills of this instance are about to write, so that nobody does their work once more.
It spares work only: commits check again. Runs of other instances, and other engines, are not known here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import dagster as dg
from dagster._core.definitions.partitions.context import partition_loading_context
from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus, PartitionBackfill

from lakehouse_assets.declare.table import Table
from lakehouse_assets.run.reaper import ACTIVE

UNFINISHED = [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED, *ACTIVE]
"""Of runs that write a table now, or soon."""
OWN_JOBS = ("lakehouse_maintenance", "lakehouse_restore", "lakehouse_take_over", "lakehouse_redrive")
"""Jobs of the code location that write no rows."""
MAINTENANCE, RESTORE, TAKE_OVER, REDRIVE = OWN_JOBS
PARTITION = "dagster/partition"
FIRST, LAST = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
Keys = Collection[str] | None
"""None: all of a table."""


@dataclass(frozen=True)
class Flight:
    """A run or a backfill that is queued or under way. keys: that it writes of one table. run: None for a backfill."""

    keys: Keys
    run: dg.DagsterRun | None


def writing(instance: dg.DagsterInstance, tables: Sequence[Table]) -> dict[str, Keys]:
    """By table the keys that are about to be written; a table that is not there is left alone."""
    return {name: _together(f.keys for f in found) for name, found in flights(instance, tables).items()}


def flights(instance: dg.DagsterInstance, tables: Sequence[Table]) -> dict[str, list[Flight]]:
    """By table what is about to write it; a table that is not there is left alone.

    A run of a job that names no asset may write every table, unless it is one of OWN_JOBS.
    """
    found: dict[str, list[Flight]] = {}
    runs = [run for run in instance.get_runs(dg.RunsFilter(statuses=UNFINISHED)) if run.job_name not in OWN_JOBS]
    backfills = instance.get_backfills(
        filters=BulkActionsFilter(statuses=[BulkActionStatus.REQUESTED, BulkActionStatus.CANCELING])
    )
    for table in tables:
        own = [Flight(keys_of_run(run, table, instance), run) for run in runs if may_write(run, table)]
        own += [Flight(_of_backfill(backfill, table), None) for backfill in backfills if table.key in _assets(backfill)]
        if own:
            found[table.identifier] = own
    return found


def may_write(run: dg.DagsterRun, table: Table) -> bool:
    return run.asset_selection is None or table.key in run.asset_selection


def keys_of_run(run: dg.DagsterRun, table: Table, instance: dg.DagsterInstance) -> Keys:
    """The run's keys of this table. Its tags may be of another asset of the run, and then name no key of the table."""
    if table.partitions is None:
        return None
    keys: Sequence[str] = ()
    if (one := run.tags.get(PARTITION)) is not None:
        keys = [one]
    elif FIRST in run.tags and LAST in run.tags:
        try:
            span = dg.PartitionKeyRange(run.tags[FIRST], run.tags[LAST])
            with partition_loading_context(dynamic_partitions_store=instance):
                keys = table.partitions.get_partition_keys_in_range(span)
        except Exception:  # what a partitions definition raises for keys that are not its own
            return None
    known = table.partitions.get_partition_keys(dynamic_partitions_store=instance)
    return frozenset(keys) if keys and set(keys) <= set(known) else None


def meet(one: Keys, other: Keys) -> bool:
    """Whether a partition is in both."""
    return one is None or other is None or not {*one}.isdisjoint(other)


def _assets(backfill: PartitionBackfill) -> Collection[dg.AssetKey]:
    return backfill.asset_selection or ()


def _of_backfill(backfill: PartitionBackfill, table: Table) -> Keys:
    """The keys of an asset backfill, those that are written already included."""
    if table.partitions is None:
        return None
    graph = dg.Definitions(assets=[dg.AssetSpec(table.key, partitions_def=table.partitions)]).resolve_asset_graph()
    try:
        target = backfill.get_asset_backfill_data(graph).target_subset
        return frozenset(target.get_partitions_subset(table.key).get_partition_keys())
    except Exception:  # of assets that this graph lacks, or of older definitions: all of the table
        return None


def _together(keys: Iterable[Keys]) -> Keys:
    found: set[str] = set()
    for some in keys:
        if some is None:
            return None
        found |= set(some)
    return frozenset(found)
