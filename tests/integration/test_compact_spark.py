"""What Iceberg's Java deletes is compacted without a JVM, and what that leaves is read by Iceberg's Java.
What PyIceberg alone shows is in test_compact.py and test_landing.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession

from lakehouse_assets.maintenance.rewrite.compact import Outcome
from tests.support.forks import Daily
from tests.support.outsiders import commit_deletes, equality_deletes, live, live_deletes
from tests.support.rewrites import compacted, landed, rewritten
from tests.support.wide import append, wide_rows, wide_table

pytestmark = pytest.mark.spark

DAYS = ("2013-01-01", "2013-01-02", "2013-01-03")
Worker = Callable[[], SparkSession]


@pytest.fixture
def wide(daily: Daily) -> Daily:
    return wide_table(daily)


def spark_rows(spark: SparkSession, table: str) -> list[str]:
    return sorted(row.r for row in spark.sql(f"SELECT to_json(struct(*)) AS r FROM {table}").collect())


def test_a_table_in_which_spark_deletes_is_compacted_and_read_by_spark(worker: Worker, wide: Daily) -> None:
    spark = worker()
    name = f"lake.{wide.identifier}"
    spark.sql(f"DELETE FROM {name} WHERE day = DATE'{DAYS[0]}' AND n % 10 = 1")
    spark.sql(f"UPDATE {name} SET text = 'new' WHERE day = DATE'{DAYS[1]}' AND n = 12")
    assert len(live_deletes(wide.table)) >= 2
    spark.sql(f"REFRESH TABLE {name}")
    before, then = spark_rows(spark, name), wide.table.current_snapshot()
    time.sleep(0.01)

    report = compacted(wide)

    assert {p.outcome for p in report.partitions} == {Outcome.LANDED}
    assert len(live(wide.table)) == 3
    assert not live_deletes(wide.table)
    spark.sql(f"REFRESH TABLE {name}")
    assert spark_rows(spark, name) == before
    assert len(before) == 33
    filtered = spark.sql(f"SELECT count(*) AS n FROM {name} WHERE day = DATE'{DAYS[1]}' AND n >= 20").collect()
    assert filtered[0].n == 4
    assert spark_rows(spark, f"{name} VERSION AS OF {then.snapshot_id}") == before
    at = datetime.fromtimestamp(then.timestamp_ms / 1000, UTC).isoformat(sep=" ")
    assert spark_rows(spark, f"{name} TIMESTAMP AS OF '{at}'") == before
    operations = [r.operation for r in spark.sql(f"SELECT operation FROM {name}.snapshots").collect()]
    assert operations[-1] == "replace"


def test_the_changelog_of_a_compaction_is_empty(worker: Worker, wide: Daily) -> None:
    """Of one that lands between two appends too."""
    spark, name = worker(), f"lake.{wide.identifier}"
    start = wide.table.current_snapshot().snapshot_id
    compacted(wide)
    append(wide, wide_rows(0, 5))
    end = wide.table.current_snapshot().snapshot_id
    spark.sql(f"REFRESH TABLE {name}")
    changes = (
        spark.read.format("iceberg")
        .option("start-snapshot-id", start)
        .option("end-snapshot-id", end)
        .table(f"{name}.changes")
        .groupBy("_change_type")
        .count()
        .collect()
    )
    assert {row["_change_type"]: row["count"] for row in changes} == {"INSERT": 4}


def test_equality_deletes_beside_a_landing_are_read_by_spark(worker: Worker, wide: Daily) -> None:
    """In a manifest that the landing had to write, and newer than the base of a unit that landed."""
    spark, name = worker(), f"lake.{wide.identifier}"
    spark.sql(f"DELETE FROM {name} WHERE day = DATE'{DAYS[0]}' AND n = 1")
    units = rewritten(wide)
    partition = {str(d): e.data_file.partition for e in live(wide.table) for d in [e.data_file.partition[0]]}
    commit_deletes(wide.table, equality_deletes(wide.table, "n", [2, 12], partition["15707"]))
    spark.sql(f"REFRESH TABLE {name}")
    before = spark_rows(spark, name)
    landing = landed(wide, *units)
    assert {u.name: d and d.rule for u, d in landing.units} == dict.fromkeys([f"day={day}" for day in DAYS])
    spark.sql(f"REFRESH TABLE {name}")
    assert spark_rows(spark, name) == before
    assert len(before) == 33
    assert not spark.sql(f"SELECT * FROM {name} WHERE day = DATE'{DAYS[1]}' AND n = 12").collect()
