"""One table through Dagster, plan to report, on both ways of running a step.
What goes wrong underneath (kills, locks, disks) is in test_faults.py."""

from __future__ import annotations

import os
from pathlib import Path

import dagster as dg
import pytest
from dagster_pyspark import LazyPySparkResource

from lakehouse_assets import Domain, code_location
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.extensions.builtin import EXTENSIONS
from lakehouse_assets.run.asset import table_asset
from lakehouse_assets.run.resource import Lakehouse
from tests.conftest import Lake, advice, failure_text
from tests.support.tables import numbers, whole

pytestmark = pytest.mark.spark
# For what comes after the receipt: no launcher makes a difference there, and each local worker costs a JVM.
INLINE = pytest.mark.parametrize("compute", ["inline"], indirect=True)
LOCAL_IS_LONG = pytest.mark.parametrize(
    "compute",
    ["inline", pytest.param("local", marks=pytest.mark.long("A local worker reports all errors in the same way."))],
    indirect=True,
)

SECRET = "spark.sql.catalog.other.credential"


@pytest.fixture
def without_chmod(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hadoop's own file system starts it for each file that it writes, and once more for the file of its checksums."""
    fails = tmp_path / "bin" / "chmod"
    fails.parent.mkdir()
    fails.write_text("#!/bin/sh\nexit 1\n")
    fails.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fails.parent}:{os.environ['PATH']}")


@pytest.mark.slow("The first of its file starts Spark.")
@LOCAL_IS_LONG
def test_a_range_lands_as_one_commit_and_a_rerun_changes_nothing(compute: str, lake: Lake) -> None:
    table = numbers()
    assert lake.run(table, "2024-01-01", "2024-01-04").success
    first = lake.rows(table).sort_by([("day", "ascending"), ("n", "ascending")])
    assert first.num_rows == 12
    assert lake.snapshots(table) == 1
    assert lake.run(table, "2024-01-01", "2024-01-04").success
    assert lake.rows(table).sort_by([("day", "ascending"), ("n", "ascending")]) == first
    assert lake.table(table).inspect.files().num_rows == 4
    assert [s.summary.operation.value for s in lake.table(table).snapshots()][1:] == ["overwrite"]


@INLINE
def test_one_partition_is_replaced_and_its_neighbours_stay(compute: str, lake: Lake) -> None:
    assert lake.run(numbers(), "2024-01-01", "2024-01-03").success
    before = {f["file_path"] for f in lake.table(numbers()).inspect.files().to_pylist()}
    assert lake.run(numbers(), "2024-01-02").success
    after = {f["file_path"] for f in lake.table(numbers()).inspect.files().to_pylist()}
    assert len(before & after) == 2
    assert len(after) == 3


@pytest.mark.slow("Real workers side by side, as a laptop starts them.")
def test_chunks_of_a_run_are_workers_of_their_own_and_land_together(
    compute: str, lake: Lake, without_chmod: None
) -> None:
    result = lake.run(numbers(partitions_per_worker=2), "2024-01-01", "2024-01-03")
    assert result.success
    assert lake.snapshots(numbers()) == 1
    (event, *_) = result.get_asset_materialization_events()
    assert event.materialization.metadata["workers"].value == 2


@INLINE
def test_a_table_without_partitions_is_replaced_whole(compute: str, lake: Lake) -> None:
    assert lake.run(whole()).success
    assert lake.run(whole()).success
    assert lake.rows(whole()).num_rows == 3
    assert lake.snapshots(whole()) == 2


