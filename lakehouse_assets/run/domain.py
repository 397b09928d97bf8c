"""Domains, and the checks across all domains of a code location."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import dagster as dg

from lakehouse_assets.declare.location import computes_of, declaration_problems, size_problems
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import catalog_problems
from lakehouse_assets.environment.env_reader import SettingsError
from lakehouse_assets.environment.settings import Settings, read_settings
from lakehouse_assets.errors import DeclarationError
from lakehouse_assets.run.asset import table_asset
from lakehouse_assets.run.extension import Extension
from lakehouse_assets.wire.code import step_of
from lakehouse_assets.wire.work import table_and_ref

# Dagster calls this parameter beta. It is used on purpose: Dagster's version is pinned.
warnings.filterwarnings("ignore", "Parameter `use_user_code_server`", dg.BetaWarning)


@dataclass(frozen=True)
class Domain:
    """Tables and other assets that belong together.

    Examples:
        >>> from lakehouse_assets import Domain, Table, column
        >>> orders = Table("shop.orders", [column("id", "int")], "shop.steps:orders")
        >>> [key.to_user_string() for key in Domain("shop", tables=[orders]).keys]
        ['shop/orders']
    """

    name: str
    """The first part of its assets' keys; also in ``<LAKEHOUSE_LANDING>/<name>``, the sensor ``<name>_automation`` and
    ``lakehouse run --domain <name>``."""
    tables: Sequence[Table]
    """Their identifiers begin with its name."""
    assets: Sequence[dg.AssetsDefinition] = ()
    """Other assets, such as reports."""
    schedules: Sequence[Callable[[dg.DefaultScheduleStatus], dg.ScheduleDefinition]] = ()
    """Functions from a schedule's initial status in this environment (Settings.by_hand) to the schedule."""

    def __post_init__(self) -> None:
        for asset in self.assets:
            if not isinstance(asset, dg.AssetsDefinition):
                # A declaration, such as a Release, in the place of the asset that it has.
                meant = ": name its .asset" if hasattr(asset, "asset") else ""
                raise DeclarationError(f"domain {self.name!r}: assets has {asset!r}, which is not an asset{meant}")

    @property
    def keys(self) -> list[dg.AssetKey]:
        """The keys of its tables and assets."""
        return [*(table.key for table in self.tables), *(key for asset in self.assets for key in asset.keys)]

    def definitions(self, settings: Settings, extensions: Sequence[Extension]) -> dg.Definitions:
        """Returns its assets, its schedules, and a sensor if an asset has an automation condition."""
        by_hand = settings.by_hand
        status = dg.DefaultScheduleStatus.STOPPED if by_hand else dg.DefaultScheduleStatus.RUNNING
        assets = [*(table_asset(table, extensions) for table in self.tables), *self.assets]
        automated = any(spec.automation_condition for asset in assets for spec in asset.specs)
        return dg.Definitions(
            assets=assets,
            schedules=[schedule(status) for schedule in self.schedules],
            sensors=[self._sensor(by_hand)] if automated else [],
        )

    def _sensor(self, by_hand: bool) -> dg.AutomationConditionSensorDefinition:
        return dg.AutomationConditionSensorDefinition(
            f"{self.name}_automation",
            target=dg.AssetSelection.key_prefixes([self.name]),  # Dagster refuses an asset with two sensors
            default_status=dg.DefaultSensorStatus.STOPPED if by_hand else dg.DefaultSensorStatus.RUNNING,
            minimum_interval_seconds=30,
            use_user_code_server=True,  # the daemon can evaluate only Dagster's own conditions
            description=f"Updates the assets of {self.name} when partitions they depend on are materialized again.",
        )


def with_step_inputs(domains: Sequence[Domain]) -> list[Domain]:
    """Returns the domains with the inputs that steps name and tables need not declare: those of SQL.

    Tables of these domains become deps, others reads. A table in one of these domains that is not declared becomes
    neither: it is misspelled.
    """
    keys = {table.identifier: table.key for domain in domains for table in domain.tables}
    return [replace(domain, tables=[_with_inputs(table, keys) for table in domain.tables]) for domain in domains]


def _with_inputs(table: Table, keys: Mapping[str, dg.AssetKey]) -> Table:
    domains = {identifier.partition(".")[0] for identifier in keys}
    deps, reads = [*table.deps], [*table.reads]
    for name in step_of(table.step).reads():
        if name in (*table.dep_names, *table.reads):
            continue
        if name in keys and name != table.identifier:
            deps.append(keys[name])
        elif name.partition(".")[0] not in domains or table_and_ref(name)[0] in keys:
            reads.append(name)
    return replace(table, deps=deps, reads=reads) if (deps, reads) != ([*table.deps], [*table.reads]) else table


def location_settings(
    domains: Sequence[Domain], extensions: Sequence[Extension], *, has_others: bool = False
) -> Settings:
    """Reads the settings of a code location, and checks its declarations.

    has_others: whether the code location has assets outside its domains, so that a dep may be one of them. Raises
    SettingsError, which also names bad declarations; DeclarationError if only declarations are bad.
    """
    tables = [table for domain in domains for table in domain.tables]
    problems = _problems(domains, tables, has_others)
    problems += [problem for extension in extensions for problem in extension.problems(tables)]
    try:
        settings = read_settings(
            also=computes_of(tables),
            check=lambda found, computes: catalog_problems(found, computes) + size_problems(tables, found),
        )
    except SettingsError as error:
        raise SettingsError("\n".join([str(error), *problems])) from None
    if problems:
        raise DeclarationError(*problems)
    return settings


def _problems(domains: Sequence[Domain], tables: Sequence[Table], has_others: bool) -> list[str]:
    problems = [
        f"domain {name!r}: declared {times} times; each domain needs its own name"
        for name, times in Counter(domain.name for domain in domains).items()
        if times > 1
    ]
    problems += [
        f"domain {domain.name!r}: the key of its asset {key.to_user_string()} must begin with {domain.name}/"
        for domain in domains
        for key in domain.keys
        if key.path[0] != domain.name
    ]
    # With other assets, a dep that is not known here may still exist, so None leaves deps unchecked.
    known = {key for domain in domains for key in domain.keys}
    return problems + declaration_problems(tables, None if has_others else known)
