"""The sensor that asks for runs, tick by tick on a real instance and a real catalog: what it asks for, when again after
work has failed or succeeded, and what it leaves alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import dagster as dg
import pytest
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteRepositoryOrigin
from pyiceberg.table import Table as IcebergTable

from lakehouse_assets.declare.options import Level, Maintenance
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.extensions.builtin import EXTENSIONS
from lakehouse_assets.maintenance import due_tick as sensors
from lakehouse_assets.maintenance import levels
from lakehouse_assets.maintenance.definitions import due_sensor
from lakehouse_assets.maintenance.health import look
from lakehouse_assets.maintenance.health.findings import Limit
from lakehouse_assets.maintenance.job import maintenance_job
from lakehouse_assets.maintenance.run_history import REWRITTEN_TAG, SENSOR, TABLE_TAG
from lakehouse_assets.run.in_flight import MAINTENANCE as JOB
from lakehouse_assets.run.resource import Lakehouse
from tests.support.manifests import Crafted, Listed
from tests.support.tables import numbers

TABLES = [numbers(identifier=f"demo.{name}") for name in ("a", "b", "c")]
HOUR = 3600.0
DAY = 19_723


@dataclass
class Ticks:
    """The sensor's ticks, one after the other. now: seconds since 1970, an hour after what the tables hold was
    written, so that no partition is too young."""

    settings: Settings
    instance: dg.DagsterInstance
    now: float = field(default_factory=lambda: time.time() + HOUR)
    cursor: str | None = None
    skipped: str = ""
    location: str | None = None
    tables: Sequence[Table] = field(default_factory=lambda: TABLES)

    def crafted(self, table: Table, files: int, day: int = DAY) -> Crafted:
        """The table with so many small files in one day."""
        made = Crafted.create(load_lake(self.settings), table.schema, table.spec, table.identifier)
        made.list([Listed((day,))] * files)
        return made

    def tick(self, seconds: float = 300.0) -> list[dg.RunRequest]:
        """What is asked for, so many seconds after the last tick."""
        self.now += seconds
        job = maintenance_job(self.tables, EXTENSIONS)
        sensor = due_sensor(self.tables, job, dg.DefaultSensorStatus.STOPPED, lambda: self.now)
        context = dg.build_sensor_context(self.instance, self.cursor, resources={"lakehouse": Lakehouse(self.settings)})
        if self.location:
            place = GrpcServerCodeLocationOrigin("127.0.0.1", 4000, location_name=self.location)
            context._code_location_origin = place  # no parameter sets it
        data = sensor.evaluate_tick(context)
        self.cursor, self.skipped = data.cursor, data.skip_message or ""
        return list(data.run_requests or ())

    def runs(self, request: dg.RunRequest, status: dg.DagsterRunStatus, **fared: str) -> dg.DagsterRun:
        """A run as the daemon makes one of a request, in this state. fared: what it has noted of tables, by name."""
        tags = {"dagster/sensor_name": SENSOR, "dagster/run_key": request.run_key or ""}
        tags |= {f"{TABLE_TAG}demo.{name}": noted for name, noted in fared.items()}
        run = dg.DagsterRun(job_name=JOB, status=status, run_config=request.run_config, tags=tags)
        return self.instance.add_run(run)

    def later(self, seconds: float) -> list[dg.RunRequest]:
        """A tick so many seconds after now by the clock of runs."""
        self.now = time.time()
        return self.tick(seconds)


@pytest.fixture
def ticks(settings: Settings, instance: dg.DagsterInstance) -> Ticks:
    return Ticks(settings, instance)


def only(requests: list[dg.RunRequest]) -> dg.RunRequest:
    (request,) = requests
    return request


def tables(request: dg.RunRequest) -> list[str]:
    found: list[str] = request.run_config["tables"]
    return found


FAILED, DONE = dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.SUCCESS


def test_it_asks_for_one_run_of_all_tables_that_need_one(ticks: Ticks) -> None:
    ticks.crafted(TABLES[0], files=3)
    ticks.crafted(TABLES[1], files=12)
    ticks.crafted(TABLES[2], files=12)
    request = only(ticks.tick())
    assert request.run_config == {"tables": ["demo.b", "demo.c"], "budget_gib": 3.0, "dry_run": False}
    assert request.run_key == "after none"


def test_a_table_that_is_declared_otherwise_is_resumed_again_though_nobody_wrote_it(ticks: Ticks) -> None:
    ticks.tables = [replace(TABLES[0], maintenance=Maintenance(without=list(Level)))]
    ticks.crafted(TABLES[0], files=12)
    assert not ticks.tick()
    assert not ticks.tick(HOUR)
    ticks.tables = [TABLES[0]]
    assert tables(only(ticks.tick(HOUR))) == ["demo.a"]


def test_all_tables_share_a_budget_of_a_day_by_what_they_gain(ticks: Ticks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two fit what is left; the least rewarding one is left for the next day."""
    for table, files in zip(TABLES, (12, 120, 60), strict=True):
        ticks.crafted(table, files)
    size = Listed((DAY,)).size
    monkeypatch.setattr(sensors, "BUDGET_GIB", 185 / 3 * size / sensors.GIB)
    request = only(ticks.tick())
    assert tables(request) == ["demo.b", "demo.c"]
    run = ticks.runs(request, DONE, b="done", c="done")
    ticks.instance.add_run_tags(run.run_id, {REWRITTEN_TAG: str(180 * size)})
    assert ticks.later(2 * HOUR) == []
    assert "demo.a: budget: 18.1 KiB may be rewritten in all, and earlier runs have rewritten 17.6 KiB" in ticks.skipped
    assert tables(only(ticks.later(25 * HOUR))) == ["demo.b", "demo.c"], "which are as they were"


