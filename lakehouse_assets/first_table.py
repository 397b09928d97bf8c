"""The texts of the first table of a new project or component, whose rows are made up."""

from __future__ import annotations

from typing import Any

STEPS = '''\
"""The steps: each computes the rows of its table for the partitions that its window names."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse_assets import Window


def orders(spark: SparkSession, window: Window) -> DataFrame:
    """Ten made-up orders a day. Real ones are read by read_csv(), from files in window.landing."""
    days = spark.createDataFrame([(day,) for day in window.keys], "day string")
    return days.select(
        F.to_date("day").alias("day"),
        F.explode(F.sequence(F.lit(1), F.lit(10))).alias("order_id"),
        F.lit("9.90").cast("decimal(9,2)").alias("amount"),
    )
'''
TABLES = '''\
"""The declarations of the tables; their rows are computed in steps.py."""

import dagster as dg

from lakehouse_assets import Table, column

orders = Table(
    identifier="{package}.orders",
    columns=[
        column("day", "date", "Day of the order", required=True),
        column("order_id", "int", "Number of the order, by day", required=True),
        column("amount", "decimal(9,2)", "Euros"),
    ],
    step="{package}.steps:orders",
    partitions=dg.DailyPartitionsDefinition(start_date="2026-01-01", end_date="2026-01-08"),
    partitioned_by=["day"],
    unique=["order_id"],
)
'''


def attributes(domain: str, steps: str) -> dict[str, Any]:
    """Returns the declaration of TABLES as the attributes of a YAML component. steps: the module of its steps."""
    return {
        "domain": domain,
        "tables": [
            {
                "identifier": f"{domain}.orders",
                "columns": [
                    {"name": "day", "type": "date", "doc": "Day of the order", "required": True},
                    {"name": "order_id", "type": "int", "doc": "Number of the order, by day", "required": True},
                    {"name": "amount", "type": "decimal(9,2)", "doc": "Euros"},
                ],
                "step": f"{steps}:orders",
                "partitions": {"type": "daily", "start_date": "2026-01-01", "end_date": "2026-01-08"},
                "partitioned_by": ["day"],
                "unique": ["order_id"],
            }
        ],
    }
