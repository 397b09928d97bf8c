"""What `make verify-trade` says of its folder and its environment, and how it compares; nothing is loaded.
A whole run of it, with Spark, is in tests/integration/test_trade.py."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lakehouse_assets.domains.trade import generated
from lakehouse_assets.domains.trade.report import NAME
from lakehouse_assets.environment.settings import Settings
from scripts import verify_trade
from scripts.verify_trade import PUBLISHED, YEARS, CannotVerify, compare, customs_files, verify
from tests.conftest import ROOT

REPORT = "ym,Value\n201701,5\n201702,4294967297\n201703,9\n"


def customs(path: Path, year: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    generated.figures(f"{year}01", 2).write_csv(path)
    return path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """With a report."""
    (tmp_path / "home" / "reports").mkdir(parents=True)
    (tmp_path / "home" / "reports" / f"{NAME}.csv").write_text(REPORT)
    return tmp_path / "home"


def published(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "published.csv"
    path.write_text(f"ym,Value\n{text}")
    return path


@pytest.mark.parametrize("name", ["{}.csv", "customs/{}.csv", "custom_{}_original.csv"])
def test_files_are_known_by_their_first_line_whatever_they_are_called(tmp_path: Path, name: str) -> None:
    paths = {year: customs(tmp_path / name.format(year), year) for year in YEARS}
    customs(tmp_path / "before.csv", "2016")
    (tmp_path / "countries.csv").write_text("Country,name\n103,Republic of Korea\n")
    (tmp_path / "empty.csv").touch()
    assert customs_files(tmp_path) == paths


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    paths = {year: customs(tmp_path / f"{year}.csv", year) for year in YEARS}
    paths["2018"].write_bytes(b"\xef\xbb\xbf" + paths["2018"].read_bytes())
    assert customs_files(tmp_path) == paths


def test_a_folder_that_cannot_be_verified_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(CannotVerify, match=r"DIR=/nowhere is no folder"):
        customs_files(Path("/nowhere"))
    with pytest.raises(
        CannotVerify, match=r"has no customs CSV, .* the years 2017, 2018, 2019, 2020 with .* exp_imp,Year"
    ):
        customs_files(tmp_path)
    customs(tmp_path / "2017.csv", "2017")
    customs(tmp_path / "2019.csv", "2019")
    with pytest.raises(CannotVerify, match=r"begins with 2018, 2020; found are 2017\.csv, 2019\.csv"):
        customs_files(tmp_path)
    customs(tmp_path / "customs" / "2017.csv", "2017")
    with pytest.raises(CannotVerify, match=r"2017\.csv and .*customs/2017\.csv both begin with 2017"):
        customs_files(tmp_path)


def test_without_a_folder_make_says_which_variable_is_missing() -> None:
    command = ["make", "--no-print-directory", "--assume-old=setup", "verify-trade"]
    make = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert make.returncode
    assert make.stderr.startswith("error: DIR is missing: make verify-trade DIR=<")


def test_a_catalog_that_is_configured_is_never_filled(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    verify_trade.refuse_a_configured_catalog()
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", "https://catalog.example.com")
    with pytest.raises(CannotVerify, match=r"`lake` is configured .*run `make verify-trade` where it is not"):
        verify_trade.refuse_a_configured_catalog()


def test_every_published_month_is_compared(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(home, published(tmp_path, "201701,5\n201702,4294967297\n")) == 0
    assert "2 of 2 months are as published" in capsys.readouterr().out
    assert compare(home, published(tmp_path, "201701,5\n201703,8\n201704,1\n")) == 1
    shown = capsys.readouterr().out
    assert [line.split() for line in shown.splitlines() if line.startswith("20")] == [
        ["201701", "5", "5", "yes"],
        ["201703", "8", "9", "NO"],
        ["201704", "1", "missing", "NO"],
    ]
    assert "1 of 3 months are as published" in shown


@pytest.mark.parametrize(("value", "status"), [(5, 0), (6, 1)])
def test_the_lake_is_removed_unless_it_should_be_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: int, status: int
) -> None:
    homes: list[Path] = []

    def load(files: dict[str, Path], home: Path) -> int:
        homes.append(home)
        (home / "reports").mkdir()
        (home / "reports" / f"{NAME}.csv").write_text(REPORT)
        return 0

    monkeypatch.setattr(verify_trade, "load", load)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert verify({}, published(tmp_path, f"201701,{value}\n")) == status
    assert homes[0].exists() == bool(status)


def test_ten_months_are_published() -> None:
    lines = PUBLISHED.read_text().splitlines()
    assert lines[0] == "ym,Value"
    assert len(lines) == 11
