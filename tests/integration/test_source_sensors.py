"""The sensors of sources tick by tick, purges and what is put back, on a real PostgreSQL and a real broker.
Rows are moved by a stand-in; what a run does is tested in test_hot_and_cold.py."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from itertools import count, pairwise

import dagster as dg
import psycopg2
import pytest
from dagster import DagsterRunStatus
from psycopg2.extensions import connection as Connection
from pyiceberg.catalog import Catalog

from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.errors import PublishRefused, SourceLost, SourceUnreachable
from lakehouse_assets.extensions.builtin import EXTENSIONS
from lakehouse_assets.extensions.sources.hook import source_range
from lakehouse_assets.extensions.sources.hot_and_cold import hot_and_cold
from lakehouse_assets.extensions.sources.kafka import KafkaTopic
from lakehouse_assets.extensions.sources.postgres import PostgresTable
from lakehouse_assets.extensions.sources.purge import PURGE, purge_job, purgeable
from lakehouse_assets.extensions.sources.sensors import MOVER_TAG, movers_sensor, purges_sensor
from lakehouse_assets.extensions.sources.warm import warm
from lakehouse_assets.run.asset import table_asset
from lakehouse_assets.run.resource import Lakehouse
from tests.conftest import Lake
from tests.support.hot_tables import UPSERT, events_table, state_table
from tests.support.standin_mover import made, moving
from tests.support.topics import Topic

pytestmark = pytest.mark.server
SOON = PostgresTable("state", floor=3, latency=timedelta(seconds=60), grace=timedelta(0))


@pytest.fixture
def catalog(lake: Lake) -> Catalog:
    return load_lake(lake.settings)


def upsert(database: Connection, *rows: tuple[int, str], deleted: bool = False) -> None:
    with database.cursor() as cursor:
        cursor.executemany(UPSERT, [(*row, deleted) for row in rows])


def move(catalog: Catalog, table: Table) -> None:
    if not catalog.table_exists(table.identifier):
        made(catalog, table)
    for _ in moving(catalog, table):
        pass


def rows(catalog: Catalog, table: Table) -> dict[int, str]:
    return dict(hot_and_cold(table, catalog=catalog).polars().collect().rows())


def in_hot(database: Connection) -> list[int]:
    with database.cursor() as cursor:
        cursor.execute("SELECT n FROM state ORDER BY n")
        return [n for (n,) in cursor.fetchall()]


class Ticks:
    """A sensor, ticked as the daemon does. later: seconds that the clock is ahead."""

    def __init__(self, lake: Lake, *tables: Table, purges: bool = False) -> None:
        self.lake, self.later, self.cursor = lake, 0.0, None
        of = purges_sensor if purges else movers_sensor
        self.sensor = of(tables, dg.DefaultSensorStatus.RUNNING, lambda: time.time() + self.later)
        self.defs = dg.Definitions(
            [*(table_asset(table, EXTENSIONS) for table in tables)],
            jobs=[purge_job(tables)],
            resources={"lakehouse": Lakehouse(lake.settings)},
        )

    def tick(self) -> dg.SensorResult:
        context = dg.build_sensor_context(
            self.lake.instance,
            cursor=self.cursor,
            definitions=self.defs,
            resources={"lakehouse": Lakehouse(self.lake.settings)},
        )
        found = self.sensor(context)
        assert isinstance(found, dg.SensorResult)
        self.cursor = found.cursor
        for event in found.asset_events:
            self.lake.instance.report_runless_asset_event(event)
        return found


def observed(found: dg.SensorResult) -> dict[str, float]:
    (event,) = [event for event in found.asset_events if isinstance(event, dg.AssetObservation)]
    return {name: value.value for name, value in event.metadata.items()}


def said(found: dg.SensorResult) -> list[tuple[bool, str]]:
    events = [event for event in found.asset_events if isinstance(event, dg.AssetCheckEvaluation)]
    return [(event.passed, event.description or "") for event in events]


def test_a_run_is_asked_for_by_rows_or_by_age(lake: Lake, database: Connection) -> None:
    ticks = Ticks(lake, state_table(source=SOON))
    assert not ticks.tick().run_requests
    upsert(database, (1, "a"))
    assert not ticks.tick().run_requests
    ticks.later = 61
    (request,) = ticks.tick().run_requests or ()
    assert request.asset_selection == [dg.AssetKey(["demo", "state"])]
    ticks.later = 0
    upsert(database, (2, "a"), (3, "a"))
    assert len(ticks.tick().run_requests or ()) == 1


def test_nothing_is_asked_for_while_a_run_is_under_way_or_soon_after_failures(lake: Lake, database: Connection) -> None:
    table = state_table(source=SOON)
    ticks = Ticks(lake, table)
    upsert(database, (1, "a"), (2, "a"), (3, "a"))
    job = ticks.defs.resolve_implicit_global_asset_job_def()

    def run(status: DagsterRunStatus) -> dg.DagsterRun:
        tags = {MOVER_TAG: table.identifier}
        made = lake.instance.create_run_for_job(job, tags=tags, asset_selection=frozenset({table.key}))
        if status is DagsterRunStatus.FAILURE:
            lake.instance.report_run_failed(made)
        return made

    under_way = run(DagsterRunStatus.NOT_STARTED)
    assert not ticks.tick().run_requests
    lake.instance.report_run_failed(under_way)
    assert "waits" in str(ticks.tick().skip_reason)
    ticks.later = 61
    assert ticks.tick().run_requests
    run(DagsterRunStatus.FAILURE)
    assert not ticks.tick().run_requests
    ticks.later = 121
    assert ticks.tick().run_requests


def test_how_far_behind_a_table_is_can_be_plotted(lake: Lake, catalog: Catalog, database: Connection) -> None:
    table = state_table(source=SOON)
    upsert(database, (1, "a"), (2, "b"))
    move(catalog, table)
    upsert(database, (3, "c"))
    with psycopg2.connect("") as writer, writer.cursor() as cursor:
        cursor.execute(UPSERT, (4, "d", False))
        upsert(database, (5, "e"))
        time.sleep(0.1)  # the shortest time that is told
        ticks = Ticks(lake, table)
        ticks.later = 30
        found = observed(ticks.tick())
        assert (found["depth"], found["lag_rows"], found["held_back"]) == (4, 2, 2)
        assert 30 <= found["lag_seconds"] < 60
        assert found["oldest_writer_seconds"] > 0


def test_of_a_large_table_only_what_decides_is_counted(lake: Lake, database: Connection) -> None:
    upsert(database, *((id, "a") for id in range(1, 10)))
    ticks = Ticks(lake, state_table(source=replace(SOON, floor=4, ceiling=3)))
    result = ticks.tick()
    found = observed(result)
    assert (found["depth"], found["lag_rows"]) == (4, 4)
    assert len(result.run_requests or ()) == 1


def test_a_transaction_that_holds_rows_back_for_long_is_told(
    lake: Lake, database: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakehouse_assets.extensions.sources.sensors.LONG_WRITER_SECONDS", 0.0)
    with psycopg2.connect("dbname=template1") as writer, writer.cursor() as cursor:  # in another database
        cursor.execute("CREATE TEMP TABLE something (n int)")
        cursor.execute("INSERT INTO something VALUES (1)")
        upsert(database, (1, "a"))
        ((passed, text),) = said(Ticks(lake, state_table(source=SOON)).tick())
        assert not passed
        assert "nothing written after it began can be moved" in text


def test_what_is_lost_is_an_error_that_says_how_much(lake: Lake, catalog: Catalog, topic: Topic) -> None:
    table = events_table()
    topic.send(range(3))
    move(catalog, table)
    ticks = Ticks(lake, table)
    assert said(ticks.tick()) == [(True, "kafka:events still has all rows that have not been moved")]
    topic.send(range(3, 9))
    topic.cut(7)
    ((passed, text),) = said(ticks.tick())
    assert not passed
    assert "4 offsets" in text
    assert said(ticks.tick()) == []


def test_retention_that_comes_near_is_a_warning(lake: Lake, topic: Topic) -> None:
    topic.create(**{"retention.ms": "60000"})
    topic.send([1])
    ticks = Ticks(lake, events_table(source=KafkaTopic("events", floor=10)))
    ticks.later = 31
    ((passed, text),) = said(ticks.tick())
    assert not passed
    assert "keeps records for 60 s" in text
    ticks.later = 45
    assert said(ticks.tick()) == [], "it says the same, of a record that is older"


def test_a_source_that_does_not_answer_stops_no_other(
    lake: Lake, database: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    upsert(database, (1, "a"), (2, "a"), (3, "a"))
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setattr("lakehouse_assets.extensions.sources.kafka.SECONDS", 0.5)
    found = Ticks(lake, events_table(), state_table(source=SOON)).tick()
    assert [request.tags[MOVER_TAG] for request in found.run_requests or ()] == ["demo.state"]
    (passed, text), (other_passed, _) = said(found)
    assert (passed, other_passed) == (False, True)
    assert "kafka:events can't be reached at 127.0.0.1:1" in text


def test_a_run_moves_whole_transactions_up_to_its_ceiling(catalog: Catalog, database: Connection) -> None:
    table = state_table(source=replace(SOON, ceiling=3))
    keys = count()
    transactions = [{next(keys) for _ in range(size)} for size in (2, 2, 5, 1, 1, 1, 1, 3, 1)]
    for written in transactions:
        with psycopg2.connect("") as writer, writer.cursor() as cursor:
            cursor.executemany(UPSERT, [(n, "a", False) for n in written])
    there: list[set[int]] = [set()]
    while len(there[-1]) < sum(map(len, transactions)):
        move(catalog, table)
        there.append({*catalog.load_table(table.identifier).scan().to_arrow()["n"].to_pylist()})
        assert there[-1] > there[-2], "it moves on"
    for before, after in pairwise(there):
        of_run = [written for written in transactions if written & (after - before)]
        assert after - before == set().union(*of_run), "each transaction is moved whole"
        assert sum(map(len, of_run[:-1])) < 3, "it ends with the transaction that reaches the ceiling"


def test_only_what_the_lake_has_had_for_the_grace_is_purged(lake: Lake, catalog: Catalog, database: Connection) -> None:
    table = state_table(source=PostgresTable("state", grace=timedelta(minutes=10)))
    upsert(database, (1, "a"), (2, "b"))
    move(catalog, table)
    upsert(database, (3, "c"))
    ticks = Ticks(lake, table, purges=True)
    assert not ticks.tick().run_requests
    ticks.later = 601
    (request,) = ticks.tick().run_requests or ()
    soon = state_table(source=PostgresTable("state", grace=timedelta(0)))
    job = dg.Definitions(jobs=[purge_job([soon])], resources={"lakehouse": Lakehouse(lake.settings)})
    purges = job.resolve_job_def(PURGE)
    assert purges.execute_in_process(run_config=request.run_config, instance=lake.instance).success
    assert in_hot(database) == [3]
    assert rows(catalog, table) == {1: "a", 2: "b", 3: "c"}
    upsert(database, (1, "again"))  # a key that comes back
    assert rows(catalog, table) == {1: "again", 2: "b", 3: "c"}


def test_a_purge_that_dies_has_done_nothing(catalog: Catalog, database: Connection) -> None:
    table = state_table(source=SOON)
    upsert(database, (1, "a"))
    move(catalog, table)
    found = purgeable(catalog, table, time.time() + 60)
    assert found
    with database.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN OLD; END $$;"
            "CREATE TRIGGER die AFTER DELETE ON state FOR EACH ROW EXECUTE FUNCTION die()"
        )
    with pytest.raises(SourceUnreachable):
        found.source.purge(found.upto)
    with database.cursor() as cursor:
        cursor.execute("DROP FUNCTION die CASCADE")
    assert in_hot(database) == [1]
    assert found.source.state().first == (0,)
    assert found.source.purge(found.upto) == 1


def test_an_upsert_during_a_purge_is_kept(catalog: Catalog, database: Connection) -> None:
    table = state_table(source=SOON)
    upsert(database, (1, "a"), (2, "a"))
    move(catalog, table)
    found = purgeable(catalog, table, time.time() + 60)
    assert found
    with psycopg2.connect("") as writer, writer.cursor() as cursor:
        cursor.execute(UPSERT, (1, "b", False))
        assert found.source.purge(found.upto) == 1
    assert in_hot(database) == [1]
    assert rows(catalog, table) == {1: "b", 2: "a"}


def test_a_rollback_behind_a_purge_is_told_and_before_it_reads_on(catalog: Catalog, database: Connection) -> None:
    table = state_table(source=SOON)
    upsert(database, (1, "a"))
    move(catalog, table)
    before = catalog.load_table(table.identifier).metadata.current_snapshot_id
    upsert(database, (2, "b"))
    move(catalog, table)
    cold = catalog.load_table(table.identifier)
    cold.manage_snapshots().rollback_to_snapshot(before).commit()
    assert rows(catalog, table) == {1: "a", 2: "b"}
    move(catalog, table)
    found = purgeable(catalog, table, time.time() + 60)
    assert found
    found.source.purge(found.upto)
    catalog.load_table(table.identifier).manage_snapshots().rollback_to_snapshot(before).commit()
    assert purgeable(catalog, table, time.time() + 60) is None
    with pytest.raises(SourceLost, match="postgres:state was read to"):
        rows(catalog, table)


def test_a_source_without_what_its_helper_made_is_told_and_the_others_are_moved(
    lake: Lake, catalog: Catalog, database: Connection
) -> None:
    table = state_table()
    made(catalog, table)
    with database.cursor() as cursor:
        cursor.execute("ALTER TABLE state RENAME COLUMN pos TO position")
    with pytest.raises(SourceLost, match=r'postgres:state: column .*"pos".* does not exist; `lakehouse source sql`'):
        rows(catalog, table)
    assert not Ticks(lake, table).tick().run_requests


def test_a_table_that_was_dropped_behind_a_purge_is_told(lake: Lake, catalog: Catalog, database: Connection) -> None:
    table = state_table(source=SOON)
    upsert(database, (1, "a"))
    move(catalog, table)
    found = purgeable(catalog, table, time.time() + 60)
    assert found
    found.source.purge(found.upto)
    catalog.drop_table(table.identifier)
    with pytest.raises(SourceLost, match="but the table has none of its rows"):
        rows(catalog, table)
    metadata = made(catalog, table).metadata
    with pytest.raises(PublishRefused, match="but the table has none of its rows"):
        source_range(table, metadata, {})
    chosen = source_range(table, metadata, {"lakehouse/read_all": "true"})
    assert chosen
    assert chosen.begin.by_partition == (found.upto,)


def test_only_the_purge_deletes_and_a_row_keeps_its_key(database: Connection) -> None:
    upsert(database, (1, "a"))
    with database.cursor() as cursor:
        for statement in ("DELETE FROM state", "TRUNCATE state"):
            with pytest.raises(psycopg2.errors.RaiseException, match="set deleted = true in place of"):
                cursor.execute(statement)
        with pytest.raises(psycopg2.errors.RaiseException, match="set deleted = true, insert one with the other key"):
            cursor.execute("UPDATE state SET n = 2")
        cursor.execute("UPDATE state SET pos = 1")  # the stamp is the trigger's
        cursor.execute("SELECT pos > 1 FROM state")
        assert cursor.fetchall() == [(True,)]


def test_rows_put_back_shadow_the_lakes_and_newer_ones_stay(catalog: Catalog, database: Connection) -> None:
    table = state_table(source=SOON)
    upsert(database, (1, "a"), (2, "b"), (3, "c"), (4, "d"))
    move(catalog, table)
    found = purgeable(catalog, table, time.time() + 60)
    assert found
    found.source.purge(found.upto)
    upsert(database, (2, "newer"))
    upsert(database, (3, ""), deleted=True)
    assert warm(catalog, table, "n <= 3") == 1
    assert in_hot(database) == [1, 2, 3]
    assert rows(catalog, table) == {1: "a", 2: "newer", 4: "d"}
    with database.cursor() as cursor:
        cursor.execute("UPDATE state SET text = 'changed' WHERE n = 1")
    assert rows(catalog, table)[1] == "changed"
    move(catalog, table)
    assert rows(catalog, table) == {1: "changed", 2: "newer", 4: "d"}


def test_nothing_is_put_back_over_what_was_purged_meanwhile(catalog: Catalog, database: Connection) -> None:
    table = state_table(source=SOON)
    upsert(database, (1, "a"))
    move(catalog, table)
    old = catalog.load_table(table.identifier).scan().to_arrow()
    position = SOON.state().safe[0]
    upsert(database, (1, "newer"))
    move(catalog, table)
    found = purgeable(catalog, table, time.time() + 60)
    assert found
    found.source.purge(found.upto)
    assert SOON.put_back(old, ["n"], position - 1) is None
    assert in_hot(database) == []
