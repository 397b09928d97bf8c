"""Steps that go wrong, for test_faults_spark.py: what they return, or what happens to the process they run in.
Steps that work are in steps.py."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from lakehouse_assets.step.window import Window
from tests.support.steps import numbers

HOME = Path(os.environ["LAKEHOUSE_HOME"])


def waiting(spark: SparkSession, window: Window) -> DataFrame:
    """As numbers; notes ``<worker's pid> <JVM's pid> <day>`` in ``<home>/started``, waits while ``<home>/hold`` names
    its day."""
    jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
    with (HOME / "started").open("a") as started:
        started.write(f"{os.getpid()} {jvm} {window.keys[0]}\n")
    while (HOME / "hold").exists() and window.keys[0] in (HOME / "hold").read_text():
        time.sleep(0.05)
    return numbers(spark, window)


def waiting_in_java(spark: SparkSession, window: Window) -> DataFrame:
    """As waiting, with the JVM at work for ever afterwards."""
    waiting(spark, window)
    spark.range(10**7).crossJoin(spark.range(10**7)).selectExpr("count_if(hash(*) = 0)").collect()
    return numbers(spark, window)


def large(spark: SparkSession, window: Window) -> DataFrame:
    """30 MB a day that no compression makes smaller."""
    days = ",".join(f"DATE'{key}'" for key in window.keys)
    text = "concat_ws('', transform(sequence(1, 50), i -> sha2(concat(uuid(), n, i), 512)))"
    return spark.sql(f"SELECT day, n, {text} AS text FROM (SELECT explode(array({days})) AS day), range(5000) AS t(n)")


def without_n(spark: SparkSession, window: Window) -> DataFrame:
    return numbers(spark, window).drop("n")


def without_text(spark: SparkSession, window: Window) -> DataFrame:
    return numbers(spark, window).drop("text")


def renamed(spark: SparkSession, window: Window) -> DataFrame:
    return numbers(spark, window).withColumnRenamed("text", "label")


def retyped(spark: SparkSession, window: Window) -> DataFrame:
    return numbers(spark, window).selectExpr("day", "text AS n", "text")


def nothing_returned(spark: SparkSession, window: Window) -> DataFrame:  # type: ignore[return]
    numbers(spark, window)


def appending(spark: SparkSession, window: Window) -> DataFrame:
    """As numbers, and writes them into the table itself."""
    numbers(spark, window).writeTo("lake.demo.numbers").append()
    return numbers(spark, window)


def dropping(spark: SparkSession, window: Window) -> DataFrame:
    """As numbers, and drops the table."""
    spark.sql("DROP TABLE lake.demo.numbers PURGE")
    return numbers(spark, window)


def exiting(spark: SparkSession, window: Window) -> DataFrame:
    """Takes itself for a script."""
    sys.exit(0)
