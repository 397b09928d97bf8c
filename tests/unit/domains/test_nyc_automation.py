"""What Dagster asks for by itself, tick by tick on an ephemeral instance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import dagster as dg
import pytest
from dagster._core.definitions.data_version import NULL_EVENT_POINTER, get_input_event_pointer_tag

from lakehouse_assets.domains.nyc import automation, tables
from tests.support.whole_location import build_defs

DAYS = tables.DAYS.get_partition_keys()
MONTHS = tables.MONTHS.get_partition_keys()
DIMENSIONS = ("airlines", "airports", "planes")


@dataclass
class Ticks:
    """The sensor's evaluations, one after the other."""

    instance: dg.DagsterInstance
    defs: dg.Definitions
    cursor: object = None

    def materialized(self, name: str, *partitions: str) -> None:
        """By runs that have read all that was there."""
        key, graph = dg.AssetKey(["nyc", name]), self.defs.resolve_asset_graph()
        newest = str(self.instance.event_log_storage.get_maximum_record_id() or NULL_EVENT_POINTER)
        tags = {get_input_event_pointer_tag(parent): newest for parent in graph.get(key).parent_keys}
        for partition in partitions or (None,):
            event = dg.AssetMaterialization(key, partition=partition, tags=tags)
            self.instance.report_runless_asset_event(event)

    def tick(self, hours: int = 0) -> dict[str, set[str | None]]:
        """What is asked for, by asset, in some hours."""
        now = datetime.now(UTC) + timedelta(hours=hours)
        result = dg.evaluate_automation_conditions(self.defs, self.instance, cursor=self.cursor, evaluation_time=now)
        self.cursor = result.cursor
        asked = {
            key.path[-1]: result.get_requested_partitions(key)
            for key in self.defs.resolve_asset_graph().get_all_asset_keys()
        }
        return {name: partitions for name, partitions in asked.items() if partitions}


@pytest.fixture
def empty() -> Iterator[Ticks]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Ticks(instance, build_defs())


@pytest.fixture
def loaded(empty: Ticks) -> Ticks:
    """Everything was materialized before the first tick."""
    for name in ("landing", *DIMENSIONS):
        empty.materialized(name)
    for name in ("weather", "flights", "flights_enriched"):
        empty.materialized(name, *DAYS)
    empty.materialized("route_delays_monthly", *MONTHS)
    empty.materialized("release")
    empty.materialized("monthly_report")
    assert empty.tick() == {}
    return empty


def test_nothing_is_asked_for_because_it_is_missing(empty: Ticks) -> None:
    assert empty.tick() == {}
    empty.materialized("landing")
    assert empty.tick() == {}


def test_a_day_of_flights_done_again_asks_for_its_day_and_its_month_once(loaded: Ticks) -> None:
    loaded.materialized("flights", "2013-03-05")
    assert loaded.tick() == {"flights_enriched": {"2013-03-05"}, "route_delays_monthly": {"2013-03-01"}}
    assert loaded.tick() == {}
    loaded.materialized("flights_enriched", "2013-03-05")
    assert loaded.tick() == {}  # a release waits for the month
    loaded.materialized("route_delays_monthly", "2013-03-01")
    assert loaded.tick() == {"release": {None}}
    loaded.materialized("release")
    assert loaded.tick() == {"monthly_report": {None}}
    loaded.materialized("monthly_report")
    assert loaded.tick() == {}


def test_a_day_of_weather_done_again_asks_for_the_two_local_days_it_reaches(loaded: Ticks) -> None:
    loaded.materialized("weather", "2013-07-01")
    assert loaded.tick() == {"flights_enriched": {"2013-06-30", "2013-07-01"}}
    assert loaded.tick() == {}


def test_a_whole_dimension_or_a_new_delivery_asks_for_no_history(loaded: Ticks) -> None:
    for name in (*DIMENSIONS, "landing"):
        loaded.materialized(name)
    assert loaded.tick() == {}  # nor for a release: the flights were made from older dimensions


def test_a_year_done_again_is_asked_for_as_one_backfill(loaded: Ticks) -> None:
    loaded.materialized("flights", *DAYS)
    context = dg.build_sensor_context(loaded.instance, repository_def=loaded.defs.get_repository_def())
    (sensor,) = [sensor for sensor in loaded.defs.sensors if sensor.name == "nyc_automation"]
    (asked,) = sensor.evaluate_tick(context).run_requests
    subset = asked.asset_graph_subset
    counts = {key.path[-1]: len(subset.get_partitions_subset(key)) for key in subset.asset_keys}
    assert counts == {"flights_enriched": len(DAYS), "route_delays_monthly": len(MONTHS)}


def test_a_report_that_failed_is_asked_for_again_within_the_hour(loaded: Ticks) -> None:
    loaded.materialized("release")
    assert loaded.tick() == {"monthly_report": {None}}
    job = loaded.defs.resolve_implicit_global_asset_job_def()
    run = loaded.instance.create_run_for_job(job, asset_selection={dg.AssetKey(["nyc", "monthly_report"])})
    loaded.instance.report_run_failed(run)
    assert loaded.tick(hours=1) == {"monthly_report": {None}}


def test_a_first_load_asks_for_what_it_completes(empty: Ticks) -> None:
    assert empty.tick() == {}
    for name in DIMENSIONS:
        empty.materialized(name)
    empty.materialized("flights", *DAYS[:40])
    assert empty.tick() == {"route_delays_monthly": {"2013-01-01"}}  # February lacks days, the days lack weather
    empty.materialized("weather", *DAYS[:40])
    assert empty.tick() == {"flights_enriched": set(DAYS[:39])}  # the 40th ends in the weather of the 41st
    empty.materialized("weather", DAYS[40])
    assert empty.tick() == {"flights_enriched": {DAYS[39]}}


def scheduled(day: datetime) -> dg.RunRequest | dg.SkipReason:
    defs = build_defs()
    (schedule,) = [found for found in defs.schedules if found.name != "lakehouse_collection"]
    context = dg.build_schedule_context(scheduled_execution_time=day, repository_def=defs.get_repository_def())
    (asked,) = [schedule(context)]
    return asked


def test_the_schedule_requests_last_month_and_the_day_after_it_in_one_run() -> None:
    asked = scheduled(datetime(2013, 3, 2, 12, tzinfo=UTC))
    assert asked.run_key == "2013-02-01"
    assert asked.tags["dagster/asset_partition_range_start"] == "2013-02-01"
    assert asked.tags["dagster/asset_partition_range_end"] == "2013-03-01"


def test_the_schedule_asks_for_no_partition_that_is_not_there() -> None:
    december = scheduled(datetime(2014, 1, 2, 12, tzinfo=UTC))
    assert december.tags["dagster/asset_partition_range_end"] == "2013-12-31"
    later = scheduled(datetime(2014, 3, 2, 12, tzinfo=UTC))
    assert isinstance(later, dg.SkipReason)
    assert later.skip_message == "there is no partition from 2014-02-01 to 2014-03-01: the last one is 2013-12-31"


def test_last_month_across_a_year_and_a_leap_day() -> None:
    assert automation.last_month(date(2013, 1, 2))[:: len(automation.last_month(date(2013, 1, 2))) - 1] == [
        "2012-12-01",
        "2013-01-01",
    ]
    assert automation.last_month(date(2012, 3, 2))[-2:] == ["2012-02-29", "2012-03-01"]
