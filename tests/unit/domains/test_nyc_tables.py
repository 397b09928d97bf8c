"""The declarations of nyc: documented, owned, and depending on the right partitions."""

from __future__ import annotations

from dataclasses import replace

import dagster as dg
import pytest

from lakehouse_assets import Domain, Table
from lakehouse_assets.domains.nyc import tables
from lakehouse_assets.domains.nyc.domain import DOMAIN
from lakehouse_assets.environment.env_reader import SettingsError
from lakehouse_assets.environment.sizes import Size
from tests.support.whole_location import build_defs

TABLES = DOMAIN.tables


@pytest.fixture(scope="module")
def graph() -> dg.AssetGraph:
    return build_defs().resolve_asset_graph()


def upstream(graph: dg.AssetGraph, of: Table, key: str, to: Table) -> set[str]:
    mapping = graph.get_partition_mapping(of.key, to.key)
    asked = of.partitions.subset_with_partition_keys([key])
    mapped = mapping.get_upstream_mapped_partitions_result_for_partitions(asked, of.partitions, to.partitions)
    return set(mapped.partitions_subset.get_partition_keys())


def test_the_tables() -> None:
    assert [table.identifier for table in TABLES] == [
        "nyc.airlines",
        "nyc.airports",
        "nyc.planes",
        "nyc.weather",
        "nyc.flights",
        "nyc.flights_enriched",
        "nyc.route_delays_monthly",
    ]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.identifier)
def test_a_table_says_what_it_is_and_whose(table: Table) -> None:
    assert table.description
    assert table.owners
    assert table.kinds
    assert table.unique
    assert [c.name for c in table.columns if not c.doc] == []
    required = {c.name for c in table.columns if c.required}
    assert set(table.unique) <= required


@pytest.mark.parametrize("table", [t for t in TABLES if t.partitions], ids=lambda table: table.identifier)
def test_the_partitions_are_all_of_2013(table: Table) -> None:
    keys = table.partitions.get_partition_keys()
    if table is tables.route_delays_monthly:
        assert (len(keys), keys[0], keys[-1]) == (12, "2013-01-01", "2013-12-01")
    else:
        assert (len(keys), keys[0], keys[-1]) == (365, "2013-01-01", "2013-12-31")


def test_a_local_day_needs_the_weather_of_two_utc_days(graph: dg.AssetGraph) -> None:
    enriched, weather = tables.flights_enriched, tables.weather
    assert upstream(graph, enriched, "2013-06-30", weather) == {"2013-06-30", "2013-07-01"}
    assert upstream(graph, enriched, "2013-12-31", weather) == {"2013-12-31"}
    assert upstream(graph, enriched, "2013-06-30", tables.flights) == {"2013-06-30"}


def test_a_month_needs_its_days(graph: dg.AssetGraph) -> None:
    days = upstream(graph, tables.route_delays_monthly, "2013-02-01", tables.flights)
    assert (len(days), min(days), max(days)) == (28, "2013-02-01", "2013-02-28")


def test_everything_comes_from_the_drop_zone(graph: dg.AssetGraph) -> None:
    roots = {key for key in graph.root_materializable_asset_keys if key.path[0] == DOMAIN.name}
    assert roots == {dg.AssetKey(["nyc", "landing"])}
    released = dg.AssetKey(["nyc", "release"])
    assert graph.get(released).parent_keys == {table.key for table in TABLES}
    assert graph.get(dg.AssetKey(["nyc", "monthly_report"])).parent_keys == {released}


def test_a_resource_can_be_replaced() -> None:
    mine = object()
    assert build_defs(lakehouse=mine).resources["lakehouse"] is mine


def changed(**replacements: Table) -> Domain:
    return replace(DOMAIN, tables=[replacements.get(table.key.path[-1], table) for table in TABLES])


def test_a_tables_size_is_refused_beside_what_the_environment_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_COMPUTE", "ecs")
    nyc = changed(weather=replace(tables.weather, size=Size(3, 8)))
    with pytest.raises(SettingsError, match=r"(?s)LAKEHOUSE_ECS_CLUSTER is not set.*table 'nyc\.weather'.* 3 vCPUs"):
        build_defs(nyc)


def test_a_table_that_chose_its_compute_is_named_with_what_that_needs() -> None:
    nyc = changed(weather=replace(tables.weather, compute="emr"), planes=replace(tables.planes, compute="emr"))
    with pytest.raises(SettingsError) as refused:
        build_defs(nyc)
    for name in ("LAKEHOUSE_EMR_CLUSTER", "LAKEHOUSE_CODE", "LAKEHOUSE_STAGING"):
        assert f"{name} is not set (emr, chosen by table 'nyc.planes' and 1 more, needs it" in str(refused.value)
    assert "workers on emr (chosen by table 'nyc.planes' and 1 more) can't reach it" in str(refused.value)
