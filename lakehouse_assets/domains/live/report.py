"""The live report: current delays, read from the lake and the rows not yet moved to it."""

# No `from __future__ import annotations`: Dagster needs the annotation of the resource as an object, not as text.

from datetime import UTC, datetime

import dagster as dg

from lakehouse_assets import Lakehouse, hot_and_cold
from lakehouse_assets.domains.live.tables import OWNERS, flight_events, flight_state


@dg.asset(
    key=["live", "delays_now"],
    group_name="live",
    kinds={"polars", "iceberg", "gold"},
    owners=list(OWNERS),
    deps=[flight_events.key, flight_state.key],
    description="Flights and delays of the last day that was replayed, by carrier. Freshness is how long ago the "
    "newest event was sent.",
)
def delays_now(lakehouse: dg.ResourceParam[Lakehouse]) -> dg.MaterializeResult[None]:
    """Reads both tables with their unmoved rows. Raises as hot_and_cold()."""
    import polars as pl

    catalog = lakehouse.catalog()
    events = hot_and_cold(flight_events, columns=["sent_at"], catalog=catalog)
    state = hot_and_cold(flight_state, catalog=catalog)
    newest = events.polars().select(pl.col("sent_at").max()).collect().item()
    by_carrier = (
        state.polars()
        .filter(pl.col("flight_date") == pl.col("flight_date").max())
        .group_by("carrier")
        .agg(
            pl.len().alias("flights"),
            (pl.col("status") == "cancelled").sum().alias("cancelled"),
            pl.col("delay").mean().round(1).alias("mean delay, minutes"),
        )
        .sort("flights", descending=True)
        .collect()
    )
    # None without any event.
    freshness = (datetime.now(UTC) - newest).total_seconds() if newest else None
    return dg.MaterializeResult(
        metadata={
            "delays": dg.MetadataValue.md(_markdown(by_carrier.columns, by_carrier.rows())),
            "flights": int(by_carrier["flights"].sum()),
            "rows_in_hot": events.hot.num_rows + state.hot.num_rows,
            **({"freshness_seconds": round(freshness, 2)} if freshness is not None else {}),
        }
    )


def _markdown(names: list[str], rows: list[tuple[object, ...]]) -> str:
    lines = [names, ["---"] * len(names), *([str(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def each_minute(_: dg.DefaultScheduleStatus) -> dg.ScheduleDefinition:
    """Returns the report's schedule, which is always on: its sources exist only for a demonstration."""
    return dg.ScheduleDefinition(
        name="live_each_minute",
        target=dg.AssetSelection.assets(delays_now.key),
        cron_schedule="* * * * *",
        default_status=dg.DefaultScheduleStatus.RUNNING,
    )
