"""The health sensor, tick by tick on a real instance and a real catalog: what it says, when it says it again, what it
does when a table or the time is against it."""

# No `from __future__ import annotations`: Dagster needs the annotations as objects, not as text.

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import dagster as dg
import pytest
from pyiceberg.table import Table as IcebergTable

from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.maintenance.health import verdicts as sensors
from lakehouse_assets.maintenance.health.checks import health_checks, health_sensor
from lakehouse_assets.maintenance.health.look import LookCursor
from lakehouse_assets.maintenance.health.verdicts import unreadable
from lakehouse_assets.maintenance.levels import LEVELS
from lakehouse_assets.run.resource import Lakehouse
from tests.support.manifests import Crafted, Listed
from tests.support.tables import numbers

TABLES = [numbers(identifier=f"demo.{name}") for name in ("a", "b", "c")]
CHECKS = ["files", "history", "storage"]
MINUTE, HOUR, A_DAY = 60.0, 3600.0, 24 * 3600.0
DAY = 19_723


@dataclass
class Ticks:
    """The sensor's ticks, one after the other, whose evaluations are stored as the daemon stores them. now: seconds
    since 1970; what is stored has the time of the real clock, at which the first tick is."""

    settings: Settings
    instance: dg.DagsterInstance
    now: float = field(default_factory=time.time)
    cursor: str | None = None
    skipped: str | None = None
    tables: list[Table] = field(default_factory=lambda: TABLES)

    def crafted(self, table: Table, files: int) -> Crafted:
        """The table with so many small files in one day."""
        made = Crafted.create(load_lake(self.settings), table.schema, table.spec, table.identifier)
        made.list([Listed((DAY,))] * files)
        return made

    def materialized(self, table: Table) -> None:
        """Dagster's log says that a run has published to the table."""
        self.instance.report_runless_asset_event(dg.AssetMaterialization(table.key))

    def tick(self, seconds: float = 5 * MINUTE) -> dict[str, list[dg.AssetCheckEvaluation]]:
        """What is said, by table, so many seconds after the last tick."""
        self.now += seconds
        sensor = health_sensor(self.tables, LEVELS, dg.DefaultSensorStatus.STOPPED, lambda: self.now)
        context = dg.build_sensor_context(self.instance, self.cursor, resources={"lakehouse": Lakehouse(self.settings)})
        data = sensor.evaluate_tick(context)
        self.cursor, self.skipped = data.cursor, data.skip_message
        said: dict[str, list[dg.AssetCheckEvaluation]] = {}
        for event in data.asset_events:
            assert isinstance(event, dg.AssetCheckEvaluation)
            said.setdefault(event.asset_key.path[-1], []).append(event)
            self.instance.report_runless_asset_event(event)
        return said

    def names(self, seconds: float = 5 * MINUTE) -> dict[str, list[str]]:
        """The checks that are said, by table, so many seconds after the last tick."""
        return {name: [event.check_name for event in events] for name, events in self.tick(seconds).items()}

    @contextmanager
    def loads(self) -> Iterator[list[str]]:
        """The tables that are loaded meanwhile."""
        load, found = sensors.HealthReader.load, list[str]()

        def counted(reader: sensors.HealthReader, table: Table) -> IcebergTable | None:
            found.append(table.identifier)
            return load(reader, table)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sensors.HealthReader, "load", counted)
            yield found

    @property
    def last(self) -> str:
        return LookCursor.parse(self.cursor).last


@pytest.fixture
def ticks(settings: Settings, instance: dg.DagsterInstance) -> Ticks:
    return Ticks(settings, instance)


def test_it_says_what_is_wrong_and_nothing_of_tables_that_are_not_there(ticks: Ticks) -> None:
    ticks.crafted(TABLES[0], files=3)
    ticks.crafted(TABLES[2], files=12)
    said = ticks.tick()
    assert sorted(said) == ["a", "c"]
    assert [event.passed for event in said["a"]] == [True, True, True]
    assert [event.passed for event in said["c"]] == [False, True, True]
    worst = said["c"][0].metadata["worst: fragments"]
    assert isinstance(worst, dg.TableMetadataValue)
    assert worst.records[0].data["partition"] == "2024-01-01"


def test_a_graver_table_is_told_at_once_and_only_the_check_that_says_so(ticks: Ticks) -> None:
    made = ticks.crafted(TABLES[0], files=3)
    assert ticks.names(0) == {"a": CHECKS}
    for files, state in ((12, dg.AssetCheckSeverity.WARN), (120, dg.AssetCheckSeverity.ERROR)):
        made.list([Listed((DAY,))] * files, keep=True)
        ticks.materialized(TABLES[0])
        said = ticks.tick()
        assert [(event.check_name, event.passed, event.severity) for event in said["a"]] == [("files", False, state)]
    assert ticks.names() == {}


