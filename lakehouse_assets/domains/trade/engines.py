"""Computes exports by month by two single-node engines, Polars and DuckDB, from the same snapshot.

What is made of the sums, and what happens where they differ, is report.py's.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl
    from duckdb import DuckDBPyConnection
    from pyiceberg.table import Table

EXPORT = "1"
EXTENSION = "its iceberg extension"
ARROW = "PyIceberg's Arrow scan"
# DuckDB's sum of a BIGINT is a HUGEINT, which no other engine here has.
SUMS = f"""
    SELECT ym, CAST(sum("Value") AS BIGINT) FROM {{source}} WHERE exp_imp = '{EXPORT}' GROUP BY ym ORDER BY ym
"""


def by_polars(figures: Table) -> pl.DataFrame:
    """Returns ym and Value (thousand yen) of each month, in order.

    PyIceberg plans the scan, and Polars reads the files itself: eight times as fast as taking rows from PyIceberg.
    """
    import polars as pl

    with warnings.catch_warnings():
        # It says that another package would plan faster; planning takes a hundredth of a second here.
        warnings.simplefilter("ignore", pl.exceptions.PerformanceWarning)
        return sums(pl.scan_iceberg(figures)).collect()


def sums(figures: pl.LazyFrame) -> pl.LazyFrame:
    """Sums exports by month, as the query SUMS does for DuckDB."""
    import polars as pl

    exports = figures.filter(pl.col("exp_imp") == EXPORT)
    return exports.group_by("ym").agg(pl.col("Value").sum()).sort("ym")


def by_duckdb(figures: Table) -> tuple[dict[str, int], str]:
    """Returns thousand yen by month, and how DuckDB read the table.

    It reads through EXTENSION where that is installed and the files are on this machine, as the extension would not
    know the catalog's settings for S3; else through ARROW. Nothing is downloaded.
    """
    import duckdb

    place = figures.metadata_location
    with duckdb.connect(config={"autoinstall_known_extensions": "false"}) as connection:
        if place.startswith(("/", "file:")) and _loads_iceberg(connection):
            found = connection.execute(SUMS.format(source="iceberg_scan(?)"), [place])
            return dict(found.fetchall()), EXTENSION
        scan = figures.scan(row_filter=f"exp_imp == '{EXPORT}'", selected_fields=("exp_imp", "ym", "Value"))
        connection.register("exports", scan.to_arrow_batch_reader())
        return dict(connection.execute(SUMS.format(source="exports")).fetchall()), ARROW


def differences(polars: Mapping[str, int], duckdb: Mapping[str, int]) -> list[str]:
    """Returns a line for each month for which the engines differ, or that only one of them has."""
    return [
        f"{ym}: Polars has {_text(polars.get(ym))}, DuckDB {_text(duckdb.get(ym))}"
        for ym in sorted({*polars, *duckdb})
        if polars.get(ym) != duckdb.get(ym)
    ]


def _loads_iceberg(connection: DuckDBPyConnection) -> bool:
    import duckdb

    try:
        connection.execute("LOAD iceberg")
    except duckdb.Error:  # it, or the avro extension that it needs, is not installed for this version of DuckDB
        return False
    return True


def _text(value: int | None) -> str:
    return "none" if value is None else f"{value:,}"
