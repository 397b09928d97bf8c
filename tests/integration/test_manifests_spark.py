"""Manifests that Spark wrote are rewritten without a JVM, and Spark reads what that leaves.
What PyIceberg alone shows is in test_rewrite_manifests.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyiceberg.typedef import Record
from pyspark.sql import SparkSession

from lakehouse_assets.maintenance.rewrite.manifests import rewrite_manifests
from tests.support.forks import Daily, daily_rows
from tests.support.outsiders import commit_deletes, equality_deletes
from tests.support.rewrites import token

pytestmark = pytest.mark.spark

DAYS = ("2013-01-01", "2013-01-02", "2013-01-03")
Worker = Callable[[], SparkSession]


def rows(spark: SparkSession, query: str) -> list[str]:
    return sorted(row.r for row in spark.sql(f"SELECT to_json(struct(*)) AS r FROM ({query})").collect())


def test_what_spark_wrote_and_deleted_reads_the_same(worker: Worker, daily: Daily) -> None:
    """Data files of both writers, position deletes of Spark's, equality deletes; rows, entries and metrics."""
    spark, name = worker(), f"lake.{daily.identifier}"
    modes = "'write.delete.mode'='merge-on-read', 'commit.manifest-merge.enabled'='false'"
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({modes})")
    for carrier in "ABC":
        values = ", ".join(f"(DATE'{day}', '{carrier}', {n})" for day in DAYS for n in range(3))
        spark.sql(f"INSERT INTO {name} VALUES {values}")
    daily.append(daily_rows(*DAYS, carrier="PY", each=3))
    daily.append(daily_rows(*DAYS, carrier="QY", each=3))
    spark.sql(f"REFRESH TABLE {name}")
    spark.sql(f"DELETE FROM {name} WHERE carrier = 'A' AND flights = 1")
    spark.sql(f"DELETE FROM {name} WHERE carrier = 'B' AND flights = 2")
    for carrier in ("PY", "QY"):
        commit_deletes(daily.table, equality_deletes(daily.table, "carrier", [carrier], Record(15706)))
    spark.sql(f"REFRESH TABLE {name}")
    fields = "content, file_path, record_count, readable_metrics, equality_ids, spec_id, sort_order_id, partition"
    queries = [
        f"SELECT * FROM {name}",
        f"SELECT * FROM {name} WHERE day = DATE'{DAYS[0]}'",
        f"SELECT {fields} FROM {name}.files",
        f"SELECT snapshot_id, sequence_number, file_sequence_number, data_file.file_path FROM {name}.entries "
        "WHERE status < 2",
        f"SELECT * FROM {name}.partitions",
    ]
    before, start = [rows(spark, query) for query in queries], daily.table.current_snapshot().snapshot_id
    assert [len(found) for found in before[:2]] == [45 - 3 - 3 - 6, 15 - 1 - 1 - 6]

    report = rewrite_manifests(daily.catalog, daily.identifier, token())

    assert report.before.manifests == 9
    spark.sql(f"REFRESH TABLE {name}")
    assert [rows(spark, query) for query in queries] == before
    assert rows(spark, f"SELECT * FROM {name} VERSION AS OF {start}") == before[0]
    assert spark.sql(f"SELECT * FROM {name}.manifests").count() == report.after.manifests <= 4
    spark.sql(
        f"CALL lake.system.rewrite_data_files(table => '{daily.identifier}', options => map('rewrite-all','true'))"
    )
    assert len(rows(spark, queries[0])) == len(before[0])


def test_the_changelog_of_a_rewrite_is_empty(worker: Worker, daily: Daily) -> None:
    """Also of one that lands between two appends."""
    spark, name = worker(), f"lake.{daily.identifier}"
    for carrier in "ABC":
        daily.append(daily_rows(*DAYS, carrier=carrier))
    start = daily.table.current_snapshot().snapshot_id
    assert rewrite_manifests(daily.catalog, daily.identifier, token()).replaced.manifests == 3
    daily.append(daily_rows(*DAYS, carrier="ZZ"))
    spark.sql(f"REFRESH TABLE {name}")
    changes = (
        spark.read.format("iceberg")
        .option("start-snapshot-id", start)
        .option("end-snapshot-id", daily.table.current_snapshot().snapshot_id)
        .table(f"{name}.changes")
    )
    assert [row["carrier"] for row in changes.collect()] == ["ZZ"] * 3
