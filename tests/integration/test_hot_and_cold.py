"""A table in front of which a table of PostgreSQL lies: rows move in order, and are read as one wherever they are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from decimal import Decimal
from typing import TYPE_CHECKING

import duckdb
import psycopg2
import pytest
from psycopg2.extensions import connection as Connection

from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.table import OnSchemaChange
from lakehouse_assets.drive.liveness import reap
from lakehouse_assets.environment.catalog import catalog_properties, load_lake
from lakehouse_assets.errors import SourceLost, SourceUnreachable
from lakehouse_assets.extensions.sources.hot_and_cold import HotAndCold, hot_and_cold
from lakehouse_assets.extensions.sources.postgres import PostgresTable
from lakehouse_assets.maintenance.rewrite.compact import compact
from lakehouse_assets.run import table_run
from lakehouse_assets.worker.session import configure
from tests.conftest import Lake, failure_text
from tests.support.change_reading_deaths import Stage
from tests.support.faults import from_failure
from tests.support.hot_tables import COLUMNS, UPSERT, ddl_of, state_table
from tests.support.live_lake import live_catalogs
from tests.support.rewrites import token
from tests.support.standin_mover import made, moving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


def killed(lake: Lake, stage: Stage) -> str:
    """A run in a process of its own that is killed before it comes to a step; returns its id."""
    command = [
        sys.executable,
        "-m",
        "tests.support.change_reading_deaths",
        stage,
        "tests.support.hot_tables:state_table",
    ]
    # A worker of its own reads the source.
    environment = {**os.environ, "DAGSTER_HOME": lake.instance.root_directory, "LAKEHOUSE_COMPUTE": "local"}
    assert subprocess.run(command, env=environment, timeout=120).returncode == -signal.SIGKILL
    reap(lake.instance)
    return lake.instance.get_runs(limit=1)[0].run_id


@pytest.mark.slow("The first of its file starts Spark.")
def test_rows_are_read_wherever_they_are(lake: Lake, database: Connection) -> None:
    upsert(database, (1, "a"), (2, "b"), (3, ""), (4, None))
    assert seen(lake) == {1: "a", 2: "b", 3: "", 4: None}
    (event,) = lake.run(state_table()).get_asset_materialization_events()
    position = hot_and_cold(state_table(), catalog=load_lake(lake.settings)).position
    assert event.materialization.metadata["moved_to"].value == str(position)
    assert cold(lake) == {1: "a", 2: "b", 3: "", 4: None}
    upsert(database, (2, "c"), (5, "d"))
    upsert(database, (1, "a"), deleted=True)
    assert seen(lake) == {2: "c", 3: "", 4: None, 5: "d"}
    move(lake)
    assert seen(lake) == cold(lake) == {2: "c", 3: "", 4: None, 5: "d"}


def test_what_is_being_written_is_moved_once_it_is_there(lake: Lake, database: Connection) -> None:
    with psycopg2.connect("") as early, early.cursor() as cursor:
        cursor.execute(UPSERT, (1, "early", False))
        upsert(database, (2, "late"))  # begins later, commits before
        assert seen(lake) == {2: "late"}
        move(lake)
    assert seen(lake) == {1: "early", 2: "late"}
    move(lake)
    assert cold(lake) == {1: "early", 2: "late"}


DEATHS = (
    pytest.param(Stage.COMMITTED, marks=pytest.mark.slow("The hardest death of a mover, with a JVM of its own.")),
    *(pytest.param(one, marks=pytest.mark.long("The other steps of a run.")) for one in (Stage.PLANNED, Stage.AUDITED)),
)


@pytest.mark.parametrize("stage", DEATHS)
def test_a_mover_that_is_killed_moves_each_row_once(lake: Lake, database: Connection, stage: Stage) -> None:
    upsert(database, (1, "a"), (2, "b"))
    run = killed(lake, stage)
    upsert(database, (2, "c"), (3, "d"))
    assert seen(lake) == {1: "a", 2: "c", 3: "d"}
    result = lake.run(state_table(), tags=from_failure(run))
    assert result.success, failure_text(result)
    has_no_plan = stage is Stage.PLANNED  # else that says what is moved
    assert cold(lake) == ({1: "a", 2: "c", 3: "d"} if has_no_plan else {1: "a", 2: "b"})
    assert seen(lake) == {1: "a", 2: "c", 3: "d"}
    move(lake)
    assert seen(lake) == cold(lake) == {1: "a", 2: "c", 3: "d"}


def test_of_two_movers_at_once_the_second_moves_what_the_first_has_not(
    lake: Lake, database: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    upsert(database, (1, "a"))
    audit, others = table_run.audit, [lambda: (upsert(database, (2, "b")), move(lake))]

    def another_first(*arguments: object) -> object:
        found = audit(*arguments)  # type: ignore[arg-type]
        if others:
            others.pop()()
        return found

    monkeypatch.setattr(table_run, "audit", another_first)
    upsert(database, (1, "c"))
    move(lake)
    assert seen(lake) == cold(lake) == {1: "c", 2: "b"}
    assert lake.snapshots(state_table()) == 2


def test_a_compaction_and_a_rollback_are_no_loss(lake: Lake, database: Connection) -> None:
    for n in (1, 2):
        upsert(database, (n, "a"))
        move(lake)
    catalog = load_lake(lake.settings)
    first = lake.table(state_table()).snapshots()[0].snapshot_id
    compact(catalog, state_table().identifier, token("compaction"))
    upsert(database, (3, "a"))
    assert seen(lake) == {1: "a", 2: "a", 3: "a"}
    lake.table(state_table()).manage_snapshots().rollback_to_snapshot(first).commit()
    assert seen(lake) == {1: "a", 2: "a", 3: "a"}
    move(lake)
    assert cold(lake) == {1: "a", 2: "a", 3: "a"}


def test_a_position_that_javas_expiry_took_is_told(lake: Lake, database: Connection, jvm: SparkSession) -> None:
    """Its children go on naming it, where PyIceberg's have no parent any more."""
    upsert(database, (1, "a"))
    move(lake)
    lake.table(state_table()).overwrite(lake.rows(state_table()))  # without the position, as other clients do
    assert seen(lake) == {1: "a"}
    spark = configure(jvm.newSession(), live_catalogs(catalog_properties(lake.settings)))
    older = "TIMESTAMP '2100-01-01 00:00:00'"
    spark.sql(f"CALL lake.system.expire_snapshots(table => 'demo.state', older_than => {older}, retain_last => 1)")
    upsert(database, (2, "b"))
    says = "no snapshot of main records how far it was read"
    with pytest.raises(SourceLost, match=says):
        seen(lake)
    result = lake.run(state_table())
    assert not result.success
    assert says in failure_text(result)
    assert lake.run(state_table(), tags={"lakehouse/read_all": "true"}).success
    assert seen(lake) == cold(lake) == {1: "a", 2: "b"}


