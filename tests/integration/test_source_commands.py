"""`lakehouse source sql` and `lakehouse warm`, typed in this project as a person would."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from psycopg2.extensions import connection as Connection

from lakehouse_assets.domains.live.tables import flight_state
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.extensions.sources.postgres import PostgresTable
from tests.conftest import ROOT
from tests.support.hot_tables import UPSERT, ddl_of, state_table
from tests.support.standin_mover import made, moving

pytestmark = pytest.mark.server
ROW = "('2013-01-01', 'UA', 1545, 'EWR', 515, 'departed')"


@pytest.fixture
def flights(database: Connection, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    """The database of the domain live, which has no source yet."""
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    yield database
    with database.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS flight_state CASCADE")


def typed(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lakehouse_assets.cli", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def move(settings: Settings) -> None:
    """What the source has goes to the table, which is made first."""
    catalog = load_lake(settings)
    made(catalog, flight_state)
    for _ in moving(catalog, flight_state):
        pass


def test_a_table_that_is_there_already_becomes_a_source(database: Connection) -> None:
    with database.cursor() as cursor:
        cursor.execute("DROP TABLE state; CREATE TABLE state (n bigint PRIMARY KEY); INSERT INTO state VALUES (1)")
        cursor.execute(ddl_of(state_table()))
        cursor.execute(
            "SELECT n, text, deleted, pos >= pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 1 FROM state"
        )
        assert cursor.fetchall() == [(1, None, False, True)]
    assert PostgresTable("state").lacking(["n", "text", "zzz"]) == ["zzz"]
    with database.cursor() as cursor:
        cursor.execute(UPSERT, (1, "a", False))


@pytest.mark.slow("The commands as a person types them, a process each.")
def test_a_source_is_set_up_and_rows_are_put_back(flights: Connection, settings: Settings) -> None:
    for _ in range(2):  # it may be executed again
        assert typed("source", "sql", "flight_state", "--apply").stdout == "flight_state is set up as a source\n"
    with flights.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO flight_state (flight_date, carrier, flight, origin, sched_dep_time, status) VALUES {ROW}"
        )
    move(settings)
    told = typed("warm", "live.flight_state", "--where", "flight_date = '2013-01-01'")
    assert "1 rows of live.flight_state were put back into its source" in told.stdout, told


@pytest.mark.long("A process for each; what the commands do is held by the other tests of this file.")
def test_what_they_print_and_refuse(flights: Connection, settings: Settings) -> None:
    assert "CREATE TABLE IF NOT EXISTS" in typed("source", "sql", "flight_state").stdout
    assert "the declared sources are flight_state" in typed("source", "sql", "flights").stderr
    typed("source", "sql", "flight_state", "--apply")
    move(settings)
    for condition, says in (("nothing = 1", "can't be used"), ("carrier = ", "can't be read, starting at")):
        told = typed("warm", "live.flight_state", "--where", condition)
        assert f"the condition {condition!r} {says}" in told.stderr, told
