"""The code location: assets, checks, schedule, sensor and the one resource put together.
Composition only: nothing is computed, opened or started here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

from lakehouse_assets import readable  # noqa: F401  before all that imports PyIceberg
from lakehouse_assets.declare.location import computes_of, declaration_problems, size_problems, tables_of
from lakehouse_assets.domains.nyc import automation, tables
from lakehouse_assets.domains.nyc.landing import landing
from lakehouse_assets.domains.nyc.report import monthly_report
from lakehouse_assets.errors import DeclarationError
from lakehouse_assets.run.asset import RESOURCE, table_asset
from lakehouse_assets.run.resource import Lakehouse
from resources.catalog_problems import catalog_problems
from resources.settings import read_settings


def build_defs(resource_overrides: Mapping[str, Any] | None = None) -> dg.Definitions:
    """The definitions for this environment; ``resource_overrides`` replaces resources by key, for tests.

    Raises SettingsError for an environment, and DeclarationError for a table, that can't work.
    """
    declared, others = tables_of(tables), (landing, monthly_report)
    settings = read_settings(
        also=computes_of(declared),
        check=lambda found, computes: catalog_problems(found, computes) + size_problems(declared, found),
    )
    keys = {table.key for table in declared}.union(*(asset.keys for asset in others))
    if problems := declaration_problems(declared, keys):
        raise DeclarationError(*problems)
    loaded = dg.AssetSelection.assets(tables.flights.key, tables.weather.key)
    return dg.Definitions(
        assets=[*map(table_asset, declared), *others],
        schedules=[automation.monthly_schedule(settings, tables.DAYS, loaded)],
        sensors=[automation.sensor(settings)],
        resources={RESOURCE: Lakehouse(settings), **(resource_overrides or {})},
        executor=dg.in_process_executor,
    )


defs = build_defs()
