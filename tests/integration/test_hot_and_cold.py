"""A table in front of which a table of PostgreSQL lies: rows move in order, and are read as one wherever they are."""

from __future__ import annotations

import pytest
from psycopg2.extensions import connection as Connection

from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.hot.hot_and_cold import hot_and_cold
from tests.conftest import Lake, failure_text
from tests.support.hot_tables import UPSERT, state_table

pytestmark = [pytest.mark.server, pytest.mark.spark, pytest.mark.usefixtures("inline")]


def upsert(database: Connection, *rows: tuple[int, str | None], deleted: bool = False) -> None:
    with database.cursor() as cursor:
        cursor.executemany(UPSERT, [(*row, deleted) for row in rows])


def move(lake: Lake) -> None:
    result = lake.run(state_table())
    assert result.success, failure_text(result)


def seen(lake: Lake) -> dict[int, str]:
    """What a reader sees, by n; a row that comes twice fails."""
    rows = hot_and_cold(state_table(), catalog=load_lake(lake.settings)).polars().collect().rows()
    assert len(rows) == len(dict(rows)), f"a row comes twice: {sorted(rows)}"
    return dict(rows)


def cold(lake: Lake) -> dict[int, str]:
    return {row["n"]: row["text"] for row in lake.rows(state_table()).to_pylist()}


def test_rows_are_read_wherever_they_are(lake: Lake, database: Connection) -> None:
    upsert(database, (1, "a"), (2, "b"), (3, ""), (4, None))
    assert seen(lake) == {1: "a", 2: "b", 3: "", 4: None}
    move(lake)
    assert cold(lake) == {1: "a", 2: "b", 3: "", 4: None}
    upsert(database, (2, "c"), (5, "d"))
    upsert(database, (1, "a"), deleted=True)
    assert seen(lake) == {2: "c", 3: "", 4: None, 5: "d"}
    move(lake)
    assert seen(lake) == cold(lake) == {2: "c", 3: "", 4: None, 5: "d"}
