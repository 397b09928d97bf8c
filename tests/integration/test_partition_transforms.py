"""Spark's own partition transforms give each row the partition that its Dagster key owns.
The same properties on PyIceberg's transforms, with more cases and no JVM: unit/declare/test_alignment.py."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache

import dagster as dg
import pytest
from hypothesis import Phase, given, settings
from pyiceberg.typedef import Record
from pyiceberg.utils.datetime import date_to_days, datetime_to_micros
from pyspark.sql import SparkSession

from lakehouse_assets.declare.region import Relation
from lakehouse_assets.environment.catalog import catalog_properties
from lakehouse_assets.environment.catalog_in_spark import spark_catalogs
from lakehouse_assets.environment.settings import Settings, read_settings
from lakehouse_assets.environment.spark_setup import environment, spark_conf
from lakehouse_assets.worker.session import build_session, configure
from tests.support.clocks import CLOCKS, DAILY, MOMENTS, NEW_YORK, TRANSITIONS, align, spec, value_at
from tests.support.spark_tables import loaded

pytestmark = pytest.mark.spark

FROM_LONG = {
    "day": "date_from_unix_date(CAST(v AS INT))",
    "at": "CAST(timestamp_micros(v) AS TIMESTAMP_NTZ)",
    "at_utc": "timestamp_micros(v)",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return read_settings({"LAKEHOUSE_HOME": str(tmp_path_factory.mktemp("home"))})


@pytest.fixture(scope="module")
def spark(home: Settings) -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment().items():
            patch.setenv(name, value)
        session = configure(build_session(spark_conf(home, {})), spark_catalogs(catalog_properties(home)))
        session.sql("CREATE NAMESPACE IF NOT EXISTS stage.written")
        yield session
        session.stop()


@cache
def moments() -> list[datetime]:
    """A few hundred moments of Hypothesis's choosing, and the clock changes themselves, for one batch through Spark."""
    found = list(TRANSITIONS)

    @settings(max_examples=200, database=None, deadline=None, phases=[Phase.generate])
    @given(MOMENTS)
    def gather(moment: datetime) -> None:
        found.append(moment)

    gather()
    return found


def partition_values(spark: SparkSession, column: str, values: set[int]) -> dict[int, dict[str, int]]:
    """For each value of a column, what each of Spark's transforms makes of it, as partition tuples hold it."""
    transforms = ("year", "month", "day") if column == "day" else ("year", "month", "day", "hour")
    source = spark.createDataFrame([(v,) for v in sorted(values)], "v long")
    made = source.selectExpr("v", *(f"stage.system.{name}s({FROM_LONG[column]}) AS {name}" for name in transforms))
    return {
        row.v: {"identity": row.v} | {n: date_to_days(row[n]) if n == "day" else row[n] for n in transforms}
        for row in made.collect()
    }


def test_each_moment_falls_into_its_key_by_sparks_transforms(spark: SparkSession) -> None:
    owners: list[dict[int, set[str]]] = []  # for each clock, by the column's value, the keys Dagster gives it
    asked: dict[str, set[int]] = defaultdict(set)
    for partitions, column, _ in CLOCKS:
        owner: dict[int, set[str]] = defaultdict(set)
        for moment in moments():
            key = partitions.get_partition_key_for_timestamp(moment.timestamp())
            window = partitions.time_window_for_partition_key(key)
            first, end = window.start.astimezone(UTC), window.end.astimezone(UTC)
            for at in (moment, first, end - timedelta(microseconds=1)):
                owner[value_at(at.astimezone(window.start.tzinfo), column)].add(key)
        owners.append(owner)
        asked[column] |= owner.keys()
    spark_says = {column: partition_values(spark, column, values) for column, values in asked.items()}
    for (partitions, column, term), owner in zip(CLOCKS, owners, strict=True):
        region = align(partitions, term).region(sorted(set().union(*owner.values())))
        transform = str(spec(term).fields[0].transform)
        found = {value: {region.key_of(Record(spark_says[column][value][transform]))} for value in owner}
        assert found == owner, f"{partitions}, {term}"


