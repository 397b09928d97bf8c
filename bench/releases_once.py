"""Writes tables and releases them, again and again until it is killed, or expires what nothing keeps:
``python -m bench.releases_once expire <tables>``, ``… publish <tables> <times>``. Prints what each release cost."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from uuid import uuid4

import dagster as dg
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from sqlalchemy.exc import OperationalError

from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.extensions.releases.consistency import Log
from lakehouse_assets.extensions.releases.publish_release import Order, publish_release, tidy

NAME = "bench"
SCHEMA = Schema(NestedField(1, "n", LongType(), required=False))
STEP = "lakehouse_assets.domains.nyc.steps:planes"
"""Some step: none is run."""


def tables(count: int) -> list[Table]:
    return [Table(f"{NAME}.t{n}", [column("n", "long")], STEP) for n in range(count)]


def write(catalog: Catalog, members: Sequence[Table]) -> None:
    """Writes a generation that no table had before, one table after the other, whatever is committed beside it."""
    rows = pa.table({"n": pa.array([time.time_ns()], pa.int64())})
    catalog.create_namespace_if_not_exists(NAME)
    for member in members:
        written = False
        while not written:
            with suppress(CommitFailedException, OperationalError):
                catalog.create_table_if_not_exists(member.identifier, SCHEMA).overwrite(rows)
                written = True


def expire(catalog: Catalog, count: int) -> None:
    """Expires what no branch and no tag keeps, again and again."""
    while True:
        found = catalog.load_table(random.choice(tables(count)).identifier)
        kept = {ref.snapshot_id for ref in found.metadata.refs.values()}
        gone = [one.snapshot_id for one in found.snapshots() if one.snapshot_id not in kept]
        with suppress(CommitFailedException, OperationalError):
            found.maintenance.expire_snapshots().by_ids(gone).commit()


def publish(catalog: Catalog, count: int, times: int) -> None:
    members = tables(count)
    graph = dg.Definitions([dg.AssetSpec(one.key) for one in members]).resolve_asset_graph()
    calls = {"load_table": 0, "commit_table": 0}
    for name in calls:
        _count(catalog, name, calls)
    with dg.DagsterInstance.ephemeral() as instance:
        for _ in range(times):
            write(catalog, members)
            order = Order(NAME, members, str(uuid4()), 10, timedelta(), anyway=True)
            calls.update(load_table=0, commit_table=0)
            started = time.perf_counter()
            done = publish_release(catalog, order, Log(instance, graph))
            told = {"release": done.release.number, "is_new": done.is_new, "seconds": time.perf_counter() - started}
            tidy(catalog, order, done.named, lambda _: ())
            print(json.dumps({**told, **calls, "with_tidy": time.perf_counter() - started}), flush=True)


def _count(catalog: Catalog, name: str, calls: dict[str, int]) -> None:
    method = getattr(catalog, name)

    def counted(*arguments: object, **options: object) -> object:
        calls[name] += 1
        return method(*arguments, **options)

    setattr(catalog, name, counted)


if __name__ == "__main__":
    lake, count = load_lake(read_settings()), int(sys.argv[2])
    match sys.argv[1]:
        case "expire":
            expire(lake, count)
        case "publish":
            publish(lake, count, int(sys.argv[3]))