def test_every_engine_reads_the_same(lake: Lake, database: Connection, jvm: SparkSession) -> None:
    upsert(database, (1, "a"), (2, "b"), (3, "x"))
    move(lake)
    upsert(database, (2, "x"), (4, "x"))
    upsert(database, (3, "x"), deleted=True)
    found = hot_and_cold(state_table(), columns=["n"], where="text = 'x'", catalog=load_lake(lake.settings))
    assert sorted(found.polars().collect()["n"]) == [2, 4]  # not 3, which the lake has with this value
    with duckdb.connect() as connection:
        found.duckdb(connection, "state")
        assert connection.sql("SELECT n FROM state ORDER BY n").fetchall() == [(2,), (4,)]
    spark = configure(jvm.newSession(), live_catalogs(catalog_properties(lake.settings)))
    assert sorted(row.n for row in found.spark(spark, "state").collect()) == [2, 4]
    assert spark.sql("SELECT count(*) FROM state").first()[0] == 2


def test_a_time_without_a_zone_is_in_none_of_sparks(lake: Lake, database: Connection, jvm: SparkSession) -> None:
    columns = (column("n", "long", required=True), column("at", "timestamp"), column("sent", "timestamptz"))
    table, catalog = state_table(columns=columns), load_lake(lake.settings)
    insert = "INSERT INTO state (n, at, sent) VALUES (%s, '2026-03-08 02:30', '2026-03-08 07:30+00')"
    with database.cursor() as cursor:
        cursor.execute("DROP TABLE state")
        cursor.execute(ddl_of(table))
        cursor.execute(insert, (1,))
        made(catalog, table)
        for _ in moving(catalog, table):
            pass
        cursor.execute(insert, (2,))
    spark = configure(jvm.newSession(), live_catalogs(catalog_properties(lake.settings)))
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")  # where this hour was left out
    hot_and_cold(table, catalog=catalog).spark(spark, "state")
    found = spark.sql("SELECT n, string(at), string(sent) FROM state ORDER BY n").collect()
    assert [(*row,) for row in found] == [(n, "2026-03-08 02:30:00", "2026-03-08 03:30:00") for n in (1, 2)]


