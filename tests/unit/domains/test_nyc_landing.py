"""The drop zone as the source asset leaves it."""

from __future__ import annotations

import gzip
from pathlib import Path

import dagster as dg
import pytest

from lakehouse_assets.domains.nyc.landing import deliver, into_folder, landing
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.run.resource import Lakehouse


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    """The domain's part of a drop zone, filled by the asset, and the asset's metadata."""
    folder = tmp_path_factory.mktemp("landing")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAKEHOUSE_LANDING", str(folder))
        return folder / "nyc", dict(landing(Lakehouse(read_settings())).metadata)


@pytest.fixture
def delivered(first: tuple[Path, dict[str, object]]) -> Path:
    return first[0]


def lines(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode().splitlines()


def state(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_the_metadata_counts_what_was_delivered(first: tuple[Path, dict[str, object]]) -> None:
    folder, metadata = first
    assert metadata["dagster/row_count"] == 336_776 + 26_115 + 16 + 1458 + 3322
    assert metadata["files"] == metadata["files_written"] == 733
    assert metadata["bytes"] == sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_every_row_lies_in_the_file_of_its_day(delivered: Path) -> None:
    flights = {path.name[:10]: lines(path)[1:] for path in (delivered / "flights").iterdir()}
    weather = {path.name[:10]: lines(path)[1:] for path in (delivered / "weather").iterdir()}
    assert len(flights) == len(weather) == 365
    assert sum(map(len, flights.values())) == 336_776
    assert sum(map(len, weather.values())) == 26_115
    assert all(row.startswith("2013,3,9,") for row in flights["2013-03-09"])
    assert all(row.rpartition(",")[2].startswith("2013-03-09T") for row in weather["2013-03-09"])


def test_a_day_without_weather_has_a_header_and_every_other_day_rows(delivered: Path) -> None:
    empty = [path.name for path in (delivered / "weather").iterdir() if len(lines(path)) == 1]
    assert empty == ["2013-12-31.csv.gz"]


def test_a_dimension_is_one_file(delivered: Path) -> None:
    sizes = {path.name: len(lines(path)) - 1 for path in (delivered / "dimensions").iterdir()}
    assert sizes == {"airlines.csv.gz": 16, "airports.csv.gz": 1458, "planes.csv.gz": 3322}


def test_delivering_again_touches_only_what_differs(delivered: Path) -> None:
    before = state(delivered)
    (delivered / "flights" / "2013-05-05.csv.gz").write_bytes(b"torn")
    (delivered / "weather" / "2013-05-06.csv.gz").unlink()
    assert deliver(into_folder(delivered))["files_written"] == 2
    after = state(delivered)
    assert {name: content for name, (content, _) in after.items()} == {n: content for n, (content, _) in before.items()}
    assert [name for name in sorted(after) if after[name] != before[name]] == [
        "flights/2013-05-05.csv.gz",
        "weather/2013-05-06.csv.gz",
    ]


def test_a_folder_that_can_not_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LAKEHOUSE_LANDING", str(tmp_path / "file"))
    with pytest.raises(OSError, match=str(tmp_path / "file")):
        landing(Lakehouse(read_settings()))


def test_a_store_it_can_not_fill_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_LANDING", "gs://drop-zone")
    with pytest.raises(
        dg.Failure, match=r"a folder or an s3:// prefix, but its part of LAKEHOUSE_LANDING is gs://drop-zone/nyc"
    ):
        landing(Lakehouse(read_settings()))
