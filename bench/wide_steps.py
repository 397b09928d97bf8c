"""The step of the runs with many columns: 3,000 rows whose keys move by half from round to round.
Measured in wide.py."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakehouse_assets.step.window import Window

COLUMNS, ROUND = "BENCH_WIDE_COLUMNS", "BENCH_WIDE_ROUND"
ROWS = 3_000


def name(n: int) -> str:
    return f"c{n:03}"


def rows(spark: SparkSession, window: Window) -> DataFrame:
    """3,000 rows."""
    first = int(os.environ[ROUND]) * ROWS // 2
    values = (
        f"{'id * ' + str(n) + 'D' if n % 2 else 'concat(' + repr(str(n)) + ', id)'} AS {name(n)}"
        for n in range(1, int(os.environ[COLUMNS]))
    )
    return spark.range(first, first + ROWS).selectExpr("id", *values)
