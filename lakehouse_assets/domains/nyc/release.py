"""The release of nyc: the tables that its readers get together."""

from __future__ import annotations

from lakehouse_assets import Release, tables_of, when_current
from lakehouse_assets.domains.nyc import tables

TABLES = tables_of(tables)

RELEASE = Release(
    "nyc",
    tables=TABLES,
    automation=when_current(*(table.key for table in TABLES)),
    owners=tables.OWNERS,
)
