"""The contestant: the same step and the same write as the asset, in a bare PySpark script.
No Dagster, no PyIceberg, no staging, no audit: settings come from a file, like a spark-defaults.conf."""

from __future__ import annotations

import importlib
import json
import sys
import time
from datetime import UTC, datetime, timedelta

from pyspark.sql import SparkSession

from lakehouse_assets.step.window import Window


def main(settings_file: str, step: str, table: str, first: str, last: str) -> None:
    """settings_file: JSON with ``conf`` (Spark's settings, catalogs too) and ``landing``. first, last: ISO days.

    Prints when the commit was done, seconds since the epoch.
    """
    with open(settings_file) as file:
        settings = json.load(file)
    builder = SparkSession.builder.appName("bare")
    for name, value in settings["conf"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    module, _, function = step.partition(":")
    rows = getattr(importlib.import_module(module), function)(spark, _window(first, last, settings["landing"]))
    rows.writeTo(f"lake.{table}").overwritePartitions()
    print(json.dumps({"committed": time.time()}), flush=True)
    spark.stop()


def _window(first: str, last: str, landing: str) -> Window:
    start, end = (datetime.fromisoformat(day).replace(tzinfo=UTC) for day in (first, last))
    days = (start + timedelta(days=n) for n in range((end - start).days + 1))
    keys = tuple(day.date().isoformat() for day in days)
    return Window(keys=keys, start=start, end=end + timedelta(days=1), landing=landing)


if __name__ == "__main__":
    main(*sys.argv[1:])