@pytest.mark.parametrize("fared", [{}, {"a": "failed"}, {"a": "under way"}])
def test_what_failed_is_tried_later_and_later_but_once_a_day_at_the_least(ticks: Ticks, fared: dict[str, str]) -> None:
    """Also where the run was killed: before it noted anything, or in the midst of its work."""
    ticks.crafted(TABLES[0], files=12)
    request, keys = only(ticks.later(HOUR)), []
    for hours in (1, 2, 4, 8, 16, 24, 24, 24, 24):
        keys.append(request.run_key)
        ticks.runs(request, FAILED, **fared)
        assert ticks.later(hours * HOUR - 60) == []
        assert hours == 1 or f"retried {hours} h after the last" in ticks.skipped
        request = only(ticks.later(hours * HOUR + 60))
    assert len({*keys, request.run_key}) == 10, "Dagster starts no second run with a key"


def test_what_failed_holds_up_no_other_table(ticks: Ticks) -> None:
    """The first table's work kills the run, twice; the others were not reached, and are asked for without it."""
    for table in TABLES:
        ticks.crafted(table, files=12)
    for _ in range(2):
        ticks.runs(only(ticks.later(2 * HOUR)), FAILED, a="under way")
    assert tables(only(ticks.later(1.5 * HOUR))) == ["demo.b", "demo.c"]
    assert tables(only(ticks.later(2.5 * HOUR))) == ["demo.a", "demo.b", "demo.c"]


def test_a_run_that_a_person_terminated_counts_as_failed(ticks: Ticks) -> None:
    ticks.crafted(TABLES[0], files=12)
    for _ in range(2):
        ticks.runs(only(ticks.later(2 * HOUR)), dg.DagsterRunStatus.CANCELED)
    assert ticks.later(2 * HOUR - 60) == []
    assert "failed 2 times in a row" in ticks.skipped
    assert only(ticks.later(2 * HOUR + 60)).run_key


def test_a_success_ends_the_backoff_and_is_not_repeated_at_once(ticks: Ticks) -> None:
    ticks.crafted(TABLES[0], files=12)
    ticks.crafted(TABLES[1], files=12)
    request = only(ticks.later(HOUR))
    for status, fared in ((FAILED, "failed"), (FAILED, "failed"), (DONE, "done")):
        ticks.runs(request, status, a=fared)
    assert ticks.later(HOUR - 60) == []
    assert ticks.skipped == "the last run ended less than an hour ago"
    assert tables(only(ticks.later(HOUR + 60))) == ["demo.b"], "which had no work done in them"
    assert tables(only(ticks.later(16 * HOUR + 60))) == ["demo.a", "demo.b"]


