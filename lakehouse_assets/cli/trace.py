"""`lakehouse trace`: what a partition was made from."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING

import click

from lakehouse_assets.cli.home import ready
from lakehouse_assets.cli.time_type import TIME
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.errors import LakehouseError

if TYPE_CHECKING:
    import dagster as dg
    from pyiceberg.table.metadata import TableMetadata

    from lakehouse_assets.run.outdated import Metadata


@click.command()
@click.argument("asset")
@click.argument("partition", required=False)
@click.option("--columns", is_flag=True, help="Show from which columns the latest rows were computed, by SQL steps.")
@click.option("--at", type=TIME, help="Show what was current at this time, in ISO 8601 (UTC if it names no zone).")
def trace(asset: str, partition: str | None, at: datetime | None, columns: bool) -> int:
    """Show what a partition was made from, version by version.

    ASSET is such as shop.orders; without PARTITION, it shows the latest that was materialized. With --columns, it is a
    table or a column, such as shop.orders.amount. Exits with 1 if nothing was materialized then.
    """
    settings = ready()
    if columns:
        return _trace_columns(settings, asset)
    import dagster as dg

    from lakehouse_assets.cli.instance import opened
    from lakehouse_assets.cli.pipeline import Pipeline
    from lakehouse_assets.cli.terminal import output_to
    from lakehouse_assets.inputs.trace import Trace, tree_lines

    key = dg.AssetKey(asset.replace("/", ".").split("."))
    with output_to(settings.home / "trace.log"), opened(settings) as (instance, _):
        graph = Pipeline().graph
        if key not in graph.get_all_asset_keys():
            known = (".".join(one.path) for one in graph.materializable_asset_keys)
            raise LakehouseError(f"there is no asset {asset}; the known assets are {', '.join(sorted(known))}")
        definition = graph.get(key).partitions_def
        keys = definition.get_partition_keys(dynamic_partitions_store=instance) if definition else ()
        if partition is not None and partition not in keys:
            raise LakehouseError(f"{asset} has no partition {partition}" if keys else f"{asset} has no partitions")
        problems: list[str] = []
        made = Trace(instance, graph, _metadata(settings, problems)).of(key, partition, at)
    print(*tree_lines(made), *problems[:1], sep="\n")
    return 0 if any(one.at for one in made) else 1


def _metadata(settings: Settings, problems: list[str]) -> Metadata:
    """Returns a function that finds tables' metadata. If the catalog fails, it adds to ``problems`` and finds none."""
    from lakehouse_assets.run.what_if import metadata_of

    @cache
    def lake() -> Metadata:
        return metadata_of(load_lake(settings))

    def found(key: dg.AssetKey) -> TableMetadata | None:
        try:
            return None if problems else lake()(key)
        except Exception as error:  # each catalog has its own; after the first one, the catalog is not asked again
            problems.append(f"The catalog can't be read, so this shows only Dagster's log and no rollbacks: {error}")
            return None

    return found


def _trace_columns(settings: Settings, asset: str) -> int:
    import dagster as dg

    from lakehouse_assets.cli.instance import opened
    from lakehouse_assets.cli.terminal import output_to
    from lakehouse_assets.inputs.column_trace import Columns

    table, column = asset.split(".")[:2], asset.split(".")[2:]
    with output_to(settings.home / "trace.log"), opened(settings) as (instance, _):
        lines = [*Columns(instance).lines(dg.AssetKey(table), ".".join(column) or None)]
    print(*lines, sep="\n")
    return 0
