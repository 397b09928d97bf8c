"""Tables with sources, and what writes to these, for the tests of hot and cold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakehouse_assets.declare.columns import column, types_of
from lakehouse_assets.declare.modes import Append, Merge
from lakehouse_assets.declare.table import Table
from lakehouse_assets.extensions.sources.kafka import KafkaTopic
from lakehouse_assets.extensions.sources.postgres import PostgresTable
from lakehouse_assets.extensions.sources.postgres_ddl import ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakehouse_assets.step.window import Window

COLUMNS = (column("n", "long", required=True), column("text", "string"))
UPSERT = (
    "INSERT INTO state (n, text, deleted) VALUES (%s, %s, %s) "
    "ON CONFLICT (n) DO UPDATE SET text = excluded.text, deleted = excluded.deleted"
)


def state_table(**options: Any) -> Table:
    """``demo.state``: a row for each n of the PostgreSQL table ``state``."""
    given = {"identifier": "demo.state", "columns": COLUMNS, "source": PostgresTable("state")}
    return Table(**{**given, "write_mode": Merge(["n"], delete_when="deleted")} | options)


def events_table(**options: Any) -> Table:
    """``demo.events``: a row for each record of the topic ``events``."""
    given = {"identifier": "demo.events", "columns": COLUMNS, "source": KafkaTopic("events")}
    return Table(**{**given, "write_mode": Append()} | options)


def same_rows(spark: SparkSession, window: Window) -> DataFrame:
    """As many rows as spark.lakehouse.rows says, such as the bench's topic has."""
    rows = int(spark.conf.get("spark.lakehouse.rows"))
    return spark.range(rows).selectExpr("id AS n", "concat('event ', id) AS text", "current_timestamp() AS sent_at")


def same_states(spark: SparkSession, window: Window) -> DataFrame:
    """As many rows of ``demo.state``."""
    return same_rows(spark, window).select("n", "text")


def make_source(cursor: Any) -> None:
    """An empty source ``state``, in place of what is there."""
    cursor.execute("DROP TABLE IF EXISTS state, lakehouse_purged, lakehouse_marks CASCADE")
    cursor.execute(ddl_of(state_table()))


def ddl_of(table: Table) -> str:
    """Returns what the database of a table's source needs."""
    assert isinstance(table.source, PostgresTable)
    return ddl(table.source, types_of(table.schema), table.write_mode.match_on)
