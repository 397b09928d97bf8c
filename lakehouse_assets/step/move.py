"""The step of a table that has a source and no step of its own: its rows are those of the source, as they are.

What it reads, and up to where, is the worker's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakehouse_assets.step.window import Window

MOVE = "lakehouse_assets.step.move:move"
"""The name by which tables have it."""


def move(spark: SparkSession, window: Window) -> DataFrame:
    """Returns the rows of the source that this run moves."""
    return window.source_rows()
