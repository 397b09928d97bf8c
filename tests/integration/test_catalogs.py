"""The same behaviour on every catalog: create, stage, publish, publish at once, read back, drop.
What publishing means is in test_publish.py; here it is only done, everywhere."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Barrier, Event
from uuid import uuid4

import dagster as dg
import psycopg2
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from pyspark.sql import SparkSession

from lakehouse_assets.commit.fork import write_fork_base
from lakehouse_assets.commit.staged import read_all
from lakehouse_assets.commit.target import open_target
from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.modes import Append
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import load_lake, with_retries
from lakehouse_assets.environment.launchers.local import LocalLauncher
from lakehouse_assets.environment.settings import Settings, read_settings
from lakehouse_assets.errors import PublishRefused
from lakehouse_assets.extensions.builtin import EXTENSIONS
from lakehouse_assets.run import table_run
from lakehouse_assets.run.asset import table_asset
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.run.run import Staged
from lakehouse_assets.run.table_run import TableRun
from lakehouse_assets.step.window import Window
from lakehouse_assets.wire.code import worker_code
from lakehouse_assets.wire.work import Assignment
from lakehouse_assets.worker.session import TableCredentials
from lakehouse_assets.worker.stage import stage
from tests.conftest import Lake, failure_text
from tests.support.forks import SCHEMA, Daily, daily_rows
from tests.support.oauth import OAuth, oauth
from tests.support.postgres import PostgreSQL
from tests.support.servers import ACCESS_KEY, REGION, SECRET_KEY, Moto, SeaweedFS, configured, moto
from tests.support.tables import DAYS as DAILY
from tests.support.tables import numbers
from tests.support.twins import twins
from tests.support.watched_steps import FLAG
from tests.support.without_pandas import COMMAND

DAYS = ("2013-01-01", "2013-01-02", "2013-01-03")
WRITERS = 4
TOKEN_SECONDS = 2
VENDED = {"s3.access-key-id": ACCESS_KEY, "s3.secret-access-key": SECRET_KEY}
# moto's Glue is not atomic: it tells 21 writers of success and keeps 6 of their commits.
SINGLE_WRITER = {"glue"}
# Whether files of an earlier table lie there is known to these catalogs alone.
CHOOSE_THE_PLACE = {"rest", "oauth2"}
# Which no Spark of ours opens, a worker's neither.
FOR_PYICEBERG = {"postgresql", "glue"}
# Whose workers can't write to it.
server = pytest.mark.server


@pytest.fixture(scope="module", autouse=True)
def aws() -> Iterator[None]:
    """Keys for Glue, as a process finds them."""
    with pytest.MonkeyPatch.context() as patch:
        variables = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": REGION}
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def glue() -> Iterator[Moto]:
    with moto() as running:
        yield running


@pytest.fixture(scope="module")
def authority(weed: SeaweedFS) -> Iterator[OAuth]:
    """OAuth2 in front of SeaweedFS, with tokens that run out while a test goes on; S3's keys come with each table."""
    with oauth(weed.catalog_uri, seconds=TOKEN_SECONDS, vended=VENDED) as running:
        yield running


def without_keys(weed: SeaweedFS, authority: OAuth) -> dict[str, str]:
    """The catalog behind the authority, for somebody whom it has to vend the keys of S3."""
    where = {"s3.endpoint": weed.s3_endpoint, "s3.region": REGION}
    return {**authority.properties(), "warehouse": weed.warehouse, **where}


