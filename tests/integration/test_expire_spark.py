"""A table whose snapshots expired, as Spark sees it: rows, time travel, further commits.
What PyIceberg alone shows is in test_expire_commit.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table.update import RemoveSnapshotsUpdate
from pyspark.sql import SparkSession

from lakehouse_assets.commit.expire import ExpiryPolicy, expire, plan_expiry
from tests.support.forks import Daily, daily_rows

pytestmark = pytest.mark.spark

DAYS = tuple(f"2013-01-{n:02}" for n in range(1, 5))
Worker = Callable[[], SparkSession]


def rows_at(spark: SparkSession, daily: Daily, at_ms: int) -> int:
    travel = f"SELECT * FROM lake.{daily.identifier} TIMESTAMP AS OF timestamp_millis({at_ms})"
    return spark.sql(travel).count()


def test_time_travel_is_right_or_refused_and_the_table_takes_commits(worker: Worker, daily: Daily) -> None:
    for day in DAYS:
        daily.append(daily_rows(day))
    log = daily.table.history()
    daily.table.manage_snapshots().create_tag(log[0].snapshot_id, "first").commit()

    policy = ExpiryPolicy(minimum=2)
    done = expire(daily.catalog, daily.identifier, lambda m: plan_expiry("t", m, policy, 10**14).expiry)

    assert len(done.expiry.snapshot_ids) == 1
    assert not done.faults
    spark = worker()
    assert [rows_at(spark, daily, entry.timestamp_ms) for entry in log[2:]] == [3, 4]
    for entry in log[:2]:
        with pytest.raises(Exception, match="Cannot find a snapshot older than"):
            rows_at(spark, daily, entry.timestamp_ms)
    name = f"lake.{daily.identifier}"
    assert spark.sql(f"SELECT * FROM {name} VERSION AS OF 'first'").count() == 1
    spark.sql(f"INSERT INTO {name} VALUES (DATE'2013-02-01', 'AA', 1)")
    assert spark.table(name).count() == 5


def test_the_naive_way_makes_spark_travel_to_the_wrong_snapshot(worker: Worker, daily: Daily) -> None:
    if not isinstance(daily.catalog, SqlCatalog):
        pytest.skip("a REST catalog writes the log itself")
    for day in DAYS:
        daily.append(daily_rows(day))
    log = daily.table.history()
    daily.catalog.commit_table(daily.table, (), (RemoveSnapshotsUpdate(snapshot_ids=[log[1].snapshot_id]),))
    assert rows_at(worker(), daily, log[1].timestamp_ms) == 1, "there were 2"