REGIONS_OF_ROWS = dg.StaticPartitionsDefinition(["eu", "us"])
WRITTEN: list[tuple[str, list[str], dg.PartitionsDefinition, str]] = [
    (
        "days(at_utc), region, bucket(4, shop)",
        ["day(at_utc)", "region", "bucket[4](shop)"],
        dg.MultiPartitionsDefinition({"at_utc": DAILY, "region": REGIONS_OF_ROWS}),
        "concat(date_format(at_utc, 'yyyy-MM-dd'), '|', region)",
    ),
    (
        "hours(at_utc)",
        ["hour(at_utc)"],
        dg.DailyPartitionsDefinition("2013-01-01", timezone=NEW_YORK),
        f"date_format(from_utc_timestamp(at_utc, '{NEW_YORK}'), 'yyyy-MM-dd')",
    ),
    (
        "day, paid",
        ["day", "paid"],
        dg.MultiPartitionsDefinition(
            {
                "day": dg.MonthlyPartitionsDefinition("2013-01-01"),
                "paid": dg.StaticPartitionsDefinition(["true", "false"]),
            }
        ),
        "concat(date_format(day, 'yyyy-MM-01'), '|', paid)",
    ),
    (
        "price, shop",
        ["price", "shop"],
        dg.MultiPartitionsDefinition(
            {
                "price": dg.DynamicPartitionsDefinition(name="prices"),
                "shop": dg.StaticPartitionsDefinition(["-1", "0", "1"]),
            }
        ),
        "concat(price, '|', shop)",
    ),
]


@pytest.mark.parametrize(("ddl", "terms", "partitions", "key"), WRITTEN, ids=[ddl for ddl, *_ in WRITTEN])
def test_each_file_spark_writes_belongs_to_the_key_of_its_rows(
    spark: SparkSession, home: Settings, ddl: str, terms: list[str], partitions: dg.PartitionsDefinition, key: str
) -> None:
    """Partition tuples as PyIceberg reads them from Spark's manifests, each type as it is there."""
    table = f"stage.written.t{[case[0] for case in WRITTEN].index(ddl)}"
    minutes = [datetime_to_micros(at) // 60_000_000 + around for at in TRANSITIONS for around in (-61, 0, 61)]
    spark.sql(f"""
        CREATE TABLE {table} USING iceberg PARTITIONED BY ({ddl}) LOCATION '{home.home}/{table}' AS
        SELECT to_date(at_utc) AS day, at_utc, if(m % 7 < 3, 'eu', 'us') AS region, CAST(m % 3 - 1 AS INT) AS shop,
               m % 5 < 2 AS paid, CAST(m % 4 / 4 AS DECIMAL(5, 2)) AS price
        FROM (SELECT m, timestamp_seconds(m * 60) AS at_utc FROM (SELECT explode(array({str(minutes)[1:-1]})) AS m))""")
    owners = {
        row.file: row.key for row in spark.sql(f"SELECT DISTINCT _file AS file, {key} AS key FROM {table}").collect()
    }
    iceberg = loaded(spark, table)
    region = align(partitions, *terms).region(sorted(set(owners.values())))
    tuples = {task.file.file_path: task.file.partition for task in iceberg.scan().plan_files()}
    assert {path: region.key_of(values) for path, values in tuples.items()} == owners
    assert {region.relation(iceberg.schema(), iceberg.spec(), values) for values in tuples.values()} == {
        Relation.INSIDE
    }
    assert iceberg.scan(row_filter=region.predicate()).count() == len(minutes)
    for owner in set(owners.values()):
        one = align(partitions, *terms).region([owner])
        files = {path for path, values in tuples.items() if one.key_of(values) == owner}
        assert {task.file.file_path for task in iceberg.scan(row_filter=one.predicate()).plan_files()} == files
