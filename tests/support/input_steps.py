"""Steps that read other tables, and what the tests have others do to these meanwhile.
The tests are in tests/integration/test_inputs.py."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse_assets import read_csv
from lakehouse_assets.step.window import Window

MEANWHILE: list[Callable[[str], None]] = []
"""Called by each step with its first key, before it reads."""


def copied(spark: SparkSession, window: Window) -> DataFrame:
    """The rows of demo.source, on each day of the window."""
    return _days(spark, window).crossJoin(spark.table("lake.demo.source").select("n"))


def meanwhile(spark: SparkSession, window: Window) -> DataFrame:
    """As copied, after others have done something."""
    for act in MEANWHILE:
        act(window.keys[0])
    return copied(spark, window)


def told(spark: SparkSession, window: Window) -> DataFrame:
    """The result of the SQL in <home>/statement, which may be about any table, on each day of the window.

    Others do something before.
    """
    for act in MEANWHILE:
        act(window.keys[0])
    text = Path(os.environ["LAKEHOUSE_HOME"], "statement").read_text()
    return _days(spark, window).crossJoin(spark.sql(text).select(F.col("n").cast("long")))


def writing(spark: SparkSession, window: Window) -> DataFrame:
    """As copied, after the SQL in <home>/statement."""
    spark.sql(Path(os.environ["LAKEHOUSE_HOME"], "statement").read_text()).collect()
    return copied(spark, window)


def dropping(spark: SparkSession, window: Window) -> DataFrame:
    """The SQL in <home>/statement, then rows of no table."""
    spark.sql(Path(os.environ["LAKEHOUSE_HOME"], "statement").read_text()).collect()
    return _days(spark, window).withColumn("n", F.lit(1).cast("long"))


def _days(spark: SparkSession, window: Window) -> DataFrame:
    days = ",".join(f"DATE'{key}'" for key in window.keys)
    return spark.sql(f"SELECT explode(array({days})) AS day")


def dropped(spark: SparkSession, window: Window) -> DataFrame:
    """The numbers in the files raw/<day>.csv.gz."""
    days = [
        read_csv(spark, f"{window.landing}/raw", [day], {"n": "long"}).select(F.lit(day).cast("date").alias("day"), "n")
        for day in window.keys
    ]
    return reduce(DataFrame.unionAll, days)


def doubled(spark: SparkSession, window: Window) -> DataFrame:
    """The rows of demo.raw, each number twice as large."""
    return spark.table("lake.demo.raw").where(F.col("day").isin([*window.keys])).withColumn("n", F.col("n") * 2)


def summed(spark: SparkSession, window: Window) -> DataFrame:
    """The sums of demo.doubled by month."""
    month = F.trunc("day", "month").alias("month")
    return spark.table("lake.demo.doubled").groupBy(month).agg(F.sum("n").alias("n"))
