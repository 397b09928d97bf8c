"""The code location: the domains, maintenance, the queue, the one resource and the executor put together.

Nothing is computed, opened or started here.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import dagster as dg

from lakehouse_assets.environment.catalog import catalog_problems, configuration
from lakehouse_assets.environment.settings import read_settings

if TYPE_CHECKING:
    from lakehouse_assets.run.domain import Domain

# Each name is a folder of lakehouse_assets/domains.
DOMAINS = ("nyc", "trade")


def build_defs(resource_overrides: Mapping[str, Any] | None = None) -> dg.Definitions:
    """Builds the definitions for this environment; ``resource_overrides`` replaces resources by key, for tests.

    Raises SettingsError for an environment, and DeclarationError for declarations, that can't work.
    """
    if configuration()[1]:
        # PyIceberg reads its configuration when it is imported, and the error for an unreadable file does not name it.
        # That is why what imports PyIceberg is imported below.
        read_settings(check=catalog_problems)
    from lakehouse_assets.declare.location import dependency_problems
    from lakehouse_assets.errors import DeclarationError
    from lakehouse_assets.maintenance.part import maintenance
    from lakehouse_assets.queue.queue_definitions import queue_definitions
    from lakehouse_assets.run.domain import location_settings
    from lakehouse_assets.run.plan_job import plan_job
    from lakehouse_assets.run.resource import Lakehouse

    domains: list[Domain] = [_domain(name) for name in DOMAINS]
    settings = location_settings(domains)
    tables = [table for domain in domains for table in domain.tables]
    defs = dg.Definitions.merge(
        *(domain.definitions(settings) for domain in domains),
        maintenance(tables, settings),
        queue_definitions(tables, settings),
        dg.Definitions(
            jobs=[plan_job(tables)],
            resources={"lakehouse": Lakehouse(settings), **(resource_overrides or {})},
            executor=dg.in_process_executor,
        ),
    )
    if problems := dependency_problems(defs):
        raise DeclarationError(*problems)
    return defs


def _domain(name: str) -> Domain:
    from lakehouse_assets.errors import DeclarationError

    if not find_spec(f"lakehouse_assets.domains.{name}"):
        raise DeclarationError(f"DOMAINS in definitions.py has {name!r}, but there is no folder domains/{name}/")
    domain: Domain = import_module(f"lakehouse_assets.domains.{name}.domain").DOMAIN
    return domain


defs = build_defs()
