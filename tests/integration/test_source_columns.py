"""Columns of a source in PostgreSQL that are not those of its table: none is nulled, none is purged unseen; and rows
of any length, which are read and put back whatever computes their columns. Without Spark."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from psycopg2.extensions import connection as Connection
from pyiceberg.catalog import Catalog

from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.row_source import Split
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.errors import DeclarationError, PublishRefused, SourceLost
from lakehouse_assets.extensions.sources.hook import source_range
from lakehouse_assets.extensions.sources.hot_and_cold import hot_and_cold, hot_schema
from lakehouse_assets.extensions.sources.postgres import PostgresTable
from lakehouse_assets.extensions.sources.purge import purgeable
from lakehouse_assets.extensions.sources.sensors import judged
from lakehouse_assets.extensions.sources.warm import warm
from lakehouse_assets.run.resource import Lakehouse
from tests.conftest import Lake
from tests.support.hot_tables import COLUMNS, UPSERT, ddl_of, state_table
from tests.support.standin_mover import made, moving

pytestmark = pytest.mark.server
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SOON = PostgresTable("state", floor=1, grace=timedelta(0))
TABLE = state_table(source=SOON)


@pytest.fixture
def catalog(lake: Lake) -> Catalog:
    return load_lake(lake.settings)


def execute(database: Connection, text: str, *values: Any) -> list[tuple[Any, ...]]:
    with database.cursor() as cursor:
        cursor.execute(text, values or None)
        return cursor.fetchall() if cursor.description else []


def move(catalog: Catalog, table: Table = TABLE) -> None:
    if not catalog.table_exists(table.identifier):
        made(catalog, table)
    for _ in moving(catalog, table):
        pass


def rows(catalog: Catalog, table: Table = TABLE) -> list[tuple[Any, ...]]:
    return sorted(hot_and_cold(table, catalog=catalog).polars().collect().rows())


def planned(catalog: Catalog, table: Table = TABLE) -> object:
    return source_range(table, catalog.load_table(table.identifier).metadata, {})


def test_a_renamed_column_overwrites_nothing(lake: Lake, catalog: Catalog, database: Connection) -> None:
    execute(database, UPSERT, 1, "a", False)
    move(catalog)
    execute(database, "ALTER TABLE state RENAME COLUMN text TO label")
    execute(database, "INSERT INTO state (n) VALUES (1) ON CONFLICT (n) DO UPDATE SET deleted = false")
    says = "postgres:state has no column text"
    with pytest.raises(PublishRefused, match=says):
        planned(catalog)
    with pytest.raises(SourceLost, match="text"):  # renamed behind the plan
        move(catalog)
    with pytest.raises(SourceLost, match=f"{says}, which the table has"):
        rows(catalog)
    found, look = judged(Lakehouse(lake.settings), TABLE, NOW)
    assert (found.passed, look) == (False, None)
    assert says in str(found.description)
    execute(database, "ALTER TABLE state RENAME COLUMN label TO text")
    move(catalog)
    assert rows(catalog) == [(1, "a")]


def test_a_column_that_is_not_declared_stops_moves_and_purges(
    lake: Lake, catalog: Catalog, database: Connection
) -> None:
    execute(database, UPSERT, 1, "a", False)
    move(catalog)
    execute(database, "ALTER TABLE state ADD COLUMN note text DEFAULT 'kept'")
    says = r"values a purge would delete: note\. Declare them, or .*ignore=\['note'\]"
    with pytest.raises(PublishRefused, match=says):
        planned(catalog)
    with pytest.raises(SourceLost, match=says):
        purgeable(catalog, TABLE, time.time() + 60)
    found, look = judged(Lakehouse(lake.settings), TABLE, NOW)
    assert (found.passed, look) == (False, None)
    assert rows(catalog) == [(1, "a")]
    without = state_table(source=replace(SOON, ignore=("note",)))
    assert planned(catalog, without)
    assert purgeable(catalog, without, time.time() + 60)
    assert judged(Lakehouse(lake.settings), without, NOW)[0].passed


def test_a_step_of_its_own_may_add_what_the_source_lacks(catalog: Catalog, database: Connection) -> None:
    computed = state_table(
        columns=(*COLUMNS, column("size", "long")), source=SOON, step="tests.support.hot_tables:same_states"
    )
    made(catalog, computed)
    assert planned(catalog, computed)


def test_a_column_that_neither_has_yet_is_null_for_readers(catalog: Catalog, database: Connection) -> None:
    execute(database, UPSERT, 1, "a", False)
    move(catalog)
    execute(database, UPSERT, 2, "b", False)
    wider = state_table(columns=(*COLUMNS, column("more", "long")), source=SOON)
    assert rows(catalog, wider) == [(1, "a", None), (2, "b", None)]
    with pytest.raises(PublishRefused, match="has no column more: moving"):
        planned(catalog, wider)
    execute(database, ddl_of(wider))
    assert planned(catalog, wider)


def test_rows_of_some_megabytes_are_read(database: Connection) -> None:
    execute(database, "INSERT INTO state (n, text) SELECT n, repeat('x', n * 700000) FROM generate_series(1, 6) AS n")
    execute(database, "INSERT INTO state (n, text) VALUES (7, repeat(E'line\\n\"', 1000000))")
    schema = hot_schema(TABLE)
    found = pa.Table.from_batches(SOON.read(Split(0, 0, None), schema), schema)
    assert {row["n"]: len(row["text"]) for row in found.to_pylist()} == {
        **{n: n * 700_000 for n in range(1, 7)},
        7: 6_000_000,
    }


def test_rows_are_put_back_whatever_computes_their_columns(catalog: Catalog, database: Connection) -> None:
    columns = (column("n", "long", required=True), column("text", "string"), column("shout", "string"))
    table = state_table(columns=columns, source=SOON)
    execute(
        database,
        "DROP TABLE state; CREATE TABLE state (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, text text, "
        "shout text GENERATED ALWAYS AS (upper(text)) STORED);" + ddl_of(table),
    )
    execute(database, "INSERT INTO state (text) VALUES ('a'), ('b')")
    move(catalog, table)
    found = purgeable(catalog, table, time.time() + 60)
    assert found
    assert found.source.purge(found.upto) == 2
    assert warm(catalog, table, "n = 2") == 1
    assert execute(database, "SELECT n, text, shout FROM state") == [(2, "b", "B")]
    assert rows(catalog, table) == [(1, "a", "A"), (2, "b", "B")]


@pytest.mark.parametrize(
    "where",
    ["at >= TIMESTAMP '2026-01-31T00:00:00+01:00'", "at > now() - INTERVAL '1 hour'", "at > '2026-01-31'", "at >"],
)
def test_a_condition_that_cannot_be_used_is_told(catalog: Catalog, database: Connection, where: str) -> None:
    table = state_table(columns=(*COLUMNS, column("at", "timestamptz")), source=SOON)
    execute(database, ddl_of(table))
    with pytest.raises(DeclarationError, match=r"demo\.state can't be read with the condition at >.*TIMESTAMPTZ '2026"):
        hot_and_cold(table, where=where, catalog=catalog).polars()
    execute(database, "INSERT INTO state (n, at) VALUES (1, '2026-01-30 23:00+00'), (2, '2026-01-30 22:59+00')")
    found = hot_and_cold(table, where="at >= TIMESTAMPTZ '2026-01-31 00:00:00+01:00'", catalog=catalog).polars()
    assert found.collect()["n"].to_list() == [1]
