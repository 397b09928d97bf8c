"""The report on a small lake, read by PyIceberg and Polars: right numbers, the same bytes again."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

from lakehouse_assets.commit.target import open_target
from lakehouse_assets.domains.nyc import tables
from lakehouse_assets.domains.nyc.report import NAME, mean_delays, monthly_report, to_markdown
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.extensions.releases.pointer import KeptRelease, Member, open_pointer
from lakehouse_assets.run.resource import Lakehouse
from resources.reports import Reports

JANUARY, FEBRUARY = date(2013, 1, 1), date(2013, 2, 1)
ROUTES = [
    # month, origin, dest, carrier, flights, cancelled, arrived, mean_dep, mean_arr, p90
    (JANUARY, "EWR", "IAH", "UA", 10, 1, 9, 3.0, 10.0, 20.0),
    (JANUARY, "LGA", "IAH", "UA", 4, 1, 3, 3.0, -2.0, 20.0),
    (FEBRUARY, "EWR", "IAH", "UA", 5, 0, 5, 3.0, -0.04, 20.0),
    (JANUARY, "JFK", "MIA", "AA", 30, 0, 30, 1.0, 2.5, 9.0),
    (FEBRUARY, "JFK", "MIA", "AA", 2, 2, 0, None, None, None),
]


@pytest.fixture
def lake(settings: Settings) -> Settings:
    catalog = load_lake(settings)
    # Unpartitioned: PyIceberg partitions by month only with pyiceberg-core, and to a reader it is the same.
    routes = open_target(catalog, replace(tables.route_delays_monthly, partitions=None, partitioned_by=()))
    airlines = open_target(catalog, tables.airlines)
    columns = zip(*ROUTES, strict=True)
    schema = routes.schema().as_arrow()
    routes.append(pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema))
    named = {"carrier": ["UA"], "name": ["United Air Lines Inc."]}
    airlines.append(pa.table(named, schema=airlines.schema().as_arrow()))
    release(settings)
    return settings


def release(settings: Settings) -> None:
    """Releases what the two tables that the report reads hold now."""
    catalog, now = load_lake(settings), datetime.now(UTC)
    found = [catalog.load_table(table.identifier) for table in (tables.route_delays_monthly, tables.airlines)]
    members = [
        Member(".".join(one.name()), str(one.metadata.table_uuid), one.metadata.current_snapshot_id, now, None)
        for one in found
    ]
    open_pointer(catalog, "nyc").move([KeptRelease(1, now, "run", tuple(members))])


def test_means_weigh_routes_by_their_arrivals(lake: Settings) -> None:
    rows = mean_delays(load_lake(lake)).rows()
    assert rows == [
        (JANUARY, "AA", "AA", 30, 2.5),
        (JANUARY, "UA", "United Air Lines Inc.", 14, 7.0),
        (FEBRUARY, "AA", "AA", 2, None),
        (FEBRUARY, "UA", "United Air Lines Inc.", 5, pytest.approx(-0.04)),
    ]


def test_the_table_has_the_busiest_carrier_first(lake: Settings) -> None:
    assert to_markdown(mean_delays(load_lake(lake))).splitlines()[2:] == [
        "| carrier | flights | 2013-01 | 2013-02 |",
        "|---|---:|---:|---:|",
        "| AA (AA) | 32 | 2.5 |  |",
        "| United Air Lines Inc. (UA) | 19 | 7.0 | 0.0 |",
    ]


def test_the_report_lies_in_the_home_and_is_the_same_again(lake: Settings) -> None:
    told = monthly_report(Lakehouse(lake), Reports(folder=str(lake.home / "reports"))).metadata
    assert told["flights"] == 51
    files = {path.name: path.read_bytes() for path in (lake.home / "reports").iterdir()}
    assert set(files) == {f"{NAME}.md", f"{NAME}.png"}
    assert files[f"{NAME}.png"].startswith(b"\x89PNG")
    assert f"({NAME}.png)" in files[f"{NAME}.md"].decode()
    assert Path(told["chart"].path).read_bytes() == files[f"{NAME}.png"]
    monthly_report(Lakehouse(lake), Reports(folder=str(lake.home / "reports")))
    assert {path.name: path.read_bytes() for path in (lake.home / "reports").iterdir()} == files


def test_an_empty_table_is_no_report(settings: Settings) -> None:
    unpartitioned = replace(tables.route_delays_monthly, partitions=None, partitioned_by=())
    for table in (unpartitioned, tables.airlines):
        target = open_target(load_lake(settings), table)
        target.append(target.schema().as_arrow().empty_table())
    release(settings)
    with pytest.raises(dg.Failure, match=r"nyc\.route_delays_monthly is empty"):
        monthly_report(Lakehouse(settings), Reports(folder=str(settings.home / "reports")))
