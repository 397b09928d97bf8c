"""Steps that tell where their rows were computed, for tests of Spark with executors of its own.
No Dagster here: these run in the worker."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse_assets.worker.assignment import Window
from tests.steps import numbers


def places(spark: SparkSession, window: Window) -> DataFrame:
    """As numbers, ``text`` being the executor (its Python's parent process) and where that has the project's code."""
    spread = numbers(spark, window).repartition(4, "day", "n")
    return spread.withColumn("text", F.udf(place, "string")(F.col("n"))).select("day", "n", "text")


def place(n: int) -> str:
    import os

    from resources.package import ROOT

    return f"{os.getppid()} {ROOT}"
