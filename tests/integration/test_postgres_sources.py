"""What a table of PostgreSQL may be, who may refer to it and move it, and what is said after its database was restored.
Rows are moved by a stand-in, which takes the real steps; what a run does is tested in test_hot_and_cold.py."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta

import psycopg2
import pytest
from psycopg2.extensions import connection as Connection
from pyiceberg.catalog import Catalog

from lakehouse_assets.commit.positions import positions_of
from lakehouse_assets.declare.row_source import Offsets, Split
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.errors import PublishRefused, SourceLost
from lakehouse_assets.extensions.sources.hot_and_cold import hot_and_cold, hot_schema
from lakehouse_assets.extensions.sources.postgres import PostgresTable
from lakehouse_assets.extensions.sources.purge import purgeable
from lakehouse_assets.extensions.sources.sensors import judged
from lakehouse_assets.extensions.sources.source_range import offsets
from lakehouse_assets.run.resource import Lakehouse
from tests.conftest import missing
from tests.support.hot_tables import UPSERT, ddl_of, make_source, state_table
from tests.support.light_move import LightMove
from tests.support.postgres import PostgreSQL, binaries, postgresql
from tests.support.standin_mover import made, moving

pytestmark = pytest.mark.server
SOURCE = PostgresTable("state", grace=timedelta(0))
OTHERS = "is moved into another table, demo"
READ_ALL = {"lakehouse/read_all": "true"}


@pytest.fixture
def table() -> Table:
    return state_table(source=SOURCE)


@pytest.fixture
def catalog(settings: Settings, table: Table) -> Catalog:
    catalog = load_lake(settings)
    made(catalog, table)
    return catalog


def execute(database: Connection, text: str) -> None:
    with database.cursor() as cursor:
        cursor.execute(text)


def upsert(database: Connection, *rows: tuple[int, str]) -> None:
    with database.cursor() as cursor:
        cursor.executemany(UPSERT, [(*row, False) for row in rows])


def in_hot(database: Connection, table: str = "state") -> list[tuple[object, ...]]:
    with database.cursor() as cursor:
        cursor.execute(f"SELECT * FROM (SELECT * FROM {table}) AS found ORDER BY 1")
        return cursor.fetchall()


def move(catalog: Catalog, table: Table, tags: Mapping[str, str] = {}) -> None:
    """As a run does: it is planned, refused or not, and lands."""
    move_of_run = LightMove(table, f"run-{time.time_ns()}", reads_all=bool(tags))
    move_of_run.stage(catalog)
    move_of_run.publish(catalog)


def position(catalog: Catalog, table: Table) -> Offsets:
    assert table.source
    found = offsets(positions_of(catalog.load_table(table.identifier).metadata), table.source.name)
    assert found
    return found


def rows(catalog: Catalog, table: Table) -> dict[int, str]:
    return dict(hot_and_cold(table, catalog=catalog).polars().collect().rows())


def set_up_before(database: Connection, made_by: str) -> None:
    """A source as it was made before its table was looked at. made_by: the SQL that makes the table."""
    execute(database, f"DROP TABLE state; {made_by}")
    text = ddl_of(state_table())
    execute(database, text[text.index("CREATE TABLE") :])


PARTITIONED = """
CREATE TABLE state (n bigint, text text, PRIMARY KEY (n)) PARTITION BY RANGE (n);
CREATE TABLE january PARTITION OF state FOR VALUES FROM (0) TO (10);
CREATE TABLE february PARTITION OF state FOR VALUES FROM (10) TO (20)
"""
PLAIN = "CREATE TABLE state (n bigint PRIMARY KEY, text text)"
REFUSED = {
    "it is partitioned": PARTITIONED,
    r"tables inherit from it \(heir\)": f"{PLAIN}; CREATE TABLE heir () INHERITS (state)",
    "it is unlogged": PLAIN.replace("TABLE", "UNLOGGED TABLE"),
    "rows of state, whose .* ON DELETE CASCADE": (
        f"{PLAIN}; ALTER TABLE state ADD up bigint REFERENCES state ON DELETE CASCADE"
    ),
}
ACTIONS = ("CASCADE", "SET NULL", "SET DEFAULT")


@pytest.fixture
def clean(database: Connection) -> Connection:
    execute(database, "DROP TABLE IF EXISTS refers, other CASCADE")
    return database


@pytest.mark.parametrize("says", REFUSED)
def test_a_table_that_would_lose_rows_is_refused(clean: Connection, catalog: Catalog, table: Table, says: str) -> None:
    set_up_before(clean, REFUSED[says])
    upsert(clean, *((n, "moved") for n in range(5)))
    for _ in moving(catalog, table):  # of a run before it was looked at
        pass
    upsert(clean, *((n, "not moved") for n in range(10, 15)))
    before = in_hot(clean)
    with pytest.raises(psycopg2.errors.RaiseException, match=f"state can't be a source: .*{says}"):
        execute(clean, ddl_of(table))
    refused_everywhere(catalog, table, says)
    assert in_hot(clean) == before


@pytest.mark.parametrize("action", ACTIONS)
def test_a_reference_that_a_purge_would_follow_is_refused(
    clean: Connection, catalog: Catalog, table: Table, action: str
) -> None:
    upsert(clean, (1, "moved"))
    move(catalog, table)
    execute(clean, f"CREATE TABLE refers (n int, state bigint REFERENCES state ON DELETE {action})")
    execute(clean, "INSERT INTO refers VALUES (1, 1)")
    says = (
        f"a purge would change rows of refers, whose constraint refers_state_fkey refers to it with ON DELETE {action}"
    )
    refused_everywhere(catalog, table, says)
    assert in_hot(clean, "refers") == [(1, 1)]
    assert len(in_hot(clean)) == 1


def refused_everywhere(catalog: Catalog, table: Table, says: str) -> None:
    with pytest.raises(PublishRefused, match=f"postgres:state can't be moved or purged: .*{says}"):
        move(catalog, table)
    with pytest.raises(SourceLost, match=says):
        purgeable(catalog, table, time.time() + 60)
    with pytest.raises(SourceLost, match=says):
        SOURCE.purge(position(catalog, table).by_partition[0])


def test_a_purge_deletes_of_its_own_source_only(clean: Connection, catalog: Catalog, table: Table) -> None:
    """Whatever triggers an application has: the other one's rows are not moved yet."""
    other = state_table(identifier="demo.other", source=PostgresTable("other"))
    execute(clean, ddl_of(other))
    execute(clean, "INSERT INTO other VALUES (1, 'not moved')")
    execute(
        clean,
        "CREATE OR REPLACE FUNCTION tidy() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN DELETE FROM other WHERE n = OLD.n; RETURN OLD; END $$; "
        "CREATE TRIGGER tidy AFTER DELETE ON state FOR EACH ROW EXECUTE FUNCTION tidy()",
    )
    upsert(clean, (1, "moved"))
    move(catalog, table)
    with pytest.raises(Exception, match="other is moved to the lake: set deleted = true in place of DELETE"):
        SOURCE.purge(position(catalog, table).by_partition[0])
    assert len(in_hot(clean, "other")) == len(in_hot(clean)) == 1


