"""The release of nyc: the tables that its readers get together, among them the report.

When each table is updated is in tables.py.
"""

from __future__ import annotations

from lakehouse_assets import Release, when_current
from lakehouse_assets.domains.nyc.tables import (
    OWNERS,
    airlines,
    airports,
    flights,
    flights_enriched,
    planes,
    route_delays_monthly,
    weather,
)

TABLES = (airlines, airports, planes, weather, flights, flights_enriched, route_delays_monthly)

RELEASE = Release(
    "nyc",
    tables=TABLES,
    automation=when_current(*(table.key for table in TABLES)),
    owners=OWNERS,
)