def test_a_table_that_needs_nothing_is_not_looked_at_again_before_its_next_commit(
    ticks: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ticks.crafted(TABLES[0], files=3)
    assert ticks.tick() == []
    assert ticks.skipped == "3 of 3 tables to check; none needs a run"
    with monkeypatch.context() as blind:
        blind.setattr(sensors.HealthReader, "health", lambda *_: pytest.fail("looked"))
        assert ticks.tick(HOUR) == []
        assert "could not be read" not in ticks.skipped
    made.list([Listed((DAY,))] * 12, keep=True)
    ticks.instance.report_runless_asset_event(dg.AssetMaterialization(TABLES[0].key))
    ticks.now = time.time() + HOUR
    assert tables(only(ticks.tick())) == ["demo.a"]


def test_tables_without_an_event_are_loaded_once_an_hour(ticks: Ticks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one whose only work is left out for ever."""
    ticks.tables = [*TABLES[:2], numbers(identifier="demo.c", maintenance=Maintenance(managed=True))]
    ticks.crafted(ticks.tables[0], files=3)
    ticks.crafted(ticks.tables[2], files=12)
    ticks.tick()
    load, loads = sensors.HealthReader.load, list[str]()

    def counted(reader: sensors.HealthReader, table: Table) -> IcebergTable | None:
        loads.append(table.identifier)
        return load(reader, table)

    monkeypatch.setattr(sensors.HealthReader, "load", counted)
    assert [ticks.tick() for _ in range(4 * 12)] == [[]] * 48
    assert sorted(loads) == [name for name in ("demo.a", "demo.b", "demo.c") for _ in range(4)]
    ticks.instance.report_runless_asset_event(dg.AssetMaterialization(TABLES[1].key))
    ticks.tick(1)
    ticks.tick(1)
    assert loads[12:] == ["demo.b"]


def test_a_long_history_is_looked_at_again_when_its_first_snapshot_is_old_enough(
    ticks: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though nobody wrote to the table. A short one is not."""
    monkeypatch.setattr(levels, "SNAPSHOTS", Limit(12, 120))
    monkeypatch.setattr(look, "time", SimpleNamespace(time=lambda: ticks.now, monotonic=time.monotonic))
    for table, snapshots in zip(TABLES, (12, 11, 0), strict=True):
        made = ticks.crafted(table, files=1)
        for _ in range(snapshots - 1):
            made.list([Listed((DAY,))])
    assert ticks.tick() == []
    with monkeypatch.context() as blind:
        blind.setattr(sensors.HealthReader, "health", lambda *_: pytest.fail("looked"))
        assert [ticks.tick(days * 24 * HOUR) for days in (1, 2, 1.9)] == [[]] * 3
        assert "could not be read" not in ticks.skipped
    assert tables(only(ticks.tick(HOUR * 4))) == ["demo.a"]


def test_what_waits_is_looked_at_again_without_a_commit(ticks: Ticks) -> None:
    ticks.crafted(TABLES[0], files=12)
    ticks.now = time.time()
    assert ticks.tick(60) == []
    assert "demo.a: written less than 15 minutes ago" in ticks.skipped
    assert tables(only(ticks.tick(900))) == ["demo.a"]


def test_what_waits_is_resumed_together_with_what_is_due(ticks: Ticks) -> None:
    """The first table is old enough by then, and not due before a quarter of an hour after its look."""
    ticks.crafted(TABLES[0], files=12)
    ticks.now = time.time()
    assert ticks.tick(60) == []
    ticks.crafted(TABLES[1], files=12)
    ticks.instance.report_runless_asset_event(dg.AssetMaterialization(TABLES[1].key))
    assert tables(only(ticks.tick(860))) == ["demo.a", "demo.b"]


def test_a_table_that_a_run_writes_is_left_alone(ticks: Ticks) -> None:
    ticks.crafted(TABLES[0], files=12)
    ticks.instance.add_run(
        dg.DagsterRun(
            job_name="__ASSET_JOB", status=dg.DagsterRunStatus.STARTED, asset_selection=frozenset({TABLES[0].key})
        )
    )
    assert ticks.tick() == []
    assert "demo.a: a run that writes to it is queued or running" in ticks.skipped


def test_what_another_code_location_does_with_a_table_of_that_name_keeps_none_from_being_asked_for(
    ticks: Ticks,
) -> None:
    ticks.crafted(TABLES[0], files=120)
    theirs = GrpcServerCodeLocationOrigin("127.0.0.1", 4000, location_name="theirs")
    origin = RemoteRepositoryOrigin(theirs, "__repository__").get_job_origin(JOB)
    ticks.instance.add_run(
        dg.DagsterRun(
            job_name=JOB,
            status=dg.DagsterRunStatus.STARTED,
            tags={"dagster/sensor_name": SENSOR},
            remote_job_origin=origin,
        )
    )
    assert not ticks.tick()
    ticks.location = "ours"
    assert tables(only(ticks.tick())) == ["demo.a"]


def test_a_lost_cursor_costs_a_look_and_asks_for_nothing_twice(ticks: Ticks) -> None:
    ticks.crafted(TABLES[0], files=12)
    request = only(ticks.tick())
    ticks.cursor = "no cursor of ours"
    assert only(ticks.tick()).run_key == request.run_key
    ticks.runs(request, FAILED)
    ticks.cursor = None
    assert ticks.later(60) == []


def test_a_table_that_can_not_be_read_keeps_it_from_no_other(ticks: Ticks) -> None:
    made = ticks.crafted(TABLES[0], files=12)
    ticks.crafted(TABLES[1], files=12)
    snapshot = made.table.refresh().current_snapshot()
    assert snapshot
    made.table.io.delete(snapshot.manifest_list)
    assert tables(only(ticks.tick())) == ["demo.b"]


def test_when_time_is_up_the_next_tick_goes_on_with_the_next_table(
    ticks: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    for table in TABLES:
        ticks.crafted(table, files=12)
    monkeypatch.setattr(sensors, "TICK_SECONDS", -1.0)
    assert [tables(only(ticks.tick())) for _ in range(4)] == [["demo.a"], ["demo.b"], ["demo.c"], ["demo.a"]]
