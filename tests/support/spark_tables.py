"""Tables of a Spark session's own catalog, such as a worker's, as PyIceberg has them.
What Spark did to read or write one is in spark_plans.py."""

from __future__ import annotations

from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession


def loaded(spark: SparkSession, table: str) -> StaticTable:
    """table: Spark's name."""
    log = spark.sql(f"SELECT file FROM {table}.metadata_log_entries ORDER BY timestamp DESC, file DESC LIMIT 1")
    return StaticTable.from_metadata(log.collect()[0].file)
