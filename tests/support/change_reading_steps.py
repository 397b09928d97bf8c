"""Steps that read what changed in demo.source, for tests/integration/test_input_changes.py."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from lakehouse_assets.step.window import Window

MEANWHILE: list[Callable[[], None]] = []
"""Called by each step before it reads."""
RENAMED: dict[str, str] = {}
"""Columns of demo.source that have other names in what reads them."""


def followed(spark: SparkSession, window: Window) -> DataFrame:
    """The changes of demo.source, with what happened to each row."""
    for act in MEANWHILE:
        act()
    return window.changes("lake.demo.source").withColumnRenamed("_change_type", "change")


def narrow(spark: SparkSession, window: Window) -> DataFrame:
    """As followed, of a source with more columns."""
    return window.changes("lake.demo.source").selectExpr("n", "text", "_change_type AS change")


def merged(spark: SparkSession, window: Window) -> DataFrame:
    """The changes of demo.source, to be merged by n."""
    for act in MEANWHILE:
        act()
    changes = window.changes("lake.demo.source")
    return changes.withColumnsRenamed(RENAMED).drop("more")


def of_any(spark: SparkSession, window: Window) -> DataFrame:
    """The changes of the table that <home>/input names."""
    name = Path(os.environ["LAKEHOUSE_HOME"], "input").read_text()
    return window.changes(name).withColumnRenamed("_change_type", "change")


GIVEN: list[tuple[int, str]] = []


def given(spark: SparkSession, window: Window) -> DataFrame:
    """The rows of GIVEN."""
    return spark.createDataFrame(GIVEN, "n long, text string")
