"""The report of exports on a small lake: what Polars and DuckDB compute, and a report that fails where they differ.
The same on files that Spark has written is in tests/integration/test_trade.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import dagster as dg
import duckdb
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.table import Table

from lakehouse_assets.commit.target import open_target
from lakehouse_assets.domains.trade import engines, report, tables
from lakehouse_assets.domains.trade.engines import ARROW, EXTENSION, by_duckdb, by_polars, differences
from lakehouse_assets.domains.trade.report import NAME, exports_by_month
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.run.resource import Lakehouse
from resources.reports import Reports

MOST = 2**31 - 1
FIGURES = [
    # exp_imp, ym, hs9, Value
    ("1", "201702", "000000001", 7),
    ("1", "201701", "000000001", MOST),
    ("1", "201701", "000000002", MOST),
    ("1", "201701", "000000003", 3),
    ("2", "201701", "000000001", 1_000),
    ("2", "201703", "000000001", 1_000),
]
EXPORTS = {"201701": 2 * MOST + 3, "201702": 7}


@pytest.fixture
def empty(settings: Settings) -> Table:
    # Unpartitioned: PyIceberg partitions only with pyiceberg-core, and to a reader it is the same.
    return open_target(load_lake(settings), replace(tables.customs, partitions=None, partitioned_by=()))


@pytest.fixture
def figures(empty: Table) -> Table:
    rows = [
        {
            "exp_imp": exp_imp,
            "Year": 2017,
            "month": int(ym[4:]),
            "ym": ym,
            "Country": "103",
            "Custom": "100",
            "hs2": hs9[:2],
            "hs4": hs9[:4],
            "hs6": hs9[:6],
            "hs9": hs9,
            "Q1": None,
            "Q2": 1,
            "Value": value,
        }
        for exp_imp, ym, hs9, value in FIGURES
    ]
    empty.append(pa.Table.from_pylist(rows, schema=empty.schema().as_arrow()))
    return empty


def test_both_engines_sum_exports_beyond_32_bits(figures: Table) -> None:
    assert dict(by_polars(figures).iter_rows()) == EXPORTS
    assert by_duckdb(figures)[0] == EXPORTS


def test_both_engines_find_nothing_in_an_empty_table(empty: Table) -> None:
    assert by_polars(empty).is_empty()
    assert by_duckdb(empty)[0] == {}


def test_duckdb_reads_through_arrow_where_its_extension_is_not_installed(
    figures: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = duckdb.connect
    opened: list[dict[str, str]] = []

    def without_extensions(config: dict[str, str]) -> duckdb.DuckDBPyConnection:
        opened.append(config)
        return connect(config={**config, "extension_directory": str(tmp_path / "extensions")})

    monkeypatch.setattr(duckdb, "connect", without_extensions)
    assert by_duckdb(figures) == (EXPORTS, ARROW)
    assert opened == [{"autoinstall_known_extensions": "false"}]
    assert not list(tmp_path.glob("extensions/**/*.duckdb_extension*"))


def test_duckdb_reads_the_tables_metadata_where_its_extension_is_installed(
    figures: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a macro in the extension's place, which no test can download: it shows what the extension is asked for."""

    def stand_in(connection: duckdb.DuckDBPyConnection) -> bool:
        connection.execute(
            "CREATE MACRO iceberg_scan(place) AS TABLE SELECT '1' AS exp_imp, place AS ym, 5::BIGINT AS \"Value\""
        )
        return True

    monkeypatch.setattr(engines, "_loads_iceberg", stand_in)
    assert by_duckdb(figures) == ({figures.metadata_location: 5}, EXTENSION)


def test_duckdb_reads_a_table_elsewhere_through_arrow_which_has_the_catalogs_settings(
    figures: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures.metadata_location = "s3://lake/trade/customs/metadata/1.metadata.json"
    monkeypatch.setattr(engines, "_loads_iceberg", lambda connection: True)
    assert by_duckdb(figures) == (EXPORTS, ARROW)


def test_differences_name_the_month_and_both_values() -> None:
    assert differences({"201701": 1_000, "201702": 7, "201703": 1}, {"201701": 1_001, "201702": 7, "201704": 2}) == [
        "201701: Polars has 1,000, DuckDB 1,001",
        "201703: Polars has 1, DuckDB none",
        "201704: Polars has none, DuckDB 2",
    ]


def test_the_report_lies_in_the_home_and_says_how_duckdb_read(figures: Table, settings: Settings) -> None:
    told = exports_by_month(Lakehouse(settings), Reports(folder=str(settings.home / "reports"))).metadata
    assert told["months"] == 2
    assert told["duckdb_read_through"] in (ARROW, EXTENSION)
    assert (settings.home / "reports" / f"{NAME}.csv").read_text() == "ym,Value\n201701,4294967297\n201702,7\n"
    assert (settings.home / "reports" / f"{NAME}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("most", "unit", "drawn_as"),
    [(6_000_000_000, "trillion yen", 6.0), (15_000_000, "billion yen", 15.0), (7, "thousand yen", 7.0)],
)
def test_the_chart_has_a_unit_that_fits_its_values_and_months_as_dates(most: int, unit: str, drawn_as: float) -> None:
    months = [f"{year}{month:02d}" for year in (2017, 2018) for month in range(1, 13)]
    figure = report.drawn(pl.DataFrame({"ym": months, "Value": [most] * len(months)}))
    (axes,) = figure.axes
    figure.draw_without_rendering()
    assert axes.get_ylabel() == unit
    assert axes.lines[0].get_ydata()[0] == drawn_as
    assert {"2017-01", "2017-07", "2018-01"} <= {label.get_text() for label in axes.get_xticklabels()}


def test_a_table_without_exports_is_no_report(empty: Table, settings: Settings) -> None:
    with pytest.raises(dg.Failure, match=r"trade\.customs has no exports: materialize its months first"):
        exports_by_month(Lakehouse(settings), Reports(folder=str(settings.home / "reports")))
    assert not (settings.home / "reports").exists()


def test_engines_that_disagree_are_no_report(
    figures: Table, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "by_duckdb", lambda table: ({**EXPORTS, "201702": 8}, ARROW))
    with pytest.raises(dg.Failure, match=r"trade\.customs.*PyIceberg's Arrow scan\.\n201702: Polars has 7, DuckDB 8$"):
        exports_by_month(Lakehouse(settings), Reports(folder=str(settings.home / "reports")))
    assert not (settings.home / "reports").exists()
