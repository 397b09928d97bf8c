"""Stage and publish with real Spark: what Iceberg's Java does to a fork, and what it reads after the commit.
What PyIceberg alone shows is in test_publish.py."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.io import load_file_io
from pyiceberg.table import snapshots
from pyspark.errors.exceptions.base import AnalysisException
from pyspark.sql import SparkSession

from lakehouse_assets.commit.fork import FORK_PROPERTIES, write_fork_base
from lakehouse_assets.commit.staged import StagedChunk, nulls_in, read_all
from lakehouse_assets.step.window import Window
from lakehouse_assets.wire.code import worker_code
from lakehouse_assets.wire.work import Assignment, MergeWork
from lakehouse_assets.worker.session import TableCredentials
from lakehouse_assets.worker.stage import stage
from tests.support.forks import Daily, daily_rows

pytestmark = pytest.mark.spark

DAYS = ("2013-01-01", "2013-01-02", "2013-01-03")
Worker = Callable[[], SparkSession]


def staged_by_spark(
    spark: SparkSession, daily: Daily, receipts: Path, chunk: int, days: Sequence[str], merge: MergeWork | None = None
) -> StagedChunk:
    """Stage a chunk just as a worker does."""
    assignment = Assignment(
        table=daily.identifier,
        step="tests.support.forks:flights",
        token="run",
        chunk=chunk,
        window=Window(keys=tuple(days)),
        fork_base=write_fork_base(daily.table, "run").location,
        receipt=f"{receipts}/{chunk}.json",
        code_version="1",
        code=worker_code("tests.support.forks:flights"),
        unique=("carrier",),
        merge=merge,
    )
    properties = daily.table.io.properties
    credentials = TableCredentials(properties, daily.identifier)
    return read_all(properties, [stage(spark, assignment, credentials, time.monotonic())])[0]


def spark_counts(spark: SparkSession, daily: Daily) -> dict[str, int]:
    rows = spark.sql(f"SELECT day, count(*) AS n FROM lake.{daily.identifier} GROUP BY day ORDER BY day").collect()
    return {str(row.day): row.n for row in rows}


def register(spark: SparkSession, location: str) -> str:
    name = f"fork_{uuid4().hex[:8]}"
    spark.sql("CREATE NAMESPACE IF NOT EXISTS stage.forks")
    spark.sql(f"CALL stage.system.register_table(table => 'forks.{name}', metadata_file => '{location}')")
    return f"stage.forks.{name}"


def one_row(spark: SparkSession, day: str = DAYS[0]):
    return spark.sql(f"SELECT DATE'{day}' AS day, 'AA' AS carrier, 1L AS flights")


def test_what_spark_staged_is_published_and_read_by_both_engines(worker: Worker, daily: Daily, tmp_path: Path) -> None:
    daily.append(daily_rows("2012-12-31", *DAYS, "2013-07-01", each=5))
    days = (*DAYS, "2013-07-01")
    chunks = [
        staged_by_spark(worker(), daily, tmp_path, n, part) for n, part in enumerate([DAYS[:1], DAYS[1:], days[3:]])
    ]
    assert [c.receipt.rows for c in chunks] == [2, 4, 0]
    daily.append(daily_rows("2013-08-01"))

    daily.publish("run", days, *chunks)

    expected = {"2012-12-31": 5, **dict.fromkeys(DAYS, 2), "2013-08-01": 1}
    assert daily.counts() == expected
    assert spark_counts(worker(), daily) == expected, "July came out empty and is gone"
    assert daily.last_change("records") == (6, 20)
    by_spark = {f.sort_order_id for c in chunks for f in c.files}, {f.spec_id for c in chunks for f in c.files}
    assert by_spark == ({0}, {0})


def test_a_table_whose_first_publish_was_empty_is_read_by_spark(worker: Worker, daily: Daily, tmp_path: Path) -> None:
    daily.publish("run", ["2013-07-01"], staged_by_spark(worker(), daily, tmp_path, 0, ["2013-07-01"]))
    assert spark_counts(worker(), daily) == {}


def test_rows_deleted_by_position_files_do_not_haunt_their_replacement(
    worker: Worker, daily: Daily, tmp_path: Path
) -> None:
    daily.append(daily_rows(*DAYS, each=5))
    spark = worker()
    name = f"lake.{daily.identifier}"
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')")
    spark.sql(f"DELETE FROM {name} WHERE flights = 0")
    assert daily.counts() == dict.fromkeys(DAYS, 4)
    daily.publish("run", DAYS[:2], staged_by_spark(worker(), daily, tmp_path, 0, DAYS[:2]))
    expected = {**dict.fromkeys(DAYS[:2], 2), DAYS[2]: 4}
    assert daily.counts() == expected
    assert spark_counts(worker(), daily) == expected


def test_spark_still_reads_a_table_published_by_a_clock_an_hour_behind(
    worker: Worker, daily: Daily, tmp_path: Path, monkeypatch
):
    daily.append(daily_rows("2012-12-31"))
    staged = staged_by_spark(worker(), daily, tmp_path, 0, DAYS)
    now = snapshots.time.time()
    monkeypatch.setattr(snapshots.time, "time", lambda: now - 3600)
    daily.publish("run", DAYS, staged)
    monkeypatch.undo()
    assert spark_counts(worker(), daily) == {"2012-12-31": 1, **dict.fromkeys(DAYS, 2)}


@pytest.mark.parametrize(
    ("setting", "merge"), [("spark.wap.branch", MergeWork(("day", "carrier"))), ("spark.wap.id", None)]
)
def test_write_audit_publish_settings_lose_no_rows(
    worker: Worker, catalog: Catalog, tmp_path: Path, setting: str, merge: MergeWork | None
) -> None:
    """They send an engine's rows to a branch, or to a snapshot that is on none, where nobody would look for them."""
    daily = Daily.create(catalog, {"write.wap.enabled": "true"})
    spark = worker()
    spark.conf.set(setting, "audit")
    daily.publish("run", DAYS, staged_by_spark(spark, daily, tmp_path, 0, DAYS, merge))
    assert daily.counts() == dict.fromkeys(DAYS, 2)


