"""The tables that tests materialize: a small daily one and a small one without partitions, each with options to change.
Their steps are in steps.py."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import dagster as dg
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import SortOrder

from lakehouse_assets.commit.tokens import RunToken, token_property
from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.table import Table
from lakehouse_assets.drive.chunks import Chunk
from lakehouse_assets.run.plan import RunPlan

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


def published_by(*published: str) -> TableMetadata:
    """The metadata of a table on which snapshots, expired since, were published with these tokens."""
    properties: dict[str, str] = {}
    for n, token in enumerate(published, start=1):
        properties |= token_property(RunToken(token, datetime.now(UTC)), n)
    return new_table_metadata(Schema(), PartitionSpec(), SortOrder(order_id=0), "file:///nowhere", properties)


def run_plan(token: str, chunks: Iterable[Chunk], **differences: Any) -> RunPlan:
    """The plan of a run with these chunks."""
    of_any = {
        "token": token,
        "run_id": token,
        "made_at": datetime.now(UTC),
        "table_uuid": uuid4(),
        "snapshot_id": None,
        "columns": ("day", "n"),
        "write_mode": "Overwrite()",
        "code_version": "1",
        "chunks": tuple(chunks),
    }
    return RunPlan(**of_any | differences)
