"""The health sensor, tick by tick on a real instance and a real catalog: what it says, when it says it again, what it
does when a table or the time is against it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import dagster as dg
import pytest

from lakehouse_assets.declare.table import Table
from lakehouse_assets.health import health_sensor as sensors
from lakehouse_assets.health.health_cursor import HealthCursor
from lakehouse_assets.health.health_sensor import AGAIN_SECONDS, health_sensor
from lakehouse_assets.health.health_verdicts import unreadable
from lakehouse_assets.run.resource import Lakehouse
from resources.catalog import load_lake
from resources.settings import Settings
from tests.support.manifests import Crafted, Listed
from tests.support.tables import numbers

TABLES = [numbers(identifier=f"demo.{name}") for name in ("a", "b", "c")]
CHECKS = ["files", "history", "storage"]


@dataclass
class Ticks:
    """The sensor's ticks, one after the other. now: seconds since 1970."""

    settings: Settings
    instance: dg.DagsterInstance
    now: float = 1_000_000.0
    cursor: str | None = None
    skipped: str | None = None
    tables: list[Table] = field(default_factory=lambda: TABLES)

    def crafted(self, table: Table, files: int) -> Crafted:
        """The table with so many small files in one day."""
        made = Crafted.create(load_lake(self.settings), table.schema, table.spec, table.identifier)
        made.list([Listed((19_723,))] * files)
        return made

    def tick(self, seconds: float = 300.0) -> dict[str, list[dg.AssetCheckEvaluation]]:
        """What is said, by table, so many seconds after the last tick."""
        self.now += seconds
        sensor = health_sensor(self.tables, dg.DefaultSensorStatus.STOPPED, lambda: self.now)
        context = dg.build_sensor_context(self.instance, self.cursor, resources={"lakehouse": Lakehouse(self.settings)})
        data = sensor.evaluate_tick(context)
        self.cursor, self.skipped = data.cursor, data.skip_message
        said: dict[str, list[dg.AssetCheckEvaluation]] = {}
        for event in data.asset_events:
            assert isinstance(event, dg.AssetCheckEvaluation)
            said.setdefault(event.asset_key.path[-1], []).append(event)
        assert all([event.check_name for event in events] == CHECKS for events in said.values())
        return said

    @property
    def last(self) -> str:
        return HealthCursor.parse(self.cursor).last


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


def test_it_says_it_again_when_it_has_changed_and_once_a_day(ticks: Ticks) -> None:
    made = ticks.crafted(TABLES[0], files=3)
    assert sorted(ticks.tick()) == ["a"]
    assert ticks.tick() == {}
    assert ticks.skipped == "3 of 3 tables looked at, nothing has changed"
    made.list([Listed((19_724,))], keep=True)
    assert sorted(ticks.tick()) == ["a"]
    assert ticks.tick() == {}
    assert ticks.tick(AGAIN_SECONDS - 301) == {}
    assert sorted(ticks.tick(2)) == ["a"]
    assert ticks.tick() == {}


def test_a_table_without_a_commit_since_is_not_looked_at(ticks: Ticks, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks.crafted(TABLES[0], files=3)
    ticks.tick()

    def never(*_: object) -> None:
        raise AssertionError("looked")

    monkeypatch.setattr(sensors.HealthReader, "health", never)
    assert ticks.tick() == {}


def test_a_commit_that_changes_no_number_is_not_said_again(ticks: Ticks) -> None:
    made = ticks.crafted(TABLES[0], files=3)
    said = ticks.tick()
    (folder,) = {Path(made.table.metadata_location.removeprefix("file://")).parent}
    # The same metadata at another place: what a catalog does that moves it.
    catalog = load_lake(ticks.settings)
    copy = folder / "00099-copy.metadata.json"
    copy.write_bytes(Path(catalog.load_table("demo.a").metadata_location.removeprefix("file://")).read_bytes())
    catalog.drop_table("demo.a")
    catalog.register_table("demo.a", copy.as_uri())
    assert said and ticks.tick() == {}


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
    broken.write_bytes(content)
    assert [event.passed for event in ticks.tick()["b"]] == [True, True, True]


def test_what_a_run_could_not_read_is_said_anew_without_a_commit(ticks: Ticks) -> None:
    for table in TABLES[:2]:
        ticks.crafted(table, files=3)
    ticks.tick()
    for check, verdict in unreadable(ConnectionError("the catalog is away")).items():
        ticks.instance.report_runless_asset_event(verdict.evaluation(TABLES[0].key, check))
    said = ticks.tick()
    assert {name: [event.passed for event in events] for name, events in said.items()} == {"a": [True, True, True]}
    for event in said["a"]:
        ticks.instance.report_runless_asset_event(event)
    assert ticks.tick() == {}


def test_a_catalog_that_can_not_be_opened_fails_the_tick_and_not_the_cursor(
    ticks: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks.crafted(TABLES[0], files=3)
    ticks.tick()
    before = ticks.cursor
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", "sqlite:////nowhere/at/all.db")
    with pytest.raises(Exception, match="unable to open database file"):
        ticks.tick()
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
        ([], "demo.a"),
    ]


def test_a_table_that_takes_more_than_a_tick_is_read_in_several_and_the_others_have_their_turns(
    ticks: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = Crafted.create(load_lake(ticks.settings), TABLES[0].schema, TABLES[0].spec, "demo.a")
    large.list(*([Listed((n,))] for n in range(4)))
    ticks.crafted(TABLES[1], files=3)
    monkeypatch.setattr(sensors, "TICK_SECONDS", -1.0)  # one new manifest a tick
    said = [sorted(ticks.tick()) for _ in range(3 * 3 + 1)]
    assert said == [[], ["b"], [], [], [], [], [], [], [], ["a"]]


def test_nothing_of_a_run_is_needed_and_the_events_are_those_of_the_asset(ticks: Ticks) -> None:
    ticks.crafted(TABLES[0], files=12)
    for event in ticks.tick()["a"]:
        ticks.instance.report_runless_asset_event(event)
    key = dg.AssetCheckKey(TABLES[0].key, "files")
    record = ticks.instance.event_log_storage.get_latest_asset_check_execution_by_key([key])[key]
    evaluation = record.event.dagster_event.event_specific_data  # type: ignore[union-attr]
    assert isinstance(evaluation, dg.AssetCheckEvaluation) and not evaluation.passed
    assert evaluation.metadata["files"].value == 12
