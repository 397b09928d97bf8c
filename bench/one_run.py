"""One run of one declared table in this process, for measurements that start many such processes on one home.
What is measured of it is the caller's."""

from __future__ import annotations

import dagster as dg

from lakehouse_assets.cli import home
from lakehouse_assets.cli.instance import tidy
from lakehouse_assets.commit.target import open_target
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.extensions.builtin import EXTENSIONS
from lakehouse_assets.run.asset import table_asset
from lakehouse_assets.run.in_flight import FIRST, LAST
from lakehouse_assets.run.resource import Lakehouse


def prepare(table: Table) -> None:
    """Prepare the home, its instance and the table once, as `make ui` does before any run starts."""
    settings = read_settings()
    home.prepare(settings)
    open_target(load_lake(settings), table)
    with dg.DagsterInstance.get() as instance:
        tidy(instance, settings)


def materialize(
    table: Table, first: str, last: str, lakehouse: type[Lakehouse] = Lakehouse
) -> tuple[dg.ExecuteInProcessResult, float, float]:
    """The partitions from first to last, or all of a table without partitions, whose first is ""; returns start and end
    too, seconds since the epoch, by the run's events."""
    settings = read_settings()
    home.prepare(settings)
    span = {FIRST: first, LAST: last}
    resources = {"lakehouse": lakehouse(settings)}
    with dg.DagsterInstance.get() as instance:
        tags = span if first else {}
        result = dg.materialize([table_asset(table, EXTENSIONS)], instance=instance, resources=resources, tags=tags)
        stats = instance.get_run_stats(result.run_id)
    return result, stats.start_time or 0.0, stats.end_time or 0.0
