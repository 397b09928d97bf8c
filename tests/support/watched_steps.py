"""Steps for tests that look at a worker while it works.
No Dagster here: these run in the worker."""

from __future__ import annotations

import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from lakehouse_assets.step.window import Window
from tests.support.steps import numbers

FLAG = "running"
PATIENCE_SECONDS = 5.0


def watched(spark: SparkSession, window: Window) -> DataFrame:
    """As numbers. Asks the catalog and runs a query, says so by a file in the drop zone, waits until somebody takes it
    away, and asks again."""
    _ask(spark)
    flag = Path(window.landing, FLAG)
    flag.parent.mkdir(parents=True, exist_ok=True)
    flag.touch()
    while flag.exists():
        time.sleep(0.05)
    _ask(spark)
    return numbers(spark, window)


def _ask(spark: SparkSession) -> None:
    spark.sql("SHOW NAMESPACES IN lake").collect()
    spark.sql("SELECT id % 2 AS odd, count(*) FROM range(3) GROUP BY 1").collect()


def patient(spark: SparkSession, window: Window) -> DataFrame:
    """As numbers. Asks the catalog now and again when a short-lived token has run out."""
    _ask(spark)
    time.sleep(PATIENCE_SECONDS)
    _ask(spark)
    return numbers(spark, window)
