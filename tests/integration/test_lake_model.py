"""Whatever happens to a table, in any order: maintenance changes no row, and every file that a snapshot needs exists.
What may happen is in support/lake_model.py; single cases, each with its reason, are in the tests of their subject."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog

from tests.support.collected import TestSite, local_site
from tests.support.lake_model import LakeModel
from tests.support.model_site import TABLES, run
from tests.support.servers import seaweedfs

# What docs/measured.md tells of 20,000 steps was asked for with 460 tables.
HAPPENS = (
    "overwrites landed",
    "appends landed",
    "full refreshes landed",
    "merges landed",
    "merges staged again",
    "schema changes",
    "old columns read",
    "published again",
    "partitions compacted",
    "snapshots expired",
    "files into the trash",
    "files restored",
)


class OnSQLite(LakeModel):
    open_site = staticmethod(local_site)


@pytest.mark.slow("The judge of all maintenance, as few orders as come to each event.")
def test_no_maintenance_changes_a_row_in_any_order_of_events() -> None:
    run(OnSQLite, HAPPENS, examples=6, steps=50, always_the_same=True)  # so few might by chance never compact anything


@pytest.mark.long("As many orders of events as there is time for; a few of them are in `make test`.")
@pytest.mark.timeout(0)
def test_no_maintenance_changes_a_row_in_many_orders_of_events() -> None:
    run(OnSQLite, HAPPENS, examples=TABLES, steps=50)


@pytest.mark.long("Repeats on a REST catalog.")
@pytest.mark.timeout(0)
@pytest.mark.server
def test_no_maintenance_changes_a_row_on_a_rest_catalog() -> None:
    class OnRest(LakeModel):
        @staticmethod
        def open_site(folder: Path) -> TestSite:
            implementation = {"py-io-impl": "lakehouse_assets.environment.file_io.ClosingFileIO"}  # as ours is opened
            catalog = load_catalog("lake", **weed.properties(), **implementation)
            return TestSite(catalog, f"{weed.plain}/staging/{folder.name}")

    # Its own: each pass of the collector reads all tables of a catalog, and those that other tests left in theirs take
    # so many connections that the system has no ports any more.
    with seaweedfs() as weed:
        run(OnRest, HAPPENS, examples=TABLES, steps=50)
