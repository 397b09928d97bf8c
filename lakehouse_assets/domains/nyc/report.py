"""The monthly report: arrival delays by month and carrier, by Polars."""

# No `from __future__ import annotations`: Dagster needs the annotation of the resource as an object, not as text.

from typing import TYPE_CHECKING

import dagster as dg

from lakehouse_assets import Lakehouse, release, when_updated
from lakehouse_assets.domains.nyc.release import RELEASE
from lakehouse_assets.domains.nyc.tables import OWNERS, airlines, route_delays_monthly
from resources.reports import Reports

if TYPE_CHECKING:
    import polars as pl
    from pyiceberg.catalog import Catalog

NAME = "arrival_delay_by_month_and_carrier"


@dg.asset(
    key=["nyc", "monthly_report"],
    group_name="nyc",
    kinds={"polars", "iceberg", "gold"},
    owners=list(OWNERS),
    deps=[RELEASE.asset.key],
    automation_condition=when_updated(RELEASE.asset.key),
    description="Mean arrival delay by month and carrier: a Markdown table and a chart, under LAKEHOUSE_HOME/reports.",
)
def monthly_report(lakehouse: dg.ResourceParam[Lakehouse], reports: Reports) -> dg.MaterializeResult[None]:
    """Writes the table and the chart. Raises as mean_delays()."""
    delays = mean_delays(lakehouse.catalog())
    table = to_markdown(delays)
    markdown = reports.write(f"{NAME}.md", f"{table}\n![Mean arrival delay]({NAME}.png)\n".encode())
    chart = reports.write(f"{NAME}.png", to_png(delays))
    return dg.MaterializeResult(
        metadata={
            "report": dg.MetadataValue.md(table),
            "chart": dg.MetadataValue.path(chart),
            "markdown": dg.MetadataValue.path(markdown),
            "flights": int(delays["flights"].sum()),
        }
    )


def mean_delays(lake: "Catalog") -> "pl.DataFrame":
    """Returns month (date), carrier, name, flights, mean_arr_delay (minutes; null if none arrived), ordered.

    Raises NoSuchRelease before the first release, dg.Failure if its route_delays_monthly is empty.
    """
    import polars as pl

    released = release(RELEASE.name, catalog=lake)
    wanted = ("month", "origin", "dest", "carrier", "flights", "arrived", "mean_arr_delay")
    routes = pl.DataFrame(released.scan(route_delays_monthly.identifier, selected_fields=wanted).to_arrow())
    names = pl.DataFrame(released.scan(airlines.identifier).to_arrow())
    if routes.is_empty():
        raise dg.Failure(f"{route_delays_monthly.identifier} is empty: materialize its months first")
    late = (pl.col("mean_arr_delay") * pl.col("arrived")).sum()
    arrived = pl.col("arrived").sum()
    return (
        # Sorted before the sum: floating-point sums depend on the order, and files are read in any order.
        routes.sort("month", "carrier", "origin", "dest")
        .group_by("month", "carrier", maintain_order=True)
        .agg(pl.col("flights").sum(), pl.when(arrived > 0).then(late / arrived).alias("mean_arr_delay"))
        .join(names, on="carrier", how="left")
        .select("month", "carrier", pl.col("name").fill_null(pl.col("carrier")), "flights", "mean_arr_delay")
        .sort("month", "carrier")
    )


def to_markdown(delays: "pl.DataFrame") -> str:
    """Writes a row per carrier, the busiest first, and a column per month; minutes with one decimal."""
    months, carriers, minutes = _matrix(delays)
    lines = [
        "# Mean arrival delay by month and carrier, minutes",
        "",
        f"| carrier | flights | {' | '.join(months)} |",
        f"|---|{'---:|' * (len(months) + 1)}",
    ]
    for (carrier, name, flights), row in zip(carriers, minutes, strict=True):
        # The z makes 0.0 of a rounded -0.0.
        cells = " | ".join("" if cell is None else f"{cell:z.1f}" for cell in row)
        lines.append(f"| {name} ({carrier}) | {flights:,} | {cells} |")
    return "\n".join(lines) + "\n"


def to_png(delays: "pl.DataFrame") -> bytes:
    """Draws a heat map: blue is early, red is late."""
    import io

    from matplotlib.figure import Figure

    months, carriers, minutes = _matrix(delays)
    # Without pyplot, which keeps global state and looks for a display.
    figure = Figure(figsize=(3.5 + 0.8 * len(months), 1.6 + 0.36 * len(carriers)), dpi=120, layout="constrained")
    axes = figure.subplots()
    values = [[float("nan") if cell is None else cell for cell in row] for row in minutes]
    # All but a few cells of the small carriers lie within ±40; those get the darkest colour.
    image = axes.imshow(values, cmap="RdBu_r", vmin=-40, vmax=40, aspect="auto")
    axes.set_xticks(range(len(months)), months)
    axes.set_yticks(range(len(carriers)), [f"{name} ({carrier})" for carrier, name, _ in carriers])
    axes.tick_params(length=0)
    for y, row in enumerate(minutes):
        for x, cell in enumerate(row):
            if cell is not None:
                # White is readable on the dark colours beyond ±25.
                color = "white" if abs(cell) > 25 else "black"
                axes.text(x, y, f"{cell:z.0f}", ha="center", va="center", fontsize=8, color=color)
    axes.set_title("Flights from New York City: mean arrival delay by month and carrier")
    axes.set_xlabel("Month of departure")
    axes.set_ylabel("Carrier, most flights first")
    figure.colorbar(image, ax=axes, extend="both", label="Minutes late (negative: early)")
    png = io.BytesIO()
    # Without matplotlib's version in the file, the same numbers give the same bytes.
    figure.savefig(png, format="png", metadata={"Software": None})
    return png.getvalue()


def _matrix(delays: "pl.DataFrame") -> tuple[list[str], list[tuple[str, str, int]], list[list[float | None]]]:
    """Returns the months, the carriers (code, name, flights), and for each carrier the delays by month."""
    import polars as pl

    carriers = (
        delays.group_by("carrier", "name")
        .agg(pl.col("flights").sum())
        .sort("flights", "carrier", descending=[True, False])
    )
    months = delays["month"].unique().sort().to_list()
    cells = {(row["month"], row["carrier"]): row["mean_arr_delay"] for row in delays.iter_rows(named=True)}
    rows = [[cells.get((month, carrier)) for month in months] for carrier in carriers["carrier"]]
    return [f"{month:%Y-%m}" for month in months], carriers.rows(), rows
