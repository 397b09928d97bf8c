"""Steps of the tables that the trade measurements merge into: rows copied from trade.customs, and changes of them.
No Dagster here: these run in workers. The tables are declared in trade_merge.py."""

from __future__ import annotations

import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse_assets.step.window import Window

MONTHS, CHANGES, MEANWHILE = "BENCH_MONTHS", "BENCH_CHANGES", "BENCH_MEANWHILE"
"""Variables: months to copy, comma-separated; a Parquet file of changes; whether others write meanwhile."""


def copied(spark: SparkSession, window: Window) -> DataFrame:
    """Rows of trade.customs of some months."""
    return spark.table("lake.trade.customs").where(F.col("ym").isin(os.environ[MONTHS].split(",")))


def changes(spark: SparkSession, window: Window) -> DataFrame:
    """The changes; of the window's partitions where it has some."""
    if os.environ.get(MEANWHILE):
        _append_elsewhere(os.environ[MEANWHILE])
    found = spark.read.parquet(os.environ[CHANGES])
    return found.where(F.col("ym").isin(list(window.keys))) if window.keys else found


def _append_elsewhere(identifier: str) -> None:
    """A row of a month that no change is of, by an outsider."""
    from lakehouse_assets.environment.catalog import load_lake
    from lakehouse_assets.environment.settings import read_settings

    table = load_lake(read_settings()).load_table(identifier)
    row = table.scan(limit=1).to_arrow()
    at = row.column_names.index("ym")
    table.append(row.set_column(at, row.schema.field(at), [["190001"]]))
