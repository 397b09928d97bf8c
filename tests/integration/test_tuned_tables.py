"""What Spark makes of a table's tuning and settings, and that runs still audit and replace rows of such files.
Which property each option is: unit/declare/test_tuning.py."""

from __future__ import annotations

import pytest
from pyarrow.parquet import ParquetFile

from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.modes import Compression, Distribution, Tuning
from tests.conftest import Lake, failure_text
from tests.support.tables import numbers, whole

pytestmark = pytest.mark.spark


@pytest.fixture
def tuned(inline: None, lake: Lake) -> Lake:
    return lake


def test_files_are_written_as_tuned_and_replaced_as_ever(tuned: Lake) -> None:
    tuning = Tuning(
        distribution=Distribution.NONE,
        compression=Compression.SNAPPY,
        metrics={"text": "none", "n": "none"},
        object_storage=True,
    )
    table = numbers(tuning=tuning)
    for _ in range(2):
        result = tuned.run(table, "2024-01-01", "2024-01-02")
        assert result.success, failure_text(result)
    assert tuned.rows(table).num_rows == 6
    for task in tuned.table(table).scan().plan_files():
        file = ParquetFile(task.file.file_path.removeprefix("file:"))
        assert file.metadata.row_group(0).column(0).compression == "SNAPPY"
        assert set(task.file.null_value_counts) == {1}, "the audit has counted the nulls of n in the files"
        assert "/data/day=" not in task.file.file_path, "spread by a hash"


def test_the_required_columns_of_a_wide_table_are_audited_though_they_have_no_metrics(tuned: Lake) -> None:
    more = [column(f"c{n}", "double") for n in range(100)]
    table = numbers("wide", columns=[*more, *numbers().columns])
    result = tuned.run(table, "2024-01-01")
    assert result.success, failure_text(result)
    (task,) = tuned.table(table).scan().plan_files()
    file = ParquetFile(task.file.file_path.removeprefix("file:"))
    assert file.metadata.row_group(0).column(0).compression == "ZSTD", "what a table that nobody has tuned gets"
    ids = {tuned.table(table).schema().find_field(name).field_id for name in ("day", "text")}
    assert not ids & set(task.file.null_value_counts)


def test_a_setting_that_spark_refuses_fails_the_run_and_is_named(compute: str, lake: Lake) -> None:
    """Spark builds its session at the first use. If that fails, PySpark asks the session how to tell so, for ever."""
    told = failure_text(lake.run(whole(spark_conf={"spark.sql.shuffle.partitions": "abc"})))
    assert "spark.sql.shuffle.partitions" in told
    assert "'abc'" in told


def test_a_setting_that_java_does_not_start_with_is_no_fault_of_the_step(lake: Lake) -> None:
    told = failure_text(lake.run(whole(spark_conf={"spark.driver.memory": "2x"})))
    assert "spark.driver.memory" in told
    assert "worker's output" in told
    assert "change the step" not in told


def test_a_tables_settings_and_views_end_with_its_run(tuned: Lake) -> None:
    """Also in a process that serves the next table with the same Spark."""
    step = "tests.support.steps:settings"
    told = []
    for conf in ({"spark.wap.branch": "audit", "spark.sql.shuffle.partitions": "7"}, {}):
        table = whole(identifier=f"demo.settings_{len(told)}", step=step, spark_conf=conf)
        result = tuned.run(table)
        assert result.success, failure_text(result)
        told += tuned.rows(table).to_pylist()
    assert told[0] == {"n": 7, "text": "audit []"}
    assert told[1]["text"] == "None []"
    assert told[1]["n"] != 7
