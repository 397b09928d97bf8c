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
TEST = """\
from {package}.tables import orders

from lakehouse_assets.testing import run_step


def test_each_day_has_ten_orders() -> None:
    result = run_step(orders, ["2026-01-01", "2026-01-02"])
    assert len(result.rows) == 20
    result.expect_rows([{{"order_id": n}} for n in range(1, 11)] * 2)
"""
QUERY = """\
-- Ten made-up orders a day. Real ones are read by a step in Python, from files, or from other tables of the lake.
SELECT CAST(day AS date) AS day, order_id, CAST(9.90 AS decimal(9, 2)) AS amount
FROM (SELECT explode(:keys) AS day) CROSS JOIN (SELECT explode(sequence(1, 10)) AS order_id)
"""
TABLES = '''\
"""The declarations of the tables; their rows are computed in {file}."""

import dagster as dg

from lakehouse_assets import Table, column

orders = Table(
    identifier="{package}.orders",
    columns=[
        column("day", "date", "Day of the order", required=True),
        column("order_id", "int", "Number of the order, by day", required=True),
        column("amount", "decimal(9,2)", "Euros"),
    ],
    step="{step}",
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