def test_a_plain_reference_is_told(clean: Connection, settings: Settings, catalog: Catalog, table: Table) -> None:
    execute(clean, "CREATE TABLE refers (state bigint REFERENCES state)")
    upsert(clean, (1, "moved"))
    execute(clean, "INSERT INTO refers VALUES (1)")
    move(catalog, table)
    assert "rows that refers refers to can't be purged" in check(settings, table)
    with pytest.raises(Exception, match=r"violates foreign key constraint .*refers_state_fkey.* on table .*refers"):
        SOURCE.purge(position(catalog, table).by_partition[0])
    assert rows(catalog, table) == {1: "moved"}


def check(settings: Settings, table: Table) -> str:
    return judged(Lakehouse(settings), table, datetime.now(UTC))[0].description or ""


# Columns that are there already


@pytest.mark.parametrize(
    ("column", "says"),
    [
        ("pos integer DEFAULT 7", 'its column pos is "integer DEFAULT 7", and a source has one of its own: bigint'),
        ("pos bigint NOT NULL DEFAULT 7", 'its column pos is "bigint NOT NULL DEFAULT 7"'),
        ("pos bigint GENERATED ALWAYS AS IDENTITY", 'its column pos is "bigint NOT NULL"'),
        ("pos_at timestamptz", 'its column pos_at is "timestamp with time zone"'),
        ("deleted timestamptz", 'its column deleted is "timestamp with time zone", .*: boolean'),
    ],
)
def test_a_column_of_the_application_is_not_taken_over(
    clean: Connection, catalog: Catalog, table: Table, column: str, says: str
) -> None:
    execute(clean, f"DROP TABLE state; {PLAIN}; ALTER TABLE state ADD {column}; INSERT INTO state VALUES (1, 'a')")
    before = in_hot(clean)
    with pytest.raises(psycopg2.errors.RaiseException, match=says):
        execute(clean, ddl_of(table))
    assert in_hot(clean) == before
    with pytest.raises(PublishRefused, match=says):
        move(catalog, table)