# Row 1: what a fork's commits delete


CLEANING = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "1",
    "commit.manifest.min-count-to-merge": "2",
}


def test_a_fork_of_the_targets_own_metadata_destroys_the_target(worker: Worker, catalog: Catalog) -> None:
    """The naive way."""
    daily = Daily.create(catalog, CLEANING)
    daily.append(daily_rows(*DAYS))
    target = daily.table
    spark = worker()
    fork = register(spark, target.metadata_location)
    for _ in range(3):
        one_row(spark).writeTo(fork).append()
    assert not target.io.new_input(target.metadata_location).exists(), "the target's current metadata"


def test_commits_to_a_fork_base_delete_nothing_of_the_target(worker: Worker, catalog: Catalog) -> None:
    daily = Daily.create(catalog, CLEANING)
    daily.append(daily_rows(*DAYS))
    daily.append(daily_rows("2013-02-01"))
    spark = worker()
    fork = register(spark, write_fork_base(daily.table, "run").location)
    for _ in range(4):
        one_row(spark).writeTo(fork).append()
    assert daily.counts() == dict.fromkeys((*DAYS, "2013-02-01"), 1)
    assert spark_counts(spark, daily) == dict.fromkeys((*DAYS, "2013-02-01"), 1)
    log = [entry.metadata_file for entry in daily.table.metadata.metadata_log]
    assert all(daily.table.io.new_input(location).exists() for location in log)


# Row 2: what is staged


def test_an_empty_overwrite_on_a_fork_with_history_stages_the_targets_own_files(worker: Worker, daily: Daily) -> None:
    """The naive way, and why the fork base has no history."""
    daily.append(daily_rows(*DAYS))
    spark = worker()
    naive = register(spark, daily.table.metadata_location)
    one_row(spark).where("false").writeTo(naive).overwritePartitions()
    assert spark.sql(f"SELECT * FROM {naive}.files").count() == len(DAYS)

    ours = register(spark, write_fork_base(daily.table, "run").location)
    one_row(spark).where("false").writeTo(ours).append()
    assert spark.sql(f"SELECT * FROM {ours}.files").count() == 0


# Row 3: which metadata file is the fork's


def test_a_target_written_by_a_clock_ahead_neither_stops_a_worker_nor_hides_its_fork(
    worker: Worker, daily: Daily, tmp_path: Path
):
    daily.append(daily_rows(*DAYS))
    spark = worker()
    base = write_fork_base(daily.table, "run").location
    naive = with_clock(daily, base, ahead_s=30)
    fork = register(spark, naive)
    one_row(spark).writeTo(fork).append()
    newest = spark.sql(f"SELECT file FROM {fork}.metadata_log_entries ORDER BY timestamp DESC LIMIT 1").collect()
    assert newest[0].file == naive, "the base is taken for the result"

    fork = register(spark, with_clock(daily, base, ahead_s=3600))
    with pytest.raises(Exception, match="Invalid update timestamp"):
        one_row(spark).writeTo(fork).append()

    staged = staged_by_spark(spark, daily, tmp_path, 0, DAYS)
    assert staged.receipt.metadata_location != base
    assert len(staged.files) == len(DAYS)


def with_clock(daily: Daily, base: str, ahead_s: int) -> str:
    """The fork base as it would be had it kept the time of a commit from a clock ahead."""
    io = daily.table.io
    with io.new_input(base).open() as stream:
        metadata = json.loads(stream.read())
    metadata["last-updated-ms"] = int((time.time() + ahead_s) * 1000)
    location = base.replace(".metadata.json", f"-{ahead_s}.metadata.json")
    with io.new_output(location).create(overwrite=True) as stream:
        stream.write(json.dumps(metadata).encode())
    return location


# Row 10: what must never run in a fork, and can't


