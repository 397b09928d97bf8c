"""The rows that a materialization and `lakehouse run` tell of a table: those that readers get. The real run, without
Spark. How they are counted is commit/test_live_rows.py's."""

from __future__ import annotations

import sys
import time

import pytest

from lakehouse_assets.cli.summary import summary
from lakehouse_assets.commit import deletes as counting
from lakehouse_assets.declare.modes import Append, FullRefresh, WriteMode
from tests.conftest import Lake
from tests.support.counting_runs import CountingLake
from tests.support.outsiders import commit_deletes, live, position_deletes
from tests.support.tables import numbers, whole


@pytest.mark.parametrize("mode", [FullRefresh(), Append()])
def test_all_rows_of_the_table_are_told_and_no_deleted_ones(
    lake: Lake, mode: WriteMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = CountingLake(lake, whole(write_mode=mode, reads=["demo.whole"]))
    assert [demo.run()["dagster/row_count"] for _ in range(3)] == [1, 2, 3]
    table = lake.table(demo.table)
    path = live(table)[0].data_file.file_path
    commit_deletes(table, position_deletes(table, {path: [0]}))
    shown = summary(lake.settings, [("demo.whole", None, 1.0)], time.time(), sys.stdout)
    assert shown.splitlines()[-1].split()[1] == "2"
    assert demo.run()["dagster/row_count"] == 3
    if isinstance(mode, Append):
        monkeypatch.setattr(counting, "MOST_DELETE_FILES", 0)
        told = demo.run()
        assert told["rows"] == "at most 5"
        assert "dagster/row_count" not in told


def test_of_a_partition_those_that_replaced_it_are_told(lake: Lake) -> None:
    demo = CountingLake(lake, numbers(reads=["demo.numbers"]))
    found = [demo.run("2024-01-01")["dagster/partition_row_count"] for _ in range(2)]
    assert found == [1, 2]
