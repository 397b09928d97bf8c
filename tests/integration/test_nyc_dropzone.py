"""Faulty deliveries: each really lies in the drop zone, and a person reads which file it is and what is wrong.
That nothing of such a run is published is the machinery's, shown in test_faults.py."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehouse_assets.domains.nyc import steps
from lakehouse_assets.domains.nyc.landing import deliver, into_folder
from lakehouse_assets.files import drop_zone
from lakehouse_assets.files.delivered import DropZoneError
from lakehouse_assets.files.drop_zone import read_csv
from lakehouse_assets.step.window import Window
from lakehouse_assets.worker.failure import describe

pytestmark = pytest.mark.spark

KEYS = ("2013-02-01", "2013-02-02", "2013-02-03")
FAULTY = "2013-02-02.csv.gz"


@pytest.fixture(scope="module")
def delivered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("landing")
    deliver(into_folder(folder))
    return folder


@pytest.fixture
def landing(delivered: Path, tmp_path: Path) -> Path:
    """Three good days of flights and weather."""
    for name in ("flights", "weather"):
        (tmp_path / name).mkdir()
        for key in KEYS:
            (tmp_path / name / f"{key}.csv.gz").write_bytes((delivered / name / f"{key}.csv.gz").read_bytes())
    return tmp_path


def complaint(spark: SparkSession, landing: Path, step: Callable = steps.flights) -> str:
    """What the UI shows when the step's rows are written."""
    window = Window(
        keys=KEYS, start=datetime(2013, 2, 1, tzinfo=UTC), end=datetime(2013, 2, 4, tzinfo=UTC), landing=str(landing)
    )
    with pytest.raises(Exception) as raised:
        step(spark, window).write.format("noop").mode("overwrite").save()
    return describe(raised.value)["message"]


def rewrite(path: Path, change: Callable[[list[list[str]]], list[list[str]]]) -> None:
    """The file with its cells, header first, changed."""
    cells = [line.split(",") for line in gzip.decompress(path.read_bytes()).decode().splitlines()]
    path.write_bytes(gzip.compress("".join(",".join(row) + "\n" for row in change(cells)).encode()))


def test_missing_days_are_named_at_once(jvm: SparkSession, landing: Path) -> None:
    (landing / "flights" / FAULTY).unlink()
    (landing / "flights" / "2013-02-03.csv.gz").unlink()
    said = complaint(jvm, landing)
    assert "2013-02-02, 2013-02-03 is missing" in said
    assert str(landing / "flights") in said


def test_a_missing_folder_is_named(jvm: SparkSession, tmp_path: Path) -> None:
    assert f"no folder {tmp_path}/flights" in complaint(jvm, tmp_path)


@pytest.mark.parametrize("content", [b"", gzip.compress(b"", mtime=0)], ids=["no byte", "nothing in a gzip"])
@pytest.mark.parametrize("name", ["flights", "weather"])
def test_an_empty_file_is_no_empty_day(jvm: SparkSession, landing: Path, name: str, content: bytes) -> None:
    (landing / name / FAULTY).write_bytes(content)
    said = complaint(jvm, landing, getattr(steps, name))
    assert "2013-02-02 is empty, without even a header" in said or "2013-02-02 ends too early" in said


@pytest.mark.parametrize("lost", [4, 2000], ids=["the trailer", "half"])
def test_a_truncated_gzip_is_named(jvm: SparkSession, landing: Path, lost: int) -> None:
    path = landing / "flights" / FAULTY
    path.write_bytes(path.read_bytes()[:-lost])
    assert "2013-02-02 ends too early for a file that is gz" in complaint(jvm, landing)


def test_a_file_that_is_no_gzip_is_named(jvm: SparkSession, landing: Path) -> None:
    path = landing / "flights" / FAULTY
    path.write_bytes(gzip.decompress(path.read_bytes()))
    assert "2013-02-02 is no gz" in complaint(jvm, landing)


