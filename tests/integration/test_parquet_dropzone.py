"""Parquet files of the drop zone that a step reads strictly, good ones and faulty ones.
CSV is in test_nyc_dropzone.py."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lakehouse_assets.step.dropzone import DropZoneError, read_csv, read_parquet
from pyarrow import parquet
from pyspark.sql import SparkSession

from lakehouse_assets.worker.failure import describe

pytestmark = pytest.mark.spark

SCHEMA = {"id": "bigint", "at": "timestamp", "tags": "array<string>"}
NAMES = ("2024-01-01", "2024-01-02")
AT = datetime(2024, 1, 1, tzinfo=UTC)
GOOD = {"id": pa.array([1, 2]), "at": pa.array([AT, AT]), "tags": pa.array([["a"], None])}


def deliver(folder: Path, **second: Any) -> Path:
    """Two files, the second with these columns in place of the good ones; None leaves one out. Returns its path."""
    parquet.write_table(pa.table(GOOD), folder / f"{NAMES[0]}.parquet")
    columns = {name: values for name, values in {**GOOD, **second}.items() if values is not None}
    parquet.write_table(pa.table(columns), path := folder / f"{NAMES[1]}.parquet")
    return path


def test_all_files_are_read_their_columns_in_any_order(jvm: SparkSession, tmp_path: Path) -> None:
    deliver(tmp_path, id=None, at=None, tags=None)
    parquet.write_table(pa.table(dict(reversed(GOOD.items()))), tmp_path / f"{NAMES[1]}.parquet")
    rows = read_parquet(jvm, str(tmp_path), NAMES, SCHEMA)
    assert rows.columns == [*SCHEMA]
    assert sorted(row.id for row in rows.collect()) == [1, 1, 2, 2]


def test_a_file_that_is_named_twice_is_read_once(jvm: SparkSession, tmp_path: Path) -> None:
    """As one of a month is, for each of the month's days."""
    deliver(tmp_path)
    assert read_parquet(jvm, str(tmp_path), [*NAMES, *NAMES], SCHEMA).count() == 4


def test_a_name_is_no_pattern(jvm: SparkSession, tmp_path: Path) -> None:
    """Neither is that of the folder. Each pattern would match a neighbour, and most of them not the file itself."""
    folder = tmp_path / "a[1]{x,y}*"
    names = ["x[1]", "x*", "x?", "{x,y}", "x,y", "x\\y", "^x"]
    for place in (folder, tmp_path / "a1x"):
        place.mkdir()
        for n, name in enumerate([*names, "x1", "xy", "x", "y"]):
            parquet.write_table(pa.table({"n": pa.array([n])}), place / f"{name}.parquet")
            with gzip.open(place / f"{name}.csv.gz", "wt") as file:
                file.write(f"n\n{n}\n")
    for read in (read_parquet, read_csv):
        found = read(jvm, str(folder), names, {"n": "bigint"}).collect()
        assert sorted(row.n for row in found) == [*range(len(names))], read
        with pytest.raises(DropZoneError, match=r"of 1 files asked for \[x\]\* is missing"):
            read(jvm, str(folder), ["[x]*"], {"n": "bigint"}).collect()


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        ({"at": None}, "has other columns (missing: at; unknown: none; of another type: none)"),
        ({"extra": pa.array([1, 2])}, "has other columns (missing: none; unknown: extra; of another type: none)"),
        ({"id": pa.array(["1", "x"])}, "of another type: id string, expected bigint)"),
        ({"id": pa.array([1, 2], pa.int32())}, "of another type: id int, expected bigint)"),
        ({"at": pa.array([1, 2], pa.timestamp("us"))}, "of another type: at timestamp_ntz, expected timestamp)"),
        ({"at": pa.array([1, 2], pa.timestamp("ns"))}, "can't be read: [PARQUET_TYPE_ILLEGAL]"),
    ],
)
def test_a_file_of_other_columns_is_named(
    jvm: SparkSession, tmp_path: Path, second: dict[str, Any], problem: str
) -> None:
    deliver(tmp_path, **second)
    with pytest.raises(DropZoneError) as raised:
        read_parquet(jvm, str(tmp_path), NAMES, SCHEMA)
    assert f"{tmp_path}/*.parquet: of 2 files asked for 2024-01-02 " in str(raised.value)
    assert problem in str(raised.value)
    assert raised.value.partitions == ("2024-01-02",)


@pytest.mark.parametrize(
    ("kept", "problem"), [(None, "is missing"), (0, "is no Parquet file"), (-20, "is no Parquet file")]
)
def test_a_file_that_is_missing_empty_or_torn_is_named(
    jvm: SparkSession, tmp_path: Path, kept: int | None, problem: str
) -> None:
    path = deliver(tmp_path)
    content = path.read_bytes()
    path.unlink() if kept is None else path.write_bytes(content[:kept])
    with pytest.raises(DropZoneError, match=f"2024-01-02 {problem}"):
        read_parquet(jvm, str(tmp_path), NAMES, SCHEMA)


def test_a_missing_folder_is_named(jvm: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(DropZoneError, match=f"{tmp_path}/nowhere/.*2024-01-01, 2024-01-02 is missing"):
        read_parquet(jvm, f"{tmp_path}/nowhere", NAMES, SCHEMA)


def test_a_page_that_is_damaged_is_named_when_it_is_read(jvm: SparkSession, tmp_path: Path) -> None:
    path = deliver(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[:4] + b"\xff" * 60 + content[64:])
    with pytest.raises(Exception) as raised:
        read_parquet(jvm, str(tmp_path), NAMES, SCHEMA).collect()
    assert path.name in describe(raised.value)["message"]
