"""Domains side by side: each has its own sensor, and all problems of all of them are reported in one error."""

from __future__ import annotations

from dataclasses import replace

import dagster as dg
import pytest

from lakehouse_assets import code_location
from lakehouse_assets.environment.computes import BUILT_IN
from lakehouse_assets.environment.env_reader import SettingsError
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.errors import DeclarationError
from lakehouse_assets.extensions.builtin import EXTENSIONS
from lakehouse_assets.run.asset import table_asset
from lakehouse_assets.run.domain import Domain, location_settings
from lakehouse_assets.run.updated import when_updated
from tests.support.tables import numbers, whole

CONDITION = when_updated(dg.AssetKey(["demo", "source"]))
DEMO = Domain("demo", tables=[numbers(automation=CONDITION), whole()])
TRADE = Domain("trade", tables=[numbers(identifier="trade.orders", automation=CONDITION)])


def monthly(default_status: dg.DefaultScheduleStatus) -> dg.ScheduleDefinition:
    job = dg.define_asset_job("all", dg.AssetSelection.key_prefixes(["demo"]))
    return dg.ScheduleDefinition("monthly", job=job, cron_schedule="@monthly", default_status=default_status)


def statuses(settings: Settings) -> set[str]:
    defs = Domain("demo", tables=[numbers(automation=CONDITION)], schedules=[monthly]).definitions(settings, EXTENSIONS)
    return {item.default_status.value for item in [*(defs.sensors or ()), *(defs.schedules or ())]}


@pytest.mark.parametrize("compute", BUILT_IN)
def test_schedules_and_sensors_wait_for_a_person_at_a_laptop_only(settings: Settings, compute: str) -> None:
    at_a_laptop = compute in ("local", "inline")
    assert statuses(replace(settings, compute=compute)) == {"STOPPED" if at_a_laptop else "RUNNING"}


def test_a_table_without_a_description_shows_the_docstring_of_its_step() -> None:
    assert table_asset(numbers(), EXTENSIONS).descriptions_by_key == {
        numbers().key: "Three rows a day: (day, n, text)."
    }
    described = numbers(description="Numbers.")
    assert table_asset(described, EXTENSIONS).descriptions_by_key == {described.key: "Numbers."}


def test_each_domain_has_a_sensor_over_its_own_assets(settings: Settings) -> None:
    resource = dg.Definitions(resources={"lakehouse": object()})
    defs = dg.Definitions.merge(resource, *(domain.definitions(settings, EXTENSIONS) for domain in (DEMO, TRADE)))
    graph = defs.resolve_asset_graph()
    targets = {sensor.name: sensor.asset_selection.resolve(graph) for sensor in defs.get_repository_def().sensor_defs}
    assert targets == {"demo_automation": set(DEMO.keys), "trade_automation": set(TRADE.keys)}


def test_a_domain_without_conditions_has_no_sensor(settings: Settings) -> None:
    assert not Domain("demo", tables=[whole()]).definitions(settings, EXTENSIONS).sensors


def test_a_location_whose_dependencies_do_not_fit_is_refused() -> None:
    """Dagster would load it, and run it."""
    shops = numbers(
        identifier="demo.shops",
        partitions=dg.StaticPartitionsDefinition(["a"]),
        partitioned_by=["text"],
        deps=[numbers().key],
    )
    with pytest.raises(DeclarationError, match="asset 'demo/shops': its partitions"):
        code_location(Domain("demo", tables=[numbers(), shops]))


def test_the_problems_of_all_domains_are_reported_at_once(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    domains = [
        DEMO,
        Domain("demo", tables=[]),
        Domain("trade", tables=[numbers(identifier="shop.orders", deps=["trade/customer"])]),
    ]
    expected = [
        "domain 'demo': declared 2 times",
        "domain 'trade': the key of its asset shop/orders must begin with trade/",
        """table 'shop.orders': deps names AssetKey(["trade/customer"])""",
    ]
    with pytest.raises(DeclarationError) as refused:
        location_settings(domains, EXTENSIONS)
    assert [part for part in expected if part not in str(refused.value)] == []
    monkeypatch.setenv("LAKEHOUSE_MAX_WORKERS", "many")
    with pytest.raises(SettingsError) as refused_with_settings:
        location_settings(domains, EXTENSIONS)
    assert [p for p in [*expected, "LAKEHOUSE_MAX_WORKERS"] if p not in str(refused_with_settings.value)] == []
