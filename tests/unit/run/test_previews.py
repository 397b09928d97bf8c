"""The rows that a partition's materialization shows: its own, and a reason where they can't be shown.
Files are real, written by PyArrow with what other engines may write."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakehouse_assets.commit.staged import StagedChunk
from lakehouse_assets.run import report
from lakehouse_assets.run.report import previews
from tests.support.forks import Daily, daily_rows, region
from tests.support.manifests import sqlite_catalog

DAYS = ("2013-01-01", "2013-01-02", "2013-01-03")
HEAD = "| day | carrier | flights |\n| --- | --- | --- |\n"


@pytest.fixture
def daily(tmp_path: Path) -> Daily:
    return Daily.create(sqlite_catalog(tmp_path))


def shown(days: tuple[str, ...], *chunks: StagedChunk) -> dict[str, str]:
    return {key: value.value for key, value in previews(region(*days), chunks).items()}


def test_each_partition_shows_its_own_rows_and_an_empty_one_none(daily: Daily) -> None:
    chunks = [daily.stage("run", n, [day], daily_rows(day, carrier=f"C{n}")) for n, day in enumerate(DAYS[:2])]
    assert shown(DAYS, *chunks) == {
        DAYS[0]: f"{HEAD}| 2013-01-01 | C0 | 0 |",
        DAYS[1]: f"{HEAD}| 2013-01-02 | C1 | 0 |",
        DAYS[2]: "no rows",
    }


def test_a_run_of_many_partitions_shows_no_rows(daily: Daily, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "MOST_PARTITIONS", 2)
    chunk = daily.stage("run", 0, DAYS, daily_rows(*DAYS))
    assert shown(DAYS, chunk) == {}
    assert shown(DAYS[:2], chunk).keys() == {*DAYS[:2]}


@pytest.mark.parametrize(
    "column",
    [
        pa.array([2**22], pa.int32()).view(pa.date32()),
        pa.array([-(10**9)], pa.int32()).view(pa.date32()),
        pa.array([b"\xff"]).view(pa.string()),
    ],
    ids=["a date beyond 9999", "a date before the year 1", "text that is not UTF-8"],
)
def test_rows_that_python_cant_hold_are_no_error(daily: Daily, column: pa.Array) -> None:
    chunk = daily.stage("run", 0, DAYS[:1], daily_rows(DAYS[0]))
    path = chunk.files[0].file_path.removeprefix("file://")
    pq.write_table(pa.table({"day": column}), path)
    assert shown(DAYS[:1], chunk)[DAYS[0]].startswith("no preview: ")


def test_a_file_that_is_gone_is_no_error(daily: Daily) -> None:
    chunk = daily.stage("run", 0, DAYS[:1], daily_rows(DAYS[0]))
    Path(chunk.files[0].file_path.removeprefix("file://")).unlink()
    assert shown(DAYS[:1], chunk)[DAYS[0]].startswith("no preview: ")