def test_numbers_alone_are_said_once_an_hour(ticks: Ticks) -> None:
    made = ticks.crafted(TABLES[0], files=3)
    assert ticks.names(0) == {"a": CHECKS}
    for _ in range(6):  # a run each five minutes, for half an hour
        made.list([Listed((DAY + 1,))], keep=True)
        ticks.materialized(TABLES[0])
        assert ticks.names() == {}
    assert ticks.names(29 * MINUTE) == {}
    said = ticks.tick(2 * MINUTE)
    assert {name: [event.check_name for event in events] for name, events in said.items()} == {"a": CHECKS}
    assert said["a"][0].metadata["files"].value == 9
    assert ticks.names() == {}


def test_only_the_check_is_said_whose_numbers_have_changed(ticks: Ticks) -> None:
    made = ticks.crafted(TABLES[0], files=3)
    ticks.tick(0)
    with made.table.transaction() as transaction:  # it makes metadata.json larger
        transaction.set_properties(owner="somebody")
    assert ticks.names(61 * MINUTE) == {"a": ["storage"]}


def test_what_has_not_changed_is_said_once_a_day(ticks: Ticks) -> None:
    ticks.crafted(TABLES[0], files=3)
    assert ticks.names(0) == {"a": CHECKS}
    assert ticks.names() == {}
    assert ticks.skipped == "0 of 3 tables to check; nothing new to report"
    assert ticks.names(A_DAY - 6 * MINUTE) == {}
    assert ticks.names(HOUR) == {"a": CHECKS}


def asset(settings: Settings, table: Table, day: int) -> dg.AssetsDefinition:
    """In place of the table's asset: it adds a small file."""

    @dg.asset(key=table.key)
    def publish() -> None:
        Crafted(load_lake(settings).load_table(table.identifier)).list([Listed((day,))], keep=True)

    return publish


def test_what_a_run_said_is_not_said_again(ticks: Ticks) -> None:
    ticks.crafted(TABLES[0], files=3)
    ticks.tick(0)
    for day in range(2):
        assets = [asset(ticks.settings, TABLES[0], day), health_checks(TABLES[0], LEVELS)]
        result = dg.materialize(assets, instance=ticks.instance, resources={"lakehouse": Lakehouse(ticks.settings)})
        assert [evaluation.check_name for evaluation in result.get_asset_check_evaluations()] == CHECKS
        assert ticks.names() == {}


def planned(instance: dg.DagsterInstance, settings: Settings) -> dg.DagsterRun:
    """A run of the table that has not begun."""
    defs = dg.Definitions(
        [asset(settings, TABLES[0], DAY)],
        asset_checks=[health_checks(TABLES[0], LEVELS)],
        resources={"lakehouse": Lakehouse(settings)},
    )
    return instance.create_run_for_job(defs.resolve_implicit_global_asset_job_def())


def test_what_a_run_is_about_to_say_is_left_to_it_until_it_is_over(ticks: Ticks) -> None:
    """Dagster shows the run's evaluation in the place of its plan, behind all that was said meanwhile."""
    ticks.crafted(TABLES[0], files=12)
    run = planned(ticks.instance, ticks.settings)
    with ticks.loads() as loads:
        assert ticks.names(0) == {}
        assert "demo.a" not in loads
    ticks.instance.report_run_canceled(run)
    assert ticks.names() == {"a": CHECKS}


def test_checks_of_a_run_that_could_not_keep_their_verdicts_are_said_within_the_hour(ticks: Ticks) -> None:
    """Dagster's run monitoring has failed it; the others are unit/run/test_kept_verdicts.py's."""
    ticks.crafted(TABLES[0], files=3)
    assert ticks.names(0) == {"a": CHECKS}
    ticks.instance.report_run_failed(planned(ticks.instance, ticks.settings))
    assert ticks.names(HOUR) == {"a": CHECKS}
    assert ticks.names(HOUR) == {}


def test_a_run_that_never_ends_keeps_nothing_to_itself_for_more_than_a_day(ticks: Ticks) -> None:
    ticks.crafted(TABLES[0], files=12)
    planned(ticks.instance, ticks.settings)
    assert ticks.names(A_DAY + MINUTE) == {"a": CHECKS}


def test_tables_without_an_event_are_loaded_once_an_hour(ticks: Ticks) -> None:
    for table in TABLES[:2]:
        ticks.crafted(table, files=3)
    ticks.tick(0)
    with ticks.loads() as loads:
        for _ in range(4 * 12):
            ticks.tick()
    assert sorted(loads) == [name for name in ("demo.a", "demo.b", "demo.c") for _ in range(4)]
    with ticks.loads() as loads:
        ticks.materialized(TABLES[1])
        ticks.tick(1)
        ticks.tick(1)
    assert loads == ["demo.b"]