def test_purge_in_a_fork_of_the_targets_own_metadata_destroys_it(worker: Worker, daily: Daily) -> None:
    """The naive way."""
    daily.append(daily_rows(*DAYS))
    spark = worker()
    spark.sql(f"DROP TABLE {register(spark, daily.table.metadata_location)} PURGE")
    with pytest.raises(OSError):
        daily.counts()


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE {fork} PURGE",
        "CALL stage.system.expire_snapshots(table => '{name}', older_than => TIMESTAMP '2100-01-01 00:00:00')",
        "CALL stage.system.remove_orphan_files(table => '{name}')",
    ],
    ids=["purge", "expire_snapshots", "remove_orphan_files"],
)
def test_a_fork_base_refuses_to_be_cleaned(worker: Worker, daily: Daily, statement: str) -> None:
    daily.append(daily_rows(*DAYS))
    spark = worker()
    fork = register(spark, write_fork_base(daily.table, "run").location)
    one_row(spark).writeTo(fork).append()
    with pytest.raises(Exception, match="GC is disabled"):
        spark.sql(statement.format(fork=fork, name=fork.removeprefix("stage."))).collect()
    assert daily.counts() == dict.fromkeys(DAYS, 1)


def test_the_fork_bases_harmlessness_is_what_iceberg_reads(worker: Worker, daily: Daily) -> None:
    spark = worker()
    fork = register(spark, write_fork_base(daily.table, "run").location)
    shown = {row.key: row.value for row in spark.sql(f"SHOW TBLPROPERTIES {fork}").collect()}
    assert FORK_PROPERTIES.items() <= shown.items()


# Row 14: a session's catalog is its own


def test_a_fork_is_not_seen_from_another_session(worker: Worker, daily: Daily) -> None:
    spark = worker()
    fork = register(spark, write_fork_base(daily.table, "run").location)
    assert spark.table(fork).count() == 0
    with pytest.raises(AnalysisException, match="NOT_FOUND"):
        worker().table(fork)


# Row 15: no statistics


def test_without_column_metrics_nulls_are_counted_by_a_scan(worker: Worker, catalog: Catalog, tmp_path: Path) -> None:
    daily = Daily.create(catalog, {"write.metadata.metrics.default": "none"})
    staged = staged_by_spark(worker(), daily, tmp_path, 0, DAYS)
    carrier, flights = (daily.table.schema().find_field(name) for name in ("carrier", "flights"))
    spark = worker()
    fork = register(spark, write_fork_base(daily.table, "run").location)
    options = {"snapshot-property.lakehouse.token": "run"}
    one_row(spark).selectExpr("day", "nullif(carrier, 'AA') AS carrier", "flights").writeTo(fork).options(
        **options
    ).append()
    location = (
        spark.sql(f"SELECT file FROM {fork}.metadata_log_entries ORDER BY timestamp DESC LIMIT 1").collect()[0].file
    )
    (nulls,) = read_all(daily.table.io.properties, [replace(staged.receipt, metadata_location=location, rows=1)])
    for chunk in (staged, nulls):
        assert all(carrier.field_id not in (f.null_value_counts or {}) for f in chunk.files), "the naive way sees none"
    assert [nulls_in(nulls, f, carrier) for f in nulls.files] == [1]
    assert [nulls_in(nulls, f, flights) for f in nulls.files] == [0]
    assert sum(nulls_in(staged, f, carrier) for f in staged.files) == 0


def test_gzipped_metadata_and_paths_of_their_own_are_followed(
    worker: Worker, tmp_path: Path, catalog_properties: dict[str, str]
) -> None:
    if catalog_properties["type"] == "rest":
        pytest.skip("a table bucket takes no other folders")
    elsewhere = {
        "write.metadata.compression-codec": "gzip",
        "write.metadata.path": (tmp_path / "m").as_uri(),
        "write.data.path": (tmp_path / "d").as_uri(),
    }
    daily = Daily.create(load_catalog("lake", **catalog_properties), elsewhere)
    staged = staged_by_spark(worker(), daily, tmp_path, 0, DAYS)
    assert str(tmp_path / "m") in staged.receipt.metadata_location
    assert ".gz." in staged.receipt.metadata_location
    daily.publish("run", DAYS, staged)
    assert spark_counts(worker(), daily) == dict.fromkeys(DAYS, 2)
    assert load_file_io({}, staged.receipt.metadata_location).new_input(staged.receipt.metadata_location).exists()


# PySpark underneath


def test_pyspark_holds_the_process_of_its_jvm(jvm: SparkSession) -> None:
    """Private API that worker/session.py and worker/training.py rely on to see the JVM end, and to wait for it."""
    from pyspark import SparkContext

    from lakehouse_assets.worker.session import jvm_exit

    gateway = SparkContext._gateway
    assert gateway is jvm.sparkContext._gateway
    arguments = Path(f"/proc/{gateway.proc.pid}/cmdline").read_bytes().split(b"\0")
    assert arguments[0].endswith(b"java")
    assert gateway.proc.stdin.writable()
    assert callable(gateway.shutdown)
    assert jvm_exit() is None
