"""The table of kills.py, whose step notes which JVM it has, when it begins and when it ends.
Apart from what measures it: workers import this."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import dagster as dg

from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.table import Table

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-02-01")
TABLE = Table(
    "demo.killed",
    [column("day", "date", required=True), column("n", "long", required=True)],
    step="bench.kills_steps:noted",
    partitions=DAYS,
    partitioned_by=["day"],
    unique=["n"],
)
ROWS = 3
NOTES = "notes"
"""In the home: a line for each beginning and end of a chunk, ``begin|end <JVM's process id> <start of it>``."""


def noted(spark: Any, window: Any) -> Any:
    """Three rows a day, by a UDF, so that Python workers of the JVM may be killed, too."""
    jvm = spark._jvm.java.lang.ProcessHandle.current()  # noqa: SLF001  which PySpark has no other name for
    mark = f"{jvm.pid()} {jvm.info().startInstant().get().toEpochMilli()}"
    _note(f"begin {mark}")
    days = ",".join(f"DATE'{key}'" for key in window.keys)
    plus = spark.udf.register("plus", lambda n: n + 1, "long")
    rows = spark.sql(f"SELECT explode(array({days})) AS day, n FROM range({ROWS}) AS t(n)")
    rows = spark.createDataFrame(rows.select("day", plus("n").alias("n")).collect(), rows.schema)
    _note(f"end {mark}")
    return rows


def _note(line: str) -> None:
    with Path(os.environ["LAKEHOUSE_HOME"], NOTES).open("a") as file:
        file.write(f"{line}\n")
