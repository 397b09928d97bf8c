"""The report of exports by month; it fails if two engines read different sums."""

# No `from __future__ import annotations`: Dagster needs the annotation of the resource as an object, not as text.

import io
from typing import TYPE_CHECKING

import dagster as dg

from lakehouse_assets import Lakehouse
from lakehouse_assets.domains.trade.engines import by_duckdb, by_polars, differences
from lakehouse_assets.domains.trade.tables import OWNERS, customs
from resources.reports import Reports

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

NAME = "trade_exports_by_month"
UNITS = (("trillion yen", 1e9), ("billion yen", 1e6), ("million yen", 1e3), ("thousand yen", 1.0))
"""The chart's units, each in thousands of yen; the first one that the largest value reaches is used.

There are several because the original figures of the statistics are a thousand times the generated ones.
"""


@dg.asset(
    key=["trade", "exports_by_month"],
    group_name="trade",
    kinds={"polars", "duckdb", "gold"},
    owners=list(OWNERS),
    deps=[customs.key],
    description=(
        "Exports by month, thousand yen: a CSV and a chart, under LAKEHOUSE_HOME/reports. Polars and DuckDB both "
        "compute them from one snapshot of trade.customs; where they differ, this fails and names the months."
    ),
)
def exports_by_month(lakehouse: dg.ResourceParam[Lakehouse], reports: Reports) -> dg.MaterializeResult[None]:
    """Writes the CSV and the chart. Raises dg.Failure without exports, or if the two engines disagree."""
    figures = lakehouse.catalog().load_table(customs.identifier)
    exports = by_polars(figures)
    if exports.is_empty():
        raise dg.Failure(f"{customs.identifier} has no exports: materialize its months first")
    checked, way = by_duckdb(figures)
    if different := differences(dict(exports.iter_rows()), checked):
        raise dg.Failure(
            "Polars and DuckDB disagree on the exports in one snapshot of trade.customs, so no report was written. "
            f"DuckDB read it through {way}.\n" + "\n".join(different)
        )
    csv = reports.write(f"{NAME}.csv", exports.write_csv().encode())
    chart = reports.write(f"{NAME}.png", to_png(exports))
    lines = "\n".join(f"| {row['ym']} | {row['Value']:,} |" for row in exports.iter_rows(named=True))
    return dg.MaterializeResult(
        metadata={
            "report": dg.MetadataValue.md(f"| month | thousand yen |\n|---|---:|\n{lines}"),
            "csv": dg.MetadataValue.path(csv),
            "chart": dg.MetadataValue.path(chart),
            "months": exports.height,
            "duckdb_read_through": way,
        }
    )


def to_png(exports: "pl.DataFrame") -> bytes:
    """Draws the exports as a PNG."""
    png = io.BytesIO()
    # Without matplotlib's version in the file, the same numbers give the same bytes.
    drawn(exports).savefig(png, format="png", metadata={"Software": None})
    return png.getvalue()


def drawn(exports: "pl.DataFrame") -> "Figure":
    """Draws the chart. exports: at least one row of ym and Value (thousand yen)."""
    from matplotlib.figure import Figure

    values = exports["Value"].to_list()
    unit, thousands = next((one for one in UNITS if max(values) >= one[1]), UNITS[-1])
    figure = Figure(figsize=(9, 3.5), dpi=120, layout="constrained")
    axes = figure.subplots()
    months = (exports["ym"] + "01").str.to_date("%Y%m%d").to_list()
    axes.plot(months, [value / thousands for value in values], marker="o", markersize=3)
    axes.set_ylim(bottom=0)
    axes.set_ylabel(unit)
    axes.set_title("Exports by month")
    return figure