def test_a_table_without_a_commit_since_is_not_looked_at(ticks: Ticks, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks.crafted(TABLES[0], files=3)
    ticks.tick(0)

    def never(*_: object) -> None:
        raise AssertionError("looked")

    monkeypatch.setattr(sensors.HealthReader, "health", never)
    with ticks.loads() as loads:
        assert ticks.tick(HOUR) == {}
    assert "demo.a" in loads


def test_a_commit_that_changes_no_number_is_not_said_again(ticks: Ticks) -> None:
    made = ticks.crafted(TABLES[0], files=3)
    said = ticks.tick(0)
    (folder,) = {Path(made.table.metadata_location.removeprefix("file://")).parent}
    # The same metadata at another place: what a catalog does that moves it.
    catalog = load_lake(ticks.settings)
    copy = folder / "00099-copy.metadata.json"
    copy.write_bytes(Path(catalog.load_table("demo.a").metadata_location.removeprefix("file://")).read_bytes())
    catalog.drop_table("demo.a")
    catalog.register_table("demo.a", copy.as_uri())
    assert said
    assert ticks.tick(HOUR) == {}


def test_one_table_that_can_not_be_read_is_a_warning_and_hides_no_other(ticks: Ticks) -> None:
    made = [ticks.crafted(table, files=3) for table in TABLES]
    snapshot = made[1].table.refresh().current_snapshot()
    assert snapshot
    broken = Path(snapshot.manifest_list.removeprefix("file://"))
    content = broken.read_bytes()
    broken.unlink()
    said = ticks.tick()
    assert sorted(said) == ["a", "b", "c"]
    assert {event.severity for event in said["b"]} == {dg.AssetCheckSeverity.WARN}
    assert not any(event.passed for event in said["b"])
    assert (said["b"][0].description or "").startswith("could not be read: FileNotFoundError")
    assert ticks.tick() == {}, "the same error is said once a day"
    assert ticks.tick(HOUR) == {}
    broken.write_bytes(content)
    assert [event.passed for event in ticks.tick()["b"]] == [True, True, True]


def test_what_a_run_could_not_read_is_said_anew_without_a_commit(ticks: Ticks) -> None:
    for table in TABLES[:2]:
        ticks.crafted(table, files=3)
    ticks.tick(0)
    for check, verdict in unreadable(ConnectionError("the catalog is away")).items():
        ticks.instance.report_runless_asset_event(verdict.evaluation(TABLES[0].key, check))
    ticks.materialized(TABLES[0])
    said = ticks.tick()
    assert {name: [event.passed for event in events] for name, events in said.items()} == {"a": [True, True, True]}
    assert ticks.tick() == {}


def test_a_catalog_that_can_not_be_opened_fails_the_tick_and_not_the_cursor(
    ticks: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks.crafted(TABLES[0], files=3)
    ticks.tick()
    before = ticks.cursor
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", "sqlite:////nowhere/at/all.db")
    with pytest.raises(Exception, match="unable to open database file"):
        ticks.tick(HOUR)
    assert ticks.cursor == before


def test_when_time_is_up_the_next_tick_goes_on_with_the_next_table(
    ticks: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    for table in TABLES:
        ticks.crafted(table, files=3)
    monkeypatch.setattr(sensors, "TICK_SECONDS", -1.0)
    assert [(sorted(ticks.tick()), ticks.last) for _ in range(4)] == [
        (["a"], "demo.a"),
        (["b"], "demo.b"),
        (["c"], "demo.c"),
        ([], "demo.c"),
    ]


def test_a_tick_says_no_more_than_the_daemon_can_store(ticks: Ticks, monkeypatch: pytest.MonkeyPatch) -> None:
    for table in TABLES:
        ticks.crafted(table, files=3)
    monkeypatch.setattr(sensors, "MOST_EVENTS", 4)
    assert [sorted(ticks.tick()) for _ in range(3)] == [["a", "b"], ["c"], []]


def test_a_table_that_takes_more_than_a_tick_is_read_in_several_and_the_others_have_their_turns(
    ticks: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = Crafted.create(load_lake(ticks.settings), TABLES[0].schema, TABLES[0].spec, "demo.a")
    large.list(*([Listed((n,))] for n in range(4)))
    ticks.crafted(TABLES[1], files=3)
    monkeypatch.setattr(sensors, "TICK_SECONDS", -1.0)  # one new manifest a tick
    said = [sorted(ticks.tick()) for _ in range(7)]
    assert said == [[], ["b"], [], [], [], ["a"], []]


def test_nothing_of_a_run_is_needed_and_the_events_are_those_of_the_asset(ticks: Ticks) -> None:
    ticks.crafted(TABLES[0], files=12)
    ticks.tick()
    key = dg.AssetCheckKey(TABLES[0].key, "files")
    record = ticks.instance.event_log_storage.get_latest_asset_check_execution_by_key([key])[key]
    evaluation = record.event.dagster_event.event_specific_data  # type: ignore[union-attr]
    assert isinstance(evaluation, dg.AssetCheckEvaluation)
    assert not evaluation.passed
    assert evaluation.metadata["files"].value == 12
