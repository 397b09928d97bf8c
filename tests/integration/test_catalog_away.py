"""A catalog whose database is away for a while is waited for, and one that refuses is not: a real PostgreSQL.
What a locked SQLite file or a lost answer does to a publish is in test_publish_commit.py."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg2
import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from lakehouse_assets.environment.catalog import CatalogUnavailable, load_lake, with_retries
from lakehouse_assets.environment.databases import tell_connections_apart
from lakehouse_assets.environment.settings import Settings, read_settings
from tests.conftest import missing
from tests.support.forks import Daily, daily_rows
from tests.support.postgres import PostgreSQL, binaries, postgresql

pytestmark = pytest.mark.server
DAY = "2013-01-01"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQL]:
    """Its user lakehouse may do all; poor needs a password and may have one connection; nobody else is let in."""
    if binaries() is None:
        missing("PostgreSQL is not installed")
    with postgresql() as server:
        hba = "host all lakehouse 127.0.0.1/32 trust\nhost all poor 127.0.0.1/32 scram-sha-256\n"
        (server.folder / "data" / "pg_hba.conf").write_text(hba)
        with psycopg2.connect(uri(server)) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE ROLE poor LOGIN PASSWORD 'right' CONNECTION LIMIT 1")
        server.end()
        server.start()
        yield server


def uri(server: PostgreSQL, user: str = "lakehouse", host: str = "127.0.0.1", database: str = "postgres") -> str:
    return f"postgresql://{user}@{host}:{server.port}/{database}"


def failure(where: str) -> OperationalError:
    tell_connections_apart()
    with pytest.raises(OperationalError) as raised:
        create_engine(where.replace("://", "+psycopg2://"), poolclass=NullPool).connect()
    return raised.value


REFUSALS = {
    "a wrong password": {"user": "poor:wrong"},
    "no password": {"user": "poor"},
    "a user who is not let in": {"user": "stranger"},
    "no such database": {"database": "elsewhere"},
}


@pytest.mark.parametrize("why", REFUSALS)
def test_what_the_server_refuses_is_not_waited_for(server: PostgreSQL, why: str) -> None:
    assert not failure(uri(server, **REFUSALS[why])).connection_invalidated


def test_a_server_that_is_not_there_or_has_no_connection_left_is_waited_for(server: PostgreSQL) -> None:
    assert failure(uri(server, host="nowhere.invalid")).connection_invalidated
    with psycopg2.connect(uri(server, "poor:right")):
        assert failure(uri(server, "poor:right")).connection_invalidated
    held = psycopg2.connect(uri(server))
    assert server.process
    server.process.send_signal(signal.SIGTERM)  # it waits for the connection that is held, and lets nobody in
    while not (found := failure(uri(server)).connection_invalidated):
        time.sleep(0.01)
    held.close()
    server.process.wait(30)
    assert found
    try:
        assert failure(uri(server)).connection_invalidated, "refused: nothing listens"
    finally:
        server.start()


@pytest.fixture
def settings(server: PostgreSQL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name, value in {"TYPE": "sql", "URI": uri(server), "WAREHOUSE": tmp_path.as_uri()}.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name}", value)
    return read_settings({"LAKEHOUSE_HOME": str(tmp_path)})


@contextmanager
def away(server: PostgreSQL, seconds: float) -> Iterator[None]:
    server.end()
    back = threading.Timer(seconds, server.start)
    back.start()
    try:
        yield
    finally:
        back.join()


def test_a_publish_outlasts_it(server: PostgreSQL, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakehouse_assets.commit.publish.ATTEMPTS", 1)  # the wait costs none
    daily = Daily.create(load_lake(settings))
    staged = daily.stage("run", 0, [DAY], daily_rows(DAY))
    with away(server, 3):
        daily.publish("run", [DAY], staged)
    assert daily.counts() == {DAY: 1}
    assert len(daily.table.snapshots()) == 1


def test_so_does_whoever_opens_it(
    server: PostgreSQL, settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with away(server, 3):
        assert with_retries(lambda: load_lake(settings)).name == "lake"
    assert "the catalog 'lake' can't be reached or is locked; waiting for it, at most 300 s" in caplog.messages
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", uri(server, "poor:wrong"))
    with pytest.raises(CatalogUnavailable, match="poor"):
        with_retries(lambda: load_lake(settings))
