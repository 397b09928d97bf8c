"""Sessions with PostgreSQL: what roles, databases and variables set must change no value and hide no row, and what
does not answer is told in words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import psycopg2
import pyarrow as pa
import pytest
from psycopg2.extensions import connection as Connection

from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.row_source import Split
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.errors import BadValue, SourceLost, SourceUnreachable
from lakehouse_assets.extensions.sources import hot_and_cold as reader
from lakehouse_assets.extensions.sources import postgres_session
from lakehouse_assets.extensions.sources import sensors as source_sensors
from lakehouse_assets.extensions.sources.hot_and_cold import hot_and_cold, hot_schema
from lakehouse_assets.extensions.sources.postgres import PostgresTable
from lakehouse_assets.extensions.sources.sensors import judged
from lakehouse_assets.run.resource import Lakehouse
from tests.conftest import Lake
from tests.support.hot_tables import UPSERT, ddl_of, state_table

pytestmark = pytest.mark.server
STATE, NOW = PostgresTable("state"), datetime(2026, 1, 1, tzinfo=UTC)
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
    found: list[dict[str, Any]] = rows.sort_by("n").to_pylist()
    return found


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
        with pytest.raises(SourceUnreachable, match="postgres:state accepts no writes at"):
            STATE.purge(9)


@contextmanager
def altering(database: Connection) -> Iterator[None]:
    """An ALTER TABLE that nobody commits, for some seconds."""
    with closing(psycopg2.connect("", options="-c idle_in_transaction_session_timeout=20s")) as holder:
        with holder.cursor() as cursor:
            cursor.execute("ALTER TABLE state ALTER text SET DEFAULT ''")
        yield


def test_a_lock_holds_up_no_reader_and_no_other_table(
    lake: Lake, database: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, free = (
        load_lake(lake.settings),
        replace(state_table(), identifier="demo.free", source=PostgresTable("free")),
    )
    with database.cursor() as cursor:
        cursor.execute(ddl_of(free))
        cursor.execute("INSERT INTO free (n) VALUES (1)")
    monkeypatch.setitem(postgres_session.PINNED, "lock_timeout", "200ms")
    monkeypatch.setattr(reader, "UNREACHABLE_SECONDS", 0)
    says = "postgres:state: a transaction has held a lock"
    with altering(database):
        with pytest.raises(SourceUnreachable, match=says):
            hot_and_cold(state_table(), catalog=catalog)
        with pytest.raises(SourceUnreachable, match=says):
            STATE.purge(9)
        (stalled, look), (found, other) = (
            judged(Lakehouse(lake.settings), table, NOW) for table in (state_table(), free)
        )
    assert (stalled.passed, look) == (False, None)
    assert says in str(stalled.description)
    assert found.passed
    assert other
    assert other.lag.rows == 1
    with database.cursor() as cursor:
        cursor.execute("DROP TABLE free")


def test_a_role_that_sees_no_other_sees_that_rows_are_held_back(lake: Lake, database: Connection) -> None:
    later = datetime.now(UTC) + timedelta(minutes=6)
    with closing(psycopg2.connect("")) as writer, role(database):
        writer.cursor().execute(UPSERT, (1, "a", False))
        with database.cursor() as cursor:
            cursor.execute(UPSERT, (2, "b", False))
        found, look = judged(Lakehouse(lake.settings), state_table(), later)
        assert look
        assert (look.lag.rows, look.lag.held, look.metadata(later)["lag_rows"]) == (0, 1, 1)
        assert look.metadata(later)["lag_seconds"] > 300
        assert not found.passed
        assert "postgres:state has rows that were written more than 300 s ago and can't be moved" in str(
            found.description
        )
        assert "narrow can't see other roles' transactions: GRANT pg_read_all_stats TO narrow" in str(found.description)
        with database.cursor() as cursor:
            cursor.execute("GRANT pg_read_all_stats TO narrow")
        seen = STATE.oldest_writer()
        assert (seen.who, seen.blind_role) == (
            f"process {writer.info.backend_pid} of lakehouse in database postgres",
            "",
        )


def test_a_prepared_transaction_is_seen(lake: Lake, database: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_sensors, "LONG_WRITER_SECONDS", 0.0)
    with database.cursor() as cursor:
        cursor.execute("BEGIN; INSERT INTO state (n) VALUES (1); PREPARE TRANSACTION 'left'")
        try:
            cursor.execute(UPSERT, (2, "b", False))
            found, _ = judged(Lakehouse(lake.settings), state_table(), datetime.now(UTC))
        finally:
            cursor.execute("ROLLBACK PREPARED 'left'")
    assert not found.passed
    assert "a transaction (prepared 'left' of lakehouse in database postgres) has been writing" in str(
        found.description
    )
