"""Partitioned Dagster assets on Apache Iceberg tables, filled by PySpark workers: the public names.

Importing this package loads nothing; each name is loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakehouse_assets.build_location import code_location as code_location
    from lakehouse_assets.declare.columns import Column as Column
    from lakehouse_assets.declare.columns import column as column
    from lakehouse_assets.declare.location import tables_of as tables_of
    from lakehouse_assets.declare.modes import Append as Append
    from lakehouse_assets.declare.modes import Compression as Compression
    from lakehouse_assets.declare.modes import Distribution as Distribution
    from lakehouse_assets.declare.modes import FullRefresh as FullRefresh
    from lakehouse_assets.declare.modes import Merge as Merge
    from lakehouse_assets.declare.modes import Overwrite as Overwrite
    from lakehouse_assets.declare.modes import Planning as Planning
    from lakehouse_assets.declare.modes import Rewrites as Rewrites
    from lakehouse_assets.declare.modes import Tuning as Tuning
    from lakehouse_assets.declare.options import Arrivals as Arrivals
    from lakehouse_assets.declare.options import Level as Level
    from lakehouse_assets.declare.options import Maintenance as Maintenance
    from lakehouse_assets.declare.options import Pace as Pace
    from lakehouse_assets.declare.table import Table as Table
    from lakehouse_assets.environment.sizes import Size as Size
    from lakehouse_assets.extensions.hand_off.hand_off_asset import HandOff as HandOff
    from lakehouse_assets.extensions.releases.current import when_current as when_current
    from lakehouse_assets.extensions.releases.pointer import release as release
    from lakehouse_assets.extensions.releases.release_asset import Release as Release
    from lakehouse_assets.extensions.sources.hot_and_cold import hot_and_cold as hot_and_cold
    from lakehouse_assets.extensions.sources.kafka import KafkaTopic as KafkaTopic
    from lakehouse_assets.extensions.sources.postgres import PostgresTable as PostgresTable
    from lakehouse_assets.extensions.sources.values import Avro as Avro
    from lakehouse_assets.extensions.sources.values import Json as Json
    from lakehouse_assets.extensions.yaml.component import LakehouseTables as LakehouseTables
    from lakehouse_assets.files.drop_zone import read_csv as read_csv
    from lakehouse_assets.files.drop_zone import read_json as read_json
    from lakehouse_assets.files.drop_zone import read_parquet as read_parquet
    from lakehouse_assets.run.domain import Domain as Domain
    from lakehouse_assets.run.resource import Lakehouse as Lakehouse
    from lakehouse_assets.run.updated import when_updated as when_updated
    from lakehouse_assets.step.window import BadPartitions as BadPartitions
    from lakehouse_assets.step.window import Window as Window
    from lakehouse_assets.storage.objects import put_file as put_file

HOMES = {
    "Append": "declare.modes",
    "Arrivals": "declare.options",
    "Avro": "extensions.sources.values",
    "BadPartitions": "step.window",
    "Column": "declare.columns",
    "Compression": "declare.modes",
    "Distribution": "declare.modes",
    "Domain": "run.domain",
    "FullRefresh": "declare.modes",
    "HandOff": "extensions.hand_off.hand_off_asset",
    "Json": "extensions.sources.values",
    "KafkaTopic": "extensions.sources.kafka",
    "Lakehouse": "run.resource",
    "LakehouseTables": "extensions.yaml.component",
    "Level": "declare.options",
    "Maintenance": "declare.options",
    "Merge": "declare.modes",
    "Overwrite": "declare.modes",
    "Pace": "declare.options",
    "Planning": "declare.modes",
    "PostgresTable": "extensions.sources.postgres",
    "Release": "extensions.releases.release_asset",
    "Rewrites": "declare.modes",
    "Size": "environment.sizes",
    "Table": "declare.table",
    "Tuning": "declare.modes",
    "Window": "step.window",
    "code_location": "build_location",
    "column": "declare.columns",
    "hot_and_cold": "extensions.sources.hot_and_cold",
    "put_file": "storage.objects",
    "read_csv": "files.drop_zone",
    "read_json": "files.drop_zone",
    "read_parquet": "files.drop_zone",
    "release": "extensions.releases.pointer",
    "tables_of": "declare.location",
    "when_current": "extensions.releases.current",
    "when_updated": "run.updated",
}
"""The public names and their modules in this package; the imports above repeat them for type checkers."""


def __getattr__(name: str) -> Any:
    """Loads a public name. Raises SettingsError if PyIceberg's own configuration keeps it from being imported."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{HOMES[name]}")
    except Exception:
        from lakehouse_assets.environment.catalog import catalog_problems, configuration
        from lakehouse_assets.environment.settings import read_settings

        _, unreadable = configuration()
        if unreadable:  # PyIceberg reads its configuration when it is imported, and its error does not name the file
            read_settings(check=catalog_problems)
        raise
    globals()[name] = found = getattr(module, name)
    return found


def __dir__() -> list[str]:
    return sorted(HOMES)
