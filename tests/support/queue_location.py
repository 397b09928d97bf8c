"""A code location with a queue: two daily tables filled by tiny workers, whose sensor runs. QUEUE_* variables steer it.
No tests here; what the workers do is in tiny_worker.py."""

from __future__ import annotations

import os
from datetime import timedelta

import dagster as dg

from lakehouse_assets.declare.options import Arrivals, Pace
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.extensions.builtin import EXTENSIONS
from lakehouse_assets.extensions.queue.extension import Queue
from lakehouse_assets.run.asset import table_asset
from tests.support.faults import FaultyLakehouse, tiny

YEAR = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-12-31")  # 365 days
PACE = Pace(
    floor=int(os.environ.get("QUEUE_FLOOR", "1")),
    latency=timedelta(seconds=float(os.environ.get("QUEUE_LATENCY", "20"))),
    backoff=timedelta(seconds=5),
    tries=int(os.environ.get("QUEUE_TRIES", "2")),
)
TABLES = [
    tiny(
        identifier=f"demo.{name}", partitions=YEAR, arrivals=Arrivals("in/{day}.csv", PACE), partitions_per_worker=None
    )
    for name in ("first", "second")
]
SETTINGS = read_settings()

defs = dg.Definitions.merge(
    Queue().definitions(TABLES, SETTINGS),
    dg.Definitions(
        [table_asset(table, EXTENSIONS) for table in TABLES],
        resources={"lakehouse": FaultyLakehouse(SETTINGS)},
        executor=dg.in_process_executor,
    ),
)