@pytest.fixture(
    params=["sqlite", *(pytest.param(kind, marks=server) for kind in ("postgresql", "rest", "oauth2", "glue"))]
)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def catalog_properties(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """PyIceberg's properties of a catalog of that kind."""
    (tmp_path / "warehouse").mkdir()
    warehouse = (tmp_path / "warehouse").as_uri()
    match kind:
        case "sqlite":
            return {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": warehouse}
        case "postgresql":
            at = request.getfixturevalue("postgres_server")
            uri = f"postgresql+psycopg2://{at.user}@{at.host}:{at.port}/{at.database}?application_name=test"
            return {"type": "sql", "uri": uri, "warehouse": warehouse}
        case "rest":
            return request.getfixturevalue("weed").properties()
        case "oauth2":
            return without_keys(request.getfixturevalue("weed"), request.getfixturevalue("authority"))
        case _:
            return request.getfixturevalue("glue").properties()


def open_again(daily: Daily, properties: dict[str, str]) -> Daily:
    """The same table in a catalog of its own, as another process has it."""
    return Daily(load_catalog("lake", **properties), daily.identifier)


def test_create_stage_publish_and_drop(kind: str, daily: Daily, catalog: Catalog) -> None:
    daily.append(daily_rows("2012-12-31", *DAYS, each=2))
    chunks = [daily.stage("run", n, [day], daily_rows(day, each=3)) for n, day in enumerate(DAYS)]

    daily.publish("run", DAYS, *chunks)

    assert daily.counts() == {"2012-12-31": 2, **dict.fromkeys(DAYS, 3)}
    assert (daily.last_change("records"), len(daily.table.snapshots())) == ((9, 6), 2)
    assert daily.publish("run", DAYS, *chunks).repeated, "the token tells that it is done"
    assert daily.table.schema().as_struct() == SCHEMA.as_struct()
    assert daily.identifier in {".".join(name) for name in catalog.list_tables("nyc")}

    last = daily.table
    catalog.drop_table(daily.identifier)
    with pytest.raises(NoSuchTableError):
        _ = daily.table

    declared = numbers(identifier=daily.identifier)
    if kind in CHOOSE_THE_PLACE:
        assert open_target(catalog, declared).scan().count() == 0
    else:
        with pytest.raises(PublishRefused, match=rf"{re.escape(last.metadata_location)}\. No table was created"):
            open_target(catalog, declared)


def test_writers_at_once_all_land(kind: str, daily: Daily, catalog_properties: dict[str, str]) -> None:
    if kind in SINGLE_WRITER:
        pytest.skip("loses concurrent commits")
    days = [f"2013-02-{n:02d}" for n in range(1, WRITERS + 1)]
    writers = [open_again(daily, catalog_properties) for _ in days]
    chunks = [daily.stage(f"run{n}", 0, [day], daily_rows(day, each=2)) for n, day in enumerate(days)]

    with ThreadPoolExecutor(WRITERS) as pool:
        published = [
            pool.submit(writer.publish, f"run{n}", [day], chunk)
            for n, (writer, day, chunk) in enumerate(zip(writers, days, chunks, strict=True))
        ]
    assert len({done.result().snapshot_id for done in published}) == WRITERS
    assert daily.counts() == dict.fromkeys(days, 2)
    assert len(daily.table.snapshots()) == WRITERS


@pytest.mark.slow("The first of its file that starts Spark.")
@pytest.mark.spark
def test_spark_stages_for_it_and_reads_it(
    kind: str,
    worker: Callable[[], SparkSession],
    daily: Daily,
    catalog_properties: dict[str, str],
    jvm: SparkSession,
    tmp_path: Path,
) -> None:
    from lakehouse_assets.environment.catalog_in_spark import spark_catalogs
    from lakehouse_assets.worker.session import configure

    credentials = TableCredentials(catalog_properties, daily.identifier)
    catalogs = spark_catalogs(catalog_properties, credentials.properties, live=credentials.vended)
    spark = configure(jvm.newSession(), catalogs)
    assignment = Assignment(
        table=daily.identifier,
        step="tests.support.forks:flights",
        token="run",
        chunk=0,
        window=Window(keys=DAYS),
        fork_base=write_fork_base(daily.table, "run").location,
        receipt=f"{tmp_path}/0.json",
        code_version="1",
        code=worker_code("tests.support.forks:flights"),
        unique=("carrier",),
    )
    receipt = stage(spark, assignment, credentials, time.monotonic())
    daily.publish("run", DAYS, *read_all(daily.table.io.properties, [receipt]))

    assert daily.counts() == dict.fromkeys(DAYS, 2)
    if kind in FOR_PYICEBERG:
        return
    spark = worker()
    columns = {
        field.name: (field.dataType.simpleString(), field.nullable)
        for field in spark.table(f"lake.{daily.identifier}").schema
    }
    assert columns == {"day": ("date", False), "carrier": ("string", True), "flights": ("bigint", True)}
    rows = spark.sql(f"SELECT day, count(*) AS n FROM lake.{daily.identifier} GROUP BY day").collect()
    assert {str(row.day): row.n for row in rows} == dict.fromkeys(DAYS, 2)


@pytest.fixture
def vending(
    settings: Settings,
    instance: dg.DagsterInstance,
    weed: SeaweedFS,
    authority: OAuth,
    monkeypatch: pytest.MonkeyPatch,
) -> Lake:
    """On a catalog that vends credentials by table: inline workers read it as it is."""
    configured(without_keys(weed, authority), monkeypatch)
    monkeypatch.setenv("LAKEHOUSE_COMPUTE", "inline")
    return Lake(read_settings(), instance)


@server
@pytest.mark.spark
def test_what_a_worker_commits_to_a_catalog_that_lets_it_is_found(vending: Lake) -> None:
    lake = vending
    good = numbers()
    with suppress(NoSuchTableError):
        load_lake(lake.settings).drop_table(good.identifier)  # another test's
    assert lake.run(good, "2024-01-01").success, "a worker's append to its fork is no commit to the table"

    table = replace(good, step="tests.support.fault_steps:appending")
    failed = lake.run(table, "2024-01-02")
    assert not failed.success
    assert lake.snapshots(table) == 2
    head = lake.table(table).current_snapshot()
    text = failure_text(failed)
    assert all(
        word in text
        for word in (
            table.identifier,
            f"committed snapshot {head.snapshot_id} to the table",
            f"to the one before it ({head.parent_snapshot_id})",
        )
    ), text
    lake.table(table).manage_snapshots().rollback_to_snapshot(head.parent_snapshot_id).commit()
    assert lake.run(good, "2024-01-02").success
    assert lake.rows(good).num_rows == 6


@server
def test_a_new_database_opened_by_many_at_once(
    settings: Settings, postgres_server: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = psycopg2.connect(
        host=postgres_server.host, port=postgres_server.port, user=postgres_server.user, dbname=postgres_server.database
    )
    connection.autocommit = True
    for round in range(3):
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE fresh{round}")
        uri = f"postgresql://{postgres_server.user}@{postgres_server.host}:{postgres_server.port}/fresh{round}"
        monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", uri)
        together = Barrier(WRITERS)

        def first(together: Barrier = together) -> list[tuple[str, ...]]:
            together.wait()
            return with_retries(lambda: load_lake(settings)).list_namespaces()

        with ThreadPoolExecutor(WRITERS) as pool:
            assert [done.result() for done in [pool.submit(first) for _ in range(WRITERS)]] == [[]] * WRITERS
    connection.close()


@server
@pytest.mark.spark
@pytest.mark.parametrize("always", [False, True], ids=["once", "always"])
def test_an_input_that_can_only_be_read_as_it_is_is_pinned_again_where_it_moved(
    always: bool, vending: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, instance, settings = vending, vending.instance, vending.settings
    source = f"moved.source_{uuid4().hex[:8]}"
    catalog = load_lake(lake.settings)
    catalog.create_namespace_if_not_exists("moved")
    catalog.create_table(source, Schema(NestedField(1, "n", LongType(), required=False)))
    catalog.load_table(source).append(pa.table({"n": [1]}))
    (settings.home / "statement").write_text(f"SELECT n FROM lake.{source}")
    moves: list[str] = []

    def move(day: str) -> None:
        if always or not moves:
            moves.append(day)
            load_lake(lake.settings).load_table(source).overwrite(pa.table({"n": [1 + len(moves)]}))

    monkeypatch.setattr("tests.support.input_steps.MEANWHILE", [move])
    table = Table(
        identifier=f"moved.copy_{uuid4().hex[:8]}",
        columns=[column("day", "date"), column("n", "long")],
        step="tests.support.input_steps:told",
        partitions=DAILY,
        partitioned_by=["day"],
        reads=[source],
    )
    monkeypatch.setattr(table_run, "STAGINGS", 2)
    result = lake.run(table, "2024-01-01")
    if always:
        text = failure_text(result)
        assert all(word in text for word in (table.identifier, source, "the run has pinned")), text
        assert len(moves) == 2
        return
    assert result.success, failure_text(result)
    assert lake.rows(table).column("n").to_pylist() == [2]
    head = catalog.load_table(source).current_snapshot().snapshot_id
    assert str(head) in lake.table(table).current_snapshot().summary["lakehouse.inputs"]
    said = [entry.user_message for entry in instance.all_logs(result.run_id)]
    assert any("Everything is staged again" in text for text in said)


@server
@pytest.mark.spark
def test_a_step_reads_on_in_an_input_that_can_only_be_read_as_it_is(vending: Lake) -> None:
    namespace = f"changed_{uuid4().hex[:8]}"
    source = f"{namespace}.source"
    catalog = load_lake(vending.settings)
    catalog.create_namespace(namespace)
    table = catalog.create_table(source, Schema(NestedField(1, "n", LongType(), required=False)))
    table.append(pa.table({"n": [1, 2]}))
    reader = Table(
        identifier=f"{namespace}.log",
        columns=[column("n", "long"), column("change", "string")],
        step="tests.support.change_reading_steps:of_any",
        reads=[source],
        write_mode=Append(),
    )
    (vending.settings.home / "input").write_text(f"lake.{source}")
    for _ in range(2):
        result = vending.run(reader)
        assert result.success, failure_text(result)
        catalog.load_table(source).delete("n = 1")
    found = sorted((row["n"], row["change"]) for row in vending.rows(reader).to_pylist())
    assert found == [(1, "DELETE"), (1, "INSERT"), (2, "INSERT")]
    refs = catalog.load_table(source).metadata.refs
    assert f"lakehouse.reader.{reader.identifier}" in refs


# OAuth2


@server
def test_a_token_that_runs_out_is_asked_for_anew(weed: SeaweedFS) -> None:
    with oauth(weed.catalog_uri, vended=VENDED) as authority:
        daily = Daily.create(load_catalog("lake", **without_keys(weed, authority)))
        issued, refused = authority.issued, authority.refused
        authority.good_until.clear()  # as time would
        daily.append(daily_rows(DAYS[0]))
        assert daily.counts() == {DAYS[0]: 1}
        assert (authority.issued - issued, authority.refused - refused) == (1, 1)


@server
@pytest.mark.spark
@pytest.mark.parametrize(
    ("compute", "chunks"), twins([("inline", 2), ("local", 1)], "A worker asks for its keys alike in any process.")
)
def test_a_run_by_oauth2_with_vended_keys(
    compute: str,
    chunks: int,
    settings: Settings,
    instance: dg.DagsterInstance,
    weed: SeaweedFS,
    authority: OAuth,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    configured(without_keys(weed, authority), monkeypatch)
    monkeypatch.setenv("LAKEHOUSE_COMPUTE", compute)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    if compute == "inline":
        request.getfixturevalue("jvm")
    table = numbers(identifier=f"oauth.numbers_{uuid4().hex[:8]}", partitions_per_worker=4 // chunks)
    lake = Lake(read_settings(), instance)
    authority.agents.clear()

    result = lake.run(replace(table, step="tests.support.watched_steps:patient"), "2024-01-01", "2024-01-04")

    assert result.success, failure_text(result)
    assert lake.rows(table).num_rows == 12
    assert lake.snapshots(table) == 1
    assert len(authority.agents) == 2, "PyIceberg and Iceberg's Java"


@dataclass
class Outlasted:
    """A run whose step works on when the keys that its table came with have ended. starts: of workers."""

    result: dg.ExecuteInProcessResult
    authority: OAuth
    rows: int
    starts: int


@pytest.fixture
def outlast(
    settings: Settings, instance: dg.DagsterInstance, weed: SeaweedFS, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Outlasted]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    table = replace(numbers(identifier=f"oauth.numbers_{uuid4().hex[:8]}"), step="tests.support.watched_steps:watched")
    flag = Path(settings.landing, table.domain, FLAG)
    users = [f"{table.identifier}-{n}" for n in range(2)]

    def end_keys(authority: OAuth, seconds: float, over: Event) -> int:
        """Let each worker go on; the first with its keys ended, and others at the catalog. Returns their number."""
        starts = 0
        while not over.wait(0.05):
            if flag.exists():
                starts += 1
                if starts == 1:
                    authority.vended = weed.session(users[1], seconds)
                    weed.end_session(users[0])
                flag.unlink()
        return starts

    def run(*, refreshes: bool, first: float, then: float) -> Outlasted:
        """first, then: seconds that the keys say they live, those that end and the others."""
        over = Event()
        with (
            oauth(weed.catalog_uri, vended=weed.session(users[0], first), refreshes=refreshes) as authority,
            ThreadPoolExecutor(1) as pool,
        ):
            configured(without_keys(weed, authority), monkeypatch)
            lake = Lake(settings, instance)
            ending = pool.submit(end_keys, authority, then, over)
            try:
                result = lake.run(table, "2024-01-01")
            finally:
                over.set()
            rows = lake.rows(table).num_rows if result.success else 0
            return Outlasted(result, authority, rows, ending.result())

    return run


@pytest.mark.long("Waits until keys expire.")
@server
@pytest.mark.spark
def test_a_step_outlasts_keys_that_are_given_anew(outlast: Callable[..., Outlasted]) -> None:
    # Iceberg asks for others five minutes before keys run out, so for these whenever it needs some.
    run = outlast(refreshes=True, first=60, then=60)
    assert run.result.success, failure_text(run.result)
    assert (run.rows, run.starts) == (3, 1)
    assert run.authority.refreshed


class Light(Lakehouse):
    """A lakehouse whose workers need no JVM."""

    def launcher(self, compute: str | None = None) -> LocalLauncher:
        return LocalLauncher([*COMMAND, "tests.support.light_worker"])


@server
def test_vended_keys_that_run_out_while_workers_stage(
    settings: Settings, instance: dg.DagsterInstance, weed: SeaweedFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = weed.keys("first"), weed.keys("second")
    for name, value in weed.s3_properties().items():  # the light worker's `stage` has keys of its own
        monkeypatch.setenv(f"PYICEBERG_CATALOG__STAGE__{name.upper().replace('.', '__').replace('-', '_')}", value)
    read = TableRun._staged

    with oauth(weed.catalog_uri, vended=first) as authority:

        def later(self: TableRun) -> Staged:
            authority.vended = second
            weed.revoke("first", first)
            return read(self)

        monkeypatch.setattr(TableRun, "_staged", later)
        configured(without_keys(weed, authority), monkeypatch)
        table = numbers(identifier=f"oauth.numbers_{uuid4().hex[:8]}", allow_empty=True)
        result = dg.materialize(
            [table_asset(table, EXTENSIONS)],
            instance=instance,
            partition_key="2024-01-01",
            resources={"lakehouse": Light(settings)},
            raise_on_error=False,
        )
        assert result.success, failure_text(result)
        assert Lake(settings, instance).rows(table).num_rows == 3


@server
def test_wrong_credentials_are_refused_without_being_told(
    settings: Settings, instance: dg.DagsterInstance, weed: SeaweedFS, authority: OAuth, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured({**without_keys(weed, authority), "credential": "lakehouse:hunter2"}, monkeypatch)
    result = Lake(settings, instance).run(numbers(), "2024-01-01")
    assert not result.success
    assert "invalid_client" in failure_text(result)
    assert not any("hunter2" in str(event) for event in result.all_events)
