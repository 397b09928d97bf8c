"""Steps that tell where their rows were computed, for tests of Spark with executors of its own.
No Dagster here: these run in the worker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse_assets.step.window import Window
from tests.support.steps import numbers


def places(spark: SparkSession, window: Window) -> DataFrame:
    """As numbers, ``text`` being the executor (its Python's parent process) and where that has the project's code."""
    return _computed(place, spark, window)


def places_of_own(spark: SparkSession, window: Window) -> DataFrame:
    """As places, and where the executor has a package that somebody gave by ``spark.submit.pyFiles``."""
    return _computed(place_of_own, spark, window)


def _computed(text: Callable[[int], str], spark: SparkSession, window: Window) -> DataFrame:
    spread = numbers(spark, window).repartition(4, "day", "n")
    return spread.withColumn("text", F.udf(text, "string")(F.col("n"))).select("day", "n", "text")


def place_of_own(n: int) -> str:
    from own import __file__ as module

    return f"{place(n)} {module.rpartition('/')[0]}"


def place(n: int) -> str:
    import os

    from lakehouse_assets.environment import machine

    return f"{os.getppid()} {Path(machine.__file__).parents[2]}"
