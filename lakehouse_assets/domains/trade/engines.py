"""Computes exports by month in Polars and DuckDB, from the same snapshot."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl
    from duckdb import DuckDBPyConnection
    from pyiceberg.table import Table

EXPORT = "1"
"""The value of exp_imp for exports."""
# How DuckDB read the table, for messages.
EXTENSION = "its iceberg extension"
ARROW = "PyIceberg's Arrow scan"
# DuckDB's sum of a BIGINT is a HUGEINT, which no other engine here has.
SUMS = f"""
    SELECT ym, CAST(sum("Value") AS BIGINT) FROM {{source}} WHERE exp_imp = '{EXPORT}' GROUP BY ym ORDER BY ym
"""


def by_polars(figures: Table) -> pl.DataFrame:
    """Returns ym and Value (thousand yen) by month, in order.

    PyIceberg plans the scan, and Polars reads the files: eight times as fast as PyIceberg's rows.
    """
    import polars as pl

    with warnings.catch_warnings():
        # The warning says that another package plans faster; planning takes a hundredth of a second here.
        warnings.simplefilter("ignore", pl.exceptions.PerformanceWarning)
        return sums(pl.scan_iceberg(figures)).collect()


def sums(figures: pl.LazyFrame) -> pl.LazyFrame:
    """Sums exports by month, like the query SUMS."""
    import polars as pl

    exports = figures.filter(pl.col("exp_imp") == EXPORT)
    return exports.group_by("ym").agg(pl.col("Value").sum()).sort("ym")


def by_duckdb(figures: Table) -> tuple[dict[str, int], str]:
    """Returns thousand yen by month, and how DuckDB read the table.

    Uses EXTENSION if it is installed and the files are local, as it lacks the catalog's settings for S3; else ARROW.
    Downloads nothing.
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
    """Returns a line for each month whose sums differ or that only one engine has."""
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
