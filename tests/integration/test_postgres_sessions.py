"""Sessions with PostgreSQL: what roles, databases and variables set must change no value and hide no row, and what
does not answer is told in words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, date, datetime
from typing import Any

import psycopg2
import pyarrow as pa
import pytest
from psycopg2.extensions import connection as Connection

from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.table import Table
from lakehouse_assets.errors import BadValue, SourceLost, SourceUnreachable
from lakehouse_assets.hot.hot_rows import hot_schema
from lakehouse_assets.sources.postgres import PostgresTable
from lakehouse_assets.sources.row_source import Split
from tests.support.hot_tables import UPSERT, ddl_of, state_table

pytestmark = pytest.mark.server
STATE = PostgresTable("state")
ALL = Split(0, 0, None)
WIDE = state_table(
    columns=(
        *(column("n", "long", required=True), column("text", "string"), column("ratio", "double")),
        *(column("day", "date"), column("at", "timestamptz")),
    )
)
ROW = {
    "n": 1,
    "text": "Zoë",
    "ratio": 0.1 + 0.2,
    "day": date(2026, 2, 3),
    "at": datetime(2026, 2, 3, 4, 5, 6, 789, UTC),
}


@pytest.fixture
def wide(database: Connection) -> Connection:
    with database.cursor() as cursor:
        cursor.execute("DROP TABLE state")
        cursor.execute(ddl_of(WIDE))
    return database


@contextmanager
def role(database: Connection, *settings: str, rights: str = "") -> Iterator[None]:
    """Sources are read by a role with these rights and settings."""
    with database.cursor() as cursor:
        cursor.execute("DROP ROLE IF EXISTS narrow; CREATE ROLE narrow LOGIN")
        cursor.execute(f"GRANT ALL ON state, lakehouse_purged TO narrow; {rights}")
        for setting in settings:
            cursor.execute(f"ALTER ROLE narrow SET {setting}")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PGUSER", "narrow")
            yield
        cursor.execute("DROP OWNED BY narrow; DROP ROLE narrow")


@contextmanager
def database_in(encoding: str, table: Table) -> Iterator[Connection]:
    """A database in another encoding, with an empty source."""
    with closing(psycopg2.connect("")) as around:
        around.autocommit = True
        with around.cursor() as cursor:
            cursor.execute("DROP DATABASE IF EXISTS encoded")
            cursor.execute(
                f"CREATE DATABASE encoded ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
            )
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PGDATABASE", "encoded")
            with closing(psycopg2.connect("", client_encoding="UTF8")) as connection:
                connection.autocommit = True
                with connection.cursor() as cursor:
                    cursor.execute(ddl_of(table))
                yield connection
        with around.cursor() as cursor:
            cursor.execute("DROP DATABASE encoded")


def read(table: Table) -> list[dict[str, Any]]:
    """What a reader or a run gets of the source, by n."""
    assert table.source is not None
    schema = hot_schema(table)
    rows = pa.Table.from_batches(table.source.read(ALL, schema), schema).drop_columns(["deleted"])
    return rows.sort_by("n").to_pylist()


def test_settings_of_a_role_change_no_value(wide: Connection) -> None:
    names = ", ".join(ROW)
    with wide.cursor() as cursor:
        cursor.execute(f"INSERT INTO state ({names}) VALUES (%s, %s, %s, %s, %s)", (*ROW.values(),))
    settings = ("extra_float_digits = 0", "DateStyle = 'German, DMY'", "TimeZone = 'America/New_York'")
    with role(wide, *settings, "client_encoding = 'LATIN1'", "statement_timeout = 50"):
        assert read(WIDE) == [ROW]


def test_options_of_the_environment_count_too(wide: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c search_path=elsewhere -c DateStyle=German")
    with wide.cursor() as cursor:
        cursor.execute("CREATE SCHEMA elsewhere; ALTER TABLE state SET SCHEMA elsewhere")
        cursor.execute("INSERT INTO elsewhere.state (n, day) VALUES (1, '2026-02-03')")
        try:
            assert [row["day"] for row in read(WIDE)] == [date(2026, 2, 3)]
        finally:
            cursor.execute("DROP SCHEMA elsewhere CASCADE")


@pytest.mark.parametrize(("encoding", "text"), [("LATIN1", "Zoë"), ("WIN1252", "Zoë €"), ("EUC_JP", "東京")])
def test_databases_in_other_encodings_are_read_and_written(database: Connection, encoding: str, text: str) -> None:
    with database_in(encoding, state_table()) as connection, connection.cursor() as cursor:
        cursor.execute(UPSERT, (1, text, False))
        assert read(state_table()) == [{"n": 1, "text": text}]
        assert STATE.put_back(pa.table({"n": [2], "text": [text]}), ["n"], STATE.state().safe[0]) == 1
        cursor.execute("SELECT text FROM state WHERE n = 2")
        assert cursor.fetchall() == [(text,)]
        with pytest.raises(BadValue, match=r"postgres:state: character .* has no equivalent in encoding"):
            STATE.put_back(pa.table({"n": [3], "text": ["🙂"]}), ["n"], STATE.state().safe[0])


def test_rows_that_a_policy_hides_are_not_passed_over(database: Connection) -> None:
    with database.cursor() as cursor:
        cursor.executemany(UPSERT, [(1, "a", False), (2, "b", False)])
        cursor.execute("ALTER TABLE state ENABLE ROW LEVEL SECURITY")
    state = STATE.state()
    with role(database, rights="CREATE POLICY one ON state TO narrow USING (n = 1)"):
        for ask in (lambda: read(state_table()), lambda: STATE.lag(state, state.begin(None)), lambda: STATE.purge(9)):
            with pytest.raises(SourceLost, match=r"row-level security.*BYPASSRLS"):
                ask()


def test_an_application_that_replicates_stamps_its_rows_too(database: Connection) -> None:
    with database.cursor() as cursor:
        cursor.execute(UPSERT, (1, "a", False))
        (before,) = STATE.state().safe
        cursor.execute("SET session_replication_role = replica")
        cursor.execute(UPSERT, (1, "b", False))
        cursor.execute("SELECT pos >= %s FROM state", (before,))
        assert cursor.fetchall() == [(True,)]
        with pytest.raises(psycopg2.errors.RaiseException, match="set deleted = true"):
            cursor.execute("DELETE FROM state")
        with pytest.raises(psycopg2.errors.RaiseException, match="insert one with the other key"):
            cursor.execute("UPDATE state SET n = 2")
        with pytest.raises(psycopg2.errors.RaiseException, match="in place of TRUNCATE"):
            cursor.execute("TRUNCATE state")


def test_a_server_that_takes_no_writes_is_told(database: Connection) -> None:
    with role(database, "default_transaction_read_only = on"):
        assert read(state_table()) == []
        with pytest.raises(SourceUnreachable, match="postgres:state takes no writes at"):
            STATE.purge(9)
