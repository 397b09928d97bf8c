"""The step of bench/changes_once.py's wide tables."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from lakehouse_assets.step.window import Window


def added(spark: SparkSession, window: Window) -> DataFrame:
    """The rows that came."""
    return window.changes("lake.demo.source").drop("_change_type")
