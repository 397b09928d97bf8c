"""Servers and catalogs shared by the integration tests: started once a session, a table of its own for each test.
What a test does with them is the test's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg2
import pytest
from psycopg2.extensions import connection as Connection
from pyiceberg.catalog import Catalog, load_catalog

from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.environment.spark_setup import environment, spark_conf
from tests.conftest import missing
from tests.support.forks import Daily
from tests.support.hot_tables import make_source
from tests.support.kafka import Kafka, kafka
from tests.support.live_lake import live_catalogs
from tests.support.postgres import PostgreSQL, binaries, postgresql
from tests.support.proxy import Proxy, proxy
from tests.support.schema_registry import Registry, apicurio
from tests.support.servers import SeaweedFS, seaweedfs
from tests.support.topics import Topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def weed() -> Iterator[SeaweedFS]:
    """A SeaweedFS for the session: S3 and an Iceberg REST catalog."""
    with seaweedfs() as server:
        yield server


# Tests that are about REST take ``weed`` themselves.
ON_REST = (pytest.mark.server, pytest.mark.long("Repeats on a REST catalog what SQLite holds."))


@pytest.fixture(params=["sqlite", pytest.param("rest", marks=ON_REST)])
def catalog_properties(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """PyIceberg's properties of a catalog; a loaded one can't be shared by threads or processes."""
    if request.param == "rest":
        return request.getfixturevalue("weed").properties()
    (tmp_path / "warehouse").mkdir()
    return {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": (tmp_path / "warehouse").as_uri(),
    }


@pytest.fixture
def catalog(catalog_properties: dict[str, str]) -> Catalog:
    return load_catalog("lake", **catalog_properties)


@pytest.fixture
def daily(catalog: Catalog) -> Daily:
    """A table by day without rows."""
    return Daily.create(catalog)


@pytest.fixture(scope="module")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark for a module's tests, without catalogs."""
    from lakehouse_assets.worker.session import build_session

    home = read_settings({"LAKEHOUSE_HOME": str(tmp_path_factory.mktemp("home"))})
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment().items():
            patch.setenv(name, value)
        session = build_session(spark_conf(home, {}))
        yield session
        session.stop()


@pytest.fixture
def worker(jvm: SparkSession, catalog_properties: dict[str, str]) -> Callable[[], SparkSession]:
    """Sessions such as workers have, with a ``lake`` (the test's catalog) that takes writes; each has its ``stage``."""
    from lakehouse_assets.worker.session import configure

    return lambda: configure(jvm.newSession(), live_catalogs(catalog_properties))


@pytest.fixture
def wire(weed: SeaweedFS) -> Iterator[Proxy]:
    """Between a test and the REST catalog."""
    with proxy(weed.catalog_uri) as state:
        yield state


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgreSQL]:
    """A PostgreSQL for the tests of sources."""
    if binaries() is None:
        missing("PostgreSQL is not installed")
    with postgresql() as server:
        yield server


@pytest.fixture
def database(postgres_server: PostgreSQL, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    """An empty source ``state``, reached by libpq's variables, and a connection that commits each statement."""
    for name, value in postgres_server.variables.items():
        monkeypatch.setenv(name, value)
    connection = psycopg2.connect("")
    connection.autocommit = True
    with connection.cursor() as cursor:
        make_source(cursor)
    yield connection
    connection.close()


@pytest.fixture(scope="session")
def broker() -> Iterator[Kafka]:
    """A broker of Kafka."""
    with kafka(read_settings()) as broker:
        yield broker


@pytest.fixture
def topic(broker: Kafka, monkeypatch: pytest.MonkeyPatch) -> Topic:
    """An empty topic ``events``, reached by KAFKA_BOOTSTRAP_SERVERS."""
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", broker.bootstrap)
    return Topic(broker.bootstrap)


@pytest.fixture(scope="session")
def schema_registry() -> Iterator[Registry]:
    """A schema registry that speaks Confluent's REST interface."""
    with apicurio(read_settings()) as registry:
        yield registry
