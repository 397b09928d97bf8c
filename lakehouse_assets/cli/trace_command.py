"""Prints what an asset, or one of its partitions, was made from: `lakehouse trace`.

What is found is run/trace.py's.
"""

from __future__ import annotations

from datetime import UTC, datetime

import dagster as dg

from lakehouse_assets.cli.instance import opened
from lakehouse_assets.cli.pipeline import Pipeline
from lakehouse_assets.cli.terminal import output_to
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.errors import LakehouseError
from lakehouse_assets.run.trace import Trace, tree_lines


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
        made = Trace(instance, graph).of(key, partition, when)
        print(*tree_lines(made), sep="\n", file=terminal)
    return 0 if any(one.at for one in made) else 1


def _time(at: str | None) -> datetime | None:
    try:
        found = datetime.fromisoformat(at) if at else None
    except ValueError as error:
        raise LakehouseError(f"--at {at} is no time such as 2026-01-31T08:00: {error}") from None
    return found.replace(tzinfo=found.tzinfo or UTC) if found else None