def test_a_null_in_an_applications_deleted_is_no_deletion(clean: Connection, catalog: Catalog, table: Table) -> None:
    execute(clean, f"DROP TABLE state; {PLAIN}; ALTER TABLE state ADD deleted boolean")
    execute(clean, ddl_of(table))
    execute(clean, "INSERT INTO state VALUES (1, 'a', NULL), (2, 'b', false), (3, 'c', true)")
    assert rows(catalog, table) == {1: "a", 2: "b"}
    move(catalog, table)
    execute(clean, "UPDATE state SET text = 'new'")
    assert rows(catalog, table) == {1: "new", 2: "new"}


def test_the_sql_may_be_executed_again(clean: Connection, catalog: Catalog, table: Table) -> None:
    upsert(clean, (1, "a"))
    before = in_hot(clean)
    execute(clean, ddl_of(table))
    assert in_hot(clean) == before
    move(catalog, table)
    SOURCE.purge(to := position(catalog, table).by_partition[0])
    execute(clean, ddl_of(table))
    assert SOURCE.state().first == (to,)
    assert rows(catalog, table) == {1: "a"}


# One table, one mover


def test_a_table_has_one_mover_by_whatever_name(
    clean: Connection, settings: Settings, catalog: Catalog, table: Table
) -> None:
    other = state_table(identifier="demo.other", source=PostgresTable("public.state", grace=timedelta(0)))
    made(catalog, other)
    execute(clean, ddl_of(other))
    upsert(clean, (1, "a"))
    move(catalog, table)
    says = "postgres:public.state is moved into another table, demo.state@.*, not into demo.other@"
    with pytest.raises(PublishRefused, match=says):
        move(catalog, other)
    SOURCE.purge(position(catalog, table).by_partition[0])
    with pytest.raises(SourceLost, match="was purged up to"):
        rows(catalog, other)
    upsert(clean, (2, "b"))
    move(catalog, table)
    move(catalog, other, READ_ALL)  # as a person decides
    with pytest.raises(PublishRefused, match=OTHERS):
        move(catalog, table)
    with pytest.raises(SourceLost, match=OTHERS):
        purgeable(catalog, table, time.time() + 60)
    assert OTHERS in check(settings, table)
    assert purgeable(catalog, other, time.time() + 60)


# A database that was set back


def test_a_range_that_may_still_be_written_to_is_not_read(database: Connection, table: Table) -> None:
    """As of a database that was set back between a run's plan and its reading."""
    upsert(database, (1, "a"))
    end = SOURCE.state().safe[0]
    assert sum(batch.num_rows for batch in SOURCE.read(Split(0, 0, end), hot_schema(table))) == 1
    with pytest.raises(SourceLost, match=r"was to be read to .* it was set back"):
        list(SOURCE.read(Split(0, 0, end + 1000), hot_schema(table)))


@pytest.fixture
def own_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgreSQL]:
    """A server that may be stopped and set back, reached by libpq's variables, with an empty source."""
    if binaries() is None:
        missing("PostgreSQL is not installed")
    with postgresql() as server:
        for name, value in server.variables.items():
            monkeypatch.setenv(name, value)
        with connected() as database:
            execute(database, "CREATE TABLE versions (n int)")
            make_source(database.cursor())
        yield server


@contextmanager
def connected() -> Iterator[Connection]:
    with closing(psycopg2.connect("")) as connection:
        connection.autocommit = True
        yield connection


def use_transactions(database: Connection, until: int) -> None:
    """Until their numbers are past one."""
    with database.cursor() as cursor:
        cursor.execute(
            "DO $$ BEGIN WHILE pg_snapshot_xmax(pg_current_snapshot())::text::bigint < %s LOOP "
            "PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$",
            (until,),
        )


