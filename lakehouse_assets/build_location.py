"""Puts a code location together: the domains, maintenance, the queue, the resources and the executor.

Nothing is computed, opened or started here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from lakehouse_assets.declare.location import dependency_problems
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.errors import DeclarationError
from lakehouse_assets.hot.definitions import source_definitions
from lakehouse_assets.maintenance.definitions import maintenance
from lakehouse_assets.queue.definitions import queue_definitions
from lakehouse_assets.rollback.rollback_job import rollback_job
from lakehouse_assets.run.asset import plan_job
from lakehouse_assets.run.domain import Domain, location_settings
from lakehouse_assets.run.executor import patient_executor
from lakehouse_assets.run.resource import Lakehouse


def code_location(*domains: Domain, resources: Mapping[str, Any] | None = None) -> dg.Definitions:
    """Builds the definitions of a code location of these domains, for this environment.

    resources: the Dagster resources of the domains' own assets, by key, beside ``lakehouse``, which all have; one of
    that key replaces it.
    Raises SettingsError for an environment, and DeclarationError for declarations, that can't work.

    Example:
        >>> from lakehouse_assets import Domain, Table, code_location, column
        >>> orders = Table("shop.orders", [column("id", "int")], step="shop.steps:orders")
        >>> defs = code_location(Domain("shop", tables=[orders]))
        >>> sorted(key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys())
        ['shop/orders']
    """
    settings = location_settings(domains)
    parts = [domain.definitions(settings) for domain in domains]
    defs = dg.Definitions.merge(*parts, shared_definitions(domains, settings, resources))
    if problems := dependency_problems(defs):
        raise DeclarationError(*problems)
    return defs


def shared_definitions(
    domains: Sequence[Domain], settings: Settings, resources: Mapping[str, Any] | None = None
) -> dg.Definitions:
    """Returns what a code location of these domains has once: jobs, maintenance, the queue, the resources."""
    tables = [table for domain in domains for table in domain.tables]
    return dg.Definitions.merge(
        maintenance(tables, settings, [domain.name for domain in domains]),
        queue_definitions(tables, settings),
        source_definitions(tables, settings),
        dg.Definitions(
            jobs=[plan_job(tables), rollback_job(tables)],
            resources={"lakehouse": Lakehouse(settings), **(resources or {})},
            executor=patient_executor,
        ),
    )