@INLINE
def test_an_asset_that_is_no_table_reads_the_lake_by_dagster_pyspark(
    compute: str, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dg.asset(key=["demo", "counted"], deps=[numbers().key])
    def counted(pyspark: dg.ResourceParam[LazyPySparkResource]) -> dg.MaterializeResult[None]:
        spark = pyspark.spark_session
        count = spark.table("lake.demo.numbers").count()
        shown = str(spark.sparkContext.getConf().getAll())
        return dg.MaterializeResult(metadata={"rows": count, "secret": spark.conf.get(SECRET), "shown": shown})

    monkeypatch.setenv(f"LAKEHOUSE_SPARK__{SECRET.replace('.', '__')}", "id:planted")
    location = code_location(Domain("demo", tables=[numbers(), whole()], assets=[counted]))  # one is not made yet
    job = location.resolve_implicit_global_asset_job_def().get_subset(asset_selection={counted.key})
    for rows, day in enumerate(("2024-01-01", "2024-01-02"), start=1):
        assert lake.run(numbers(), day).success
        (event,) = job.execute_in_process(instance=lake.instance).get_asset_materialization_events()
        told = event.materialization.metadata
        assert told["rows"].value == 3 * rows, "the second run, in the same JVM, reads the table as it is by then"
        assert told["secret"].value == "id:planted"
        assert "id:planted" not in told["shown"].value


@INLINE
def test_every_partition_tells_its_own(compute: str, lake: Lake) -> None:
    result = lake.run(numbers(), "2024-01-01", "2024-01-02")
    events = {e.partition: e.materialization.metadata for e in result.get_asset_materialization_events()}
    assert set(events) == {"2024-01-01", "2024-01-02"}
    for told in events.values():
        assert told["dagster/partition_row_count"].value == 3
        assert told["files"].value == 1
        assert told["run_rows"].value == 6
        assert told["snapshot_id"].value == str(lake.table(numbers()).current_snapshot().snapshot_id)
        assert [c.name for c in told["dagster/column_schema"].value.columns] == ["day", "n", "text"]
        assert "| day | n | text |" in told["preview"].value


@INLINE
def test_the_snapshot_tells_who_made_it(compute: str, lake: Lake) -> None:
    result = lake.run(numbers(), "2024-01-01", "2024-01-02")
    summary = lake.table(numbers()).current_snapshot().summary.additional_properties
    assert summary["lakehouse.run-id"] == summary["lakehouse.token"] == result.run_id
    assert summary["lakehouse.asset-key"] == "demo/numbers"
    assert summary["lakehouse.partitions"] == "2024-01-01..2024-01-02 (2)"
    assert summary["lakehouse.code-version"] == numbers().code_version


@INLINE
@pytest.mark.parametrize(
    ("step", "says"),
    [
        ("other_days", ["1 row", "2024-02-29"]),
        ("nulls", ["n is null", "2024-01-01"]),
        ("doubles", ["n=0: 2 rows in day=2024-01-01"]),
        ("nothing", ["2024-01-01", "empty"]),
    ],
)
def test_a_failed_audit_is_a_red_check_and_nothing_is_published(
    compute: str, lake: Lake, step: str, says: list[str]
) -> None:
    result = lake.run(numbers(step), "2024-01-01", "2024-01-02")
    assert not result.success
    assert advice(lake.instance) == []
    (check,) = result.get_asset_check_evaluations()
    assert not check.passed
    told = f"{check.description} {check.metadata} {failure_text(result)}"
    assert all(word in told for word in says), told
    assert not result.get_asset_materialization_events()
    assert lake.snapshots(numbers()) == 0


@INLINE
def test_many_rows_are_left_to_spark_to_count(compute: str, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakehouse_assets.worker.row_checks.COUNTED_HERE", 0)
    assert "n=0: 2 rows in day=2024-01-01" in failure_text(lake.run(numbers("doubles"), "2024-01-01"))
    assert lake.run(numbers(), "2024-01-01").success


@INLINE
def test_empty_partitions_are_published_where_the_table_allows_them(compute: str, lake: Lake) -> None:
    assert lake.run(numbers(), "2024-01-01", "2024-01-02").success
    assert lake.run(numbers("nothing", allow_empty=True), "2024-01-02").success
    assert lake.rows(numbers()).num_rows == 3


@INLINE
def test_a_run_terminated_in_its_own_process_gets_no_advice(compute: str, lake: Lake) -> None:
    assert not lake.run(numbers("interrupted"), "2024-01-01").success
    assert advice(lake.instance) == []


@LOCAL_IS_LONG
def test_a_step_that_raises_shows_its_own_lines(compute: str, lake: Lake) -> None:
    result = lake.run(numbers("raising"), "2024-01-01")
    text = failure_text(result)
    assert "KeyError: 'carrier'" in text
    assert 'return {}["carrier"]' in text
    assert "2024-01-01" in text
    assert "site-packages" not in text
    assert "org.apache" not in text


@LOCAL_IS_LONG
def test_an_error_from_java_is_its_root_cause(compute: str, lake: Lake) -> None:
    text = failure_text(lake.run(numbers("raising_in_java"), "2024-01-01"))
    assert "no such n" in text
    assert "\tat " not in text


def test_range_tags_of_a_run_do_not_reach_an_unpartitioned_table(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_COMPUTE", "inline")
    result = dg.materialize(
        [table_asset(whole(), EXTENSIONS), table_asset(numbers(), EXTENSIONS)],
        instance=lake.instance,
        resources={"lakehouse": Lakehouse(read_settings())},
        tags={
            "dagster/asset_partition_range_start": "2024-01-01",
            "dagster/asset_partition_range_end": "2024-01-03",
        },
    )
    told = {e.asset_key.path[-1]: e.partition for e in result.get_asset_materialization_events()}
    assert told == {"whole": None, "numbers": "2024-01-03"}
    assert (lake.rows(whole()).num_rows, lake.rows(numbers()).num_rows) == (3, 9)