def test_filters_and_columns_reach_the_files(lake: Lake, database: Connection) -> None:
    upsert(database, (1, "a"))
    move(lake)
    upsert(database, (2, "b"))
    found = hot_and_cold(state_table(), columns=["text"], where="n > 0", catalog=load_lake(lake.settings))
    plan = found.polars().explain()
    assert 'col("n")' in plan.split("DF [")[0]
    assert "SELECTION" in plan


def test_a_column_is_there_for_readers_before_the_source_and_the_table_have_it(
    lake: Lake, database: Connection
) -> None:
    upsert(database, (1, "a"))
    move(lake)
    wider = state_table(
        columns=(*COLUMNS, column("more", "decimal(9,2)")), on_schema_change=OnSchemaChange.APPEND_NEW_COLUMNS
    )

    def rows() -> list[tuple[object, ...]]:
        found: HotAndCold = hot_and_cold(wider, catalog=load_lake(lake.settings))
        return sorted(found.polars().collect().rows())

    upsert(database, (2, "b"))
    assert rows() == [(1, "a", None), (2, "b", None)]
    with database.cursor() as cursor:
        cursor.execute(ddl_of(wider))
        cursor.execute("INSERT INTO state (n, text, more) VALUES (3, 'c', 1.5)")
    assert rows() == [(1, "a", None), (2, "b", None), (3, "c", Decimal("1.50"))]
    result = lake.run(wider)
    assert result.success, failure_text(result)
    assert rows() == [(1, "a", None), (2, "b", None), (3, "c", Decimal("1.50"))]
    assert lake.table(wider).schema().column_names == ["n", "text", "more"]
    assert lake.snapshots(wider) == 2  # rows and column in one commit


def test_a_database_that_was_restarted_is_read_again(
    lake: Lake, database: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    upsert(database, (1, "a"))
    read, faults = PostgresTable.read, [1]

    def disconnected(self: PostgresTable, *arguments: object) -> object:
        if faults:
            faults.pop()
            raise SourceUnreachable("terminating connection due to administrator command")
        return read(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(PostgresTable, "read", disconnected)
    assert seen(lake) == {1: "a"}


def test_no_connection_left_is_told_and_the_next_run_moves(lake: Lake, database: Connection) -> None:
    upsert(database, (1, "a"))
    with database.cursor() as cursor:
        cursor.execute("DROP ROLE IF EXISTS narrow")
        cursor.execute("CREATE ROLE narrow LOGIN CONNECTION LIMIT 1")
        cursor.execute("GRANT ALL ON state, lakehouse_purged, lakehouse_marks TO narrow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGUSER", "narrow")
        with closing(psycopg2.connect("")):
            result = lake.run(state_table())
            assert not result.success
            assert "too many connections for role" in failure_text(result)
        move(lake)  # as a user who has no more rights than these
    assert cold(lake) == {1: "a"}


def test_a_database_restored_elsewhere_is_another_one(lake: Lake, database: Connection) -> None:
    upsert(database, (1, "a"))
    move(lake)
    with database.cursor() as cursor:
        cursor.execute("CREATE TABLE copied AS SELECT * FROM state; DROP TABLE state")
        cursor.execute(ddl_of(state_table()))
        cursor.execute("INSERT INTO state SELECT * FROM copied; DROP TABLE copied")
    result = lake.run(state_table())
    assert not result.success
    assert "postgres:state is not the one that was read" in failure_text(result)
    assert lake.run(state_table(), tags={"lakehouse/read_all": "true"}).success
    assert seen(lake) == {1: "a"}