def test_a_renamed_column_is_named(jvm: SparkSession, landing: Path) -> None:
    def renamed(cells: list[list[str]]) -> list[list[str]]:
        return [["departure_delay" if cell == "dep_delay" else cell for cell in cells[0]], *cells[1:]]

    rewrite(landing / "flights" / FAULTY, renamed)
    assert "2013-02-02 has other columns (missing: dep_delay; unknown: departure_delay;" in complaint(jvm, landing)


@pytest.mark.parametrize("column", [5, 18], ids=["in the middle", "the last"])
def test_a_missing_column_is_named(jvm: SparkSession, landing: Path, column: int) -> None:
    rewrite(landing / "flights" / FAULTY, lambda cells: [row[:column] + row[column + 1 :] for row in cells])
    expected = f"2013-02-02 has other columns (missing: {list(steps.FLIGHTS)[column]}; unknown: none;"
    assert expected in complaint(jvm, landing)


def test_a_column_too_many_is_named(jvm: SparkSession, landing: Path) -> None:
    rewrite(landing / "flights" / FAULTY, lambda cells: [[*row, "gate" if row is cells[0] else "A1"] for row in cells])
    assert "2013-02-02 has other columns (missing: none; unknown: gate;" in complaint(jvm, landing)


def test_columns_may_be_in_another_order(jvm: SparkSession, landing: Path) -> None:
    rewrite(landing / "flights" / FAULTY, lambda cells: [[row[1], row[0], *row[2:]] for row in cells])
    window = Window(KEYS, datetime(2013, 2, 1, tzinfo=UTC), datetime(2013, 2, 4, tzinfo=UTC), landing=str(landing))
    assert steps.flights(jvm, window).select("flight_date").distinct().count() == len(KEYS)


def test_a_row_of_another_length_is_shown(jvm: SparkSession, landing: Path) -> None:
    rewrite(landing / "flights" / FAULTY, lambda cells: [*cells, ["2013", "2", "2"]])
    said = complaint(jvm, landing)
    assert FAULTY in said
    assert "2013,2,2" in said


@pytest.mark.parametrize(
    ("column", "value", "type_"),
    [("dep_time", "05:17", "int"), ("distance", "1400.5", "int"), ("time_hour", "2013-02-02 10:00", "timestamptz")],
)
def test_a_value_of_another_type_is_shown_with_its_column(
    jvm: SparkSession, landing: Path, column: str, value: str, type_: str
) -> None:
    def retyped(cells: list[list[str]]) -> list[list[str]]:
        cells[2][list(steps.FLIGHTS).index(column)] = value
        return cells

    rewrite(landing / "flights" / FAULTY, retyped)
    said = complaint(jvm, landing)
    assert f"{FAULTY}, line 3, column {column}: '{value}' is no {type_}" in said


@pytest.mark.parametrize("here", [drop_zone.HERE, 0], ids=["in this process", "by Spark's tasks"])
def test_a_large_delivery_is_read_as_a_small_one(
    here: int, jvm: SparkSession, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drop_zone, "HERE", here)
    rows = read_csv(jvm, f"{landing}/flights", KEYS, steps.FLIGHTS, null="NA")
    assert [(field.name, field.dataType.simpleString()) for field in rows.schema] == [
        (name, "timestamp" if type_ == "timestamptz" else type_) for name, type_ in steps.FLIGHTS.items()
    ]
    assert (rows.count(), rows.where("dep_time is null").count()) == (2422, 36)
    path = landing / "flights" / FAULTY
    rewrite(path, lambda cells: [*cells[:10], ["x", *cells[10][1:]], *cells[11:]])
    told = r"line 11, column year: 'x' is no int"
    with pytest.raises(DropZoneError, match=told) as raised, drop_zone.wrong_files_told():
        read_csv(jvm, f"{landing}/flights", KEYS, steps.FLIGHTS, null="NA").collect()
    assert raised.value.partitions == (KEYS[1],)
