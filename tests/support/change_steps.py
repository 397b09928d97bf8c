"""Steps for tests of merges and appends: what they return is in a file of the test's, a JSON object a line.
No Dagster here: these run in the worker."""

from __future__ import annotations

import json
import os
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.types import StringType
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import Settings, read_settings
from lakehouse_assets.step.window import Window

ROWS, OTHERS = "rows.jsonl", "others.jsonl"
"""In LAKEHOUSE_HOME."""
COLUMNS = {
    "id": "long",
    "day": "string",
    "n": "long",
    "text": "string",
    "op": "string",
    "at": "long",
    "extra": "string",
    "point": "struct<x: long, y: string>",
}


def rows(spark: SparkSession, window: Window) -> DataFrame:
    """The rows of the file; of those with a ``key``, the window's. Its first line lists the columns."""
    first, *lines = (Path(os.environ["LAKEHOUSE_HOME"]) / ROWS).read_text().splitlines()
    found = [row for row in map(json.loads, lines) if row.pop("key", None) in (None, *window.keys)]
    used = json.loads(first)
    schema = ", ".join(f"{name} {COLUMNS[name]}" for name in used)
    made = spark.createDataFrame([tuple(row.get(name) for name in used) for row in found], schema)
    return made.withColumn("day", F.to_date("day"))


def rows_while_others_write(spark: SparkSession, window: Window) -> DataFrame:
    """As rows(); meanwhile somebody appends the first line of another file to the table, each time the next one."""
    home = Path(os.environ["LAKEHOUSE_HOME"])
    first, *left = (home / OTHERS).read_text().splitlines() or [""]
    if first:
        (home / OTHERS).write_text("\n".join(left))
        append(read_settings(), json.loads(first))
    return rows(spark, window)


def rows_in_capitals(spark: SparkSession, window: Window) -> DataFrame:
    """As rows(), with the columns' names in capitals."""
    found = rows(spark, window)
    return found.toDF(*(name.upper() for name in found.columns))


def not_negative() -> Column:
    """A check."""
    return F.col("n") >= 0


def append(settings: Settings, *added: dict[str, Any]) -> None:
    """Rows of ``demo.rows``, by an outsider with PyIceberg."""
    table = load_lake(settings).load_table("demo.rows")
    days = [date.fromisoformat(row["day"]) for row in added]
    columns = {name: [row.get(name) for row in added] for name in ("id", "n", "text")} | {"day": days}
    table.append(pa.table(columns, schema=table.schema().as_arrow()))


def rows_while_a_column_is_added(spark: SparkSession, window: Window) -> DataFrame:
    """As rows(); meanwhile somebody adds a column, the first time."""
    table = load_lake(read_settings()).load_table("demo.rows")
    if "theirs" not in table.schema().column_names:
        with table.update_schema() as update:
            update.add_column("theirs", StringType())
    return rows(spark, window)


def rows_of_chunks_that_disagree(spark: SparkSession, window: Window) -> DataFrame:
    """As rows(), with another column on the first of January."""
    found = rows(spark, window)
    return found.withColumn("surprise", F.lit(1)) if "2024-01-01" in window.keys else found


def rows_in_latin_1(spark: SparkSession, window: Window) -> DataFrame:
    """As rows(), with the text in an encoding that is not the table's."""
    return rows(spark, window).withColumn("text", F.encode("text", "ISO-8859-1").cast("string"))
