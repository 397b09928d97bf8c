"""Builds a code location."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from lakehouse_assets.declare.location import dependency_problems
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.errors import DeclarationError
from lakehouse_assets.extensions.builtin import EXTENSIONS
from lakehouse_assets.maintenance.definitions import maintenance
from lakehouse_assets.rollback.rollback_job import rollback_job
from lakehouse_assets.run.asset import plan_job
from lakehouse_assets.run.domain import Domain, location_settings, with_step_inputs
from lakehouse_assets.run.executor import patient_executor
from lakehouse_assets.run.extension import Extension
from lakehouse_assets.run.pyspark_resource import pyspark
from lakehouse_assets.run.resource import Lakehouse


def code_location(
    *domains: Domain, resources: Mapping[str, Any] | None = None, extensions: Sequence[Extension] = ()
) -> dg.Definitions:
    """Builds the definitions of a code location for this environment.

    resources: Dagster resources for the domains' own assets, by key; ``lakehouse`` and ``pyspark`` replace the default
    ones. extensions: features of yours that take part in runs and add definitions, after this library's own.
    Raises SettingsError for an invalid environment, DeclarationError for invalid declarations.

    Examples:
        >>> from lakehouse_assets import Domain, Table, code_location, column
        >>> orders = Table("shop.orders", [column("id", "int")], step="shop.steps:orders")
        >>> defs = code_location(Domain("shop", tables=[orders]))
        >>> sorted(key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys())
        ['shop/orders']
    """
    extensions, domains = [*EXTENSIONS, *extensions], (*with_step_inputs(domains),)
    settings = location_settings(domains, extensions)
    parts = [domain.definitions(settings, extensions) for domain in domains]
    defs = dg.Definitions.merge(*parts, shared_definitions(domains, settings, resources, extensions))
    if problems := dependency_problems(defs):
        raise DeclarationError(*problems)
    return defs


def shared_definitions(
    domains: Sequence[Domain],
    settings: Settings,
    resources: Mapping[str, Any] | None = None,
    extensions: Sequence[Extension] = EXTENSIONS,
) -> dg.Definitions:
    """Returns what a code location has once for all domains."""
    tables = [table for domain in domains for table in domain.tables]
    return dg.Definitions.merge(
        maintenance(tables, settings, extensions, [domain.name for domain in domains]),
        *(extension.definitions(tables, settings) for extension in extensions),
        dg.Definitions(
            jobs=[plan_job(tables), rollback_job(tables)],
            resources={
                "lakehouse": Lakehouse(settings),
                "pyspark": pyspark([table.identifier for table in tables]),
                **(resources or {}),
            },
            executor=patient_executor,
        ),
    )