@pytest.mark.slow("A server of its own that is started three times.")
def test_a_database_restored_in_place_is_known_though_it_has_used_the_same_transactions_again(
    own_server: PostgreSQL, settings: Settings, catalog: Catalog, table: Table
) -> None:
    data, copy = own_server.folder / "data", own_server.folder / "copy"
    with connected() as database:
        upsert(database, (1, "a"))
    move(catalog, table)
    old = position(catalog, table)
    own_server.end(signal.SIGINT)
    subprocess.run(["cp", "-a", data, copy], check=True)
    own_server.start()
    assert rows(catalog, table) == {1: "a"}, "a copy that has all moves is the same database"
    with connected() as database:
        upsert(database, (2, "lost"))
    move(catalog, table)
    to = position(catalog, table)
    own_server.end(signal.SIGINT)
    shutil.rmtree(data)
    copy.rename(data)
    own_server.start()
    with connected() as database:
        upsert(database, (3, "after"))
        use_transactions(database, to.by_partition[0] + 10)
        says = "has no record of that: it was set back to an earlier time"
        with pytest.raises(PublishRefused, match=says):
            move(catalog, table)
        with pytest.raises(SourceLost, match=says):
            rows(catalog, table)
        assert purgeable(catalog, table, time.time() + 60) is None
        assert says in check(settings, table)
        assert SOURCE.state(old).problem("", old) is None, "what was moved before is known"
        move(catalog, table, READ_ALL)
        assert rows(catalog, table) == {1: "a", 2: "lost", 3: "after"}
        assert len(in_hot(database)) == 2


@pytest.mark.slow("A server of its own.")
def test_a_database_restored_elsewhere_is_set_right_by_the_sql(
    database: Connection, catalog: Catalog, table: Table, own_server: PostgreSQL, postgres_server: PostgreSQL
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in postgres_server.variables.items():
            patch.setenv(name, value)
        use_transactions(database, 5000)
        upsert(database, (1, "a"), (2, "b"))
        move(catalog, table)
        SOURCE.purge(purged := position(catalog, table).by_partition[0])
        upsert(database, (3, "c"))
        own = ["state", "lakehouse_purged", "lakehouse_marks"]
        dump = ["pg_dump", *(f"--table={name}" for name in own)]
        text = subprocess.run(dump, check=True, capture_output=True, text=True).stdout
    with connected() as restored:
        execute(restored, f"DROP TABLE {', '.join(own)}")
    subprocess.run(["psql", "--quiet", "--set=ON_ERROR_STOP=1"], check=True, input=text, text=True, capture_output=True)
    with connected() as restored:
        upsert(restored, (4, "d"))
        for tags in ({}, READ_ALL):
            with pytest.raises(PublishRefused, match="it was restored from another server, or created again"):
                move(catalog, table, tags)
        execute(restored, ddl_of(table))
        with pytest.raises(PublishRefused, match="postgres:state is not the one that was read"):
            move(catalog, table)
        move(catalog, table, READ_ALL)
        assert position(catalog, table).by_partition[0] < purged
        assert sorted(catalog.load_table("demo.state").scan().to_arrow()["n"].to_pylist()) == [1, 2, 3, 4]
        assert rows(catalog, table) == {1: "a", 2: "b", 3: "c", 4: "d"}
        upsert(restored, (5, "e"))
        move(catalog, table)
        assert rows(catalog, table) == {1: "a", 2: "b", 3: "c", 4: "d", 5: "e"}


def test_a_source_that_an_earlier_version_set_up_goes_on(
    clean: Connection, settings: Settings, catalog: Catalog, table: Table
) -> None:
    execute(clean, "DROP TABLE lakehouse_marks; ALTER TABLE lakehouse_purged DROP identity, DROP mover")
    upsert(clean, (1, "a"))
    move(catalog, table)
    assert position(catalog, table).mark == ""
    assert "the database can't show whether it was set back" in check(settings, table)
    upsert(clean, (2, "b"))
    move(catalog, table)
    assert SOURCE.purge(position(catalog, table).by_partition[0]) == 2
    execute(clean, ddl_of(table))
    assert rows(catalog, table) == {1: "a", 2: "b"}
    upsert(clean, (3, "c"))
    move(catalog, table)
    assert position(catalog, table).mark
    assert rows(catalog, table) == {1: "a", 2: "b", 3: "c"}
    assert check(settings, table) == "postgres:state still has all rows that have not been moved"


def test_roles_that_may_purge_may_mark(clean: Connection, catalog: Catalog, table: Table) -> None:
    execute(clean, "DROP TABLE lakehouse_marks; DROP ROLE IF EXISTS mover; CREATE ROLE mover LOGIN")
    execute(clean, "GRANT SELECT, UPDATE, DELETE ON state TO mover; GRANT SELECT, UPDATE ON lakehouse_purged TO mover")
    execute(clean, ddl_of(table))
    upsert(clean, (1, "a"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGUSER", "mover")
        move(catalog, table)
        assert SOURCE.purge(position(catalog, table).by_partition[0]) == 1
    execute(clean, "DROP OWNED BY mover; DROP ROLE mover")
