"""The tables that tests materialize: a small daily one and a small one without partitions, each with options to change.
Their steps are in steps.py."""

from __future__ import annotations

from typing import Any

import dagster as dg

from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.table import Table

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-03-01")


def numbers(step: str = "numbers", **options: Any) -> Table:
    """``demo.numbers``: three rows a day, ``day`` and ``n`` required, ``n`` unique within a day."""
    return Table(
        **{
            "identifier": "demo.numbers",
            "columns": [
                column("day", "date", "The day.", required=True),
                column("n", "long", "A number.", required=True),
                column("text", "string", "The number as text."),
            ],
            "partitions": DAYS,
            "partitioned_by": ["day"],
            "sorted_by": ["n"],
            "unique": ["n"],
            "step": f"tests.support.steps:{step}",
        }
        | options
    )


def whole(**options: Any) -> Table:
    """``demo.whole``: three rows, no partitions."""
    columns = [column("n", "long", required=True), column("text", "string")]
    return Table(**{"identifier": "demo.whole", "columns": columns, "step": "tests.support.steps:whole"} | options)
