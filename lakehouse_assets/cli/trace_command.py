"""Prints what an asset, or one of its partitions, was made from: `lakehouse trace`.

What is found is run/trace.py's.
"""

from __future__ import annotations

from datetime import datetime
from functools import cache

import dagster as dg
from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.cli.instance import opened
from lakehouse_assets.cli.pipeline import Pipeline
from lakehouse_assets.cli.terminal import output_to
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.errors import LakehouseError
from lakehouse_assets.run.outdated import Metadata
from lakehouse_assets.run.trace import Trace, parse_time, tree_lines
from lakehouse_assets.run.what_if import metadata_of


def trace(settings: Settings, name: str, partition: str | None, at: str | None) -> int:
    """Prints the tree. Returns 0, or 1 where nothing was materialized then. Expects that home.prepare was called.

    name: of the asset, with dots or slashes. at: a time in ISO 8601, UTC where it names no zone; None for now. Raises
    LakehouseError for an asset, a partition or a time that there is not.
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
    """Returns what gives the metadata of assets' tables: none once the catalog can't be asked, which is told."""

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
