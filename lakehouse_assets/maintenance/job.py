"""The job ``lakehouse_maintenance``: looks at tables, shows what is worth doing and why, and does it."""

# No `from __future__ import annotations`: Dagster needs annotations as objects, not as strings.

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import dagster as dg
from pydantic import Field

from lakehouse_assets.declare.table import Table
from lakehouse_assets.errors import LakehouseError
from lakehouse_assets.maintenance.level import MaintenanceLevel
from lakehouse_assets.maintenance.levels import LEVELS
from lakehouse_assets.run.extension import Extension
from lakehouse_assets.run.in_flight import MAINTENANCE
from lakehouse_assets.run.jobs import NO_TAGS, chosen_tables, job_of
from lakehouse_assets.run.resource import Lakehouse

POOL = "lake_maintenance"
"""The pool of maintenance: by default, one run at a time."""
BUDGET_GIB, GIB = 1.0, 2**30
KNOWN = ", ".join(level.name for level in LEVELS)
"""For the launchpad. The parameter ``known`` differs from LEVELS only in tests."""


class MaintenanceConfig(dg.Config):
    """What to maintain. Shows in the launchpad."""

    tables: list[str] = Field([], description="Identifiers such as nyc.flights; if empty, all declared tables.")
    levels: list[str] = Field(
        [level.name for level in LEVELS if level.by_itself], description=f"Kinds of work, of {KNOWN}."
    )
    budget_gib: float = Field(
        BUDGET_GIB,
        ge=0,
        allow_inf_nan=False,
        description="The most that this run plans to rewrite, over all tables, in GiB. What is worth doing but does "
        "not fit is named in the plan and left for another run.",
    )
    dry_run: bool = Field(True, description="true: only show what would be done, and why. false: do it.")
    allow_large: bool = Field(
        False,
        description="For the level collect only. false: a table is left alone if more than 20 % of its bytes would go "
        "to the trash, which is more often a mistake. true: they may go; the table `due` of a dry run shows which "
        "files they are.",
    )
    patient: bool = Field(
        True,
        description="true: leave partitions for later that were written less than 15 minutes ago. false: maintain them "
        "now, as `lakehouse maintain` does.",
    )
    force: bool = Field(
        False,
        description="true: do the chosen levels wherever they would gain anything, also below the limits that the "
        "table `measured` shows. false: only at or above them.",
    )


def maintenance_job(
    tables: Sequence[Table],
    extensions: Sequence[Extension],
    known: Sequence[MaintenanceLevel] = LEVELS,
    tags: Mapping[str, str] = NO_TAGS,
    domains: Collection[str] = (),
) -> dg.JobDefinition:
    """Returns the maintenance job. known: the levels that a run may choose.

    domains: as for maintenance(); those of the tables need not be among them.

    One op does all levels, because they share one look, one ranking and one budget. Separate ops would each wait for
    the pool while the plan gets old.
    """

    @dg.op(name="maintain", pool=POOL, out=dg.Out(dg.Nothing))
    def maintain(
        context: dg.OpExecutionContext, config: MaintenanceConfig, lakehouse: dg.ResourceParam[Lakehouse]
    ) -> None:
        from lakehouse_assets.maintenance.maintenance_run import MaintenanceRun  # imports PyArrow
        from lakehouse_assets.maintenance.policy import Policy

        levels, chosen = _levels(config.levels, known), chosen_tables(config.tables, tables)
        try:
            policy = Policy(levels, {t.identifier: t.maintenance for t in chosen}, config.force, config.patient)
            run = MaintenanceRun(
                context, lakehouse, tables, extensions, chosen, known, policy, config.allow_large, domains
            )
            shown, faults = run.run(round(config.budget_gib * GIB), config.dry_run)
        except (LakehouseError, OSError) as error:  # OSError: disks, networks, catalogs
            raise dg.Failure(str(error)) from error
        _show(context, {**shown, "dry_run": config.dry_run}, faults)

    about = (
        "Rewrites small files, files with deleted rows and manifests, expires snapshots; on request, sorts partitions "
        "and moves unneeded files to the trash."
    )
    return job_of(maintain, MaintenanceConfig, MAINTENANCE, about, tags)


def _show(context: dg.OpExecutionContext, shown: dict[str, Any], faults: Sequence[str]) -> None:
    if faults:
        raise dg.Failure("; ".join(faults), shown, allow_retries=False)
    context.add_output_metadata(shown)


def _levels(names: Collection[str], known: Sequence[MaintenanceLevel]) -> list[MaintenanceLevel]:
    text = ", ".join(level.name for level in known)
    if not names:
        raise dg.Failure(f"no level was chosen; expected one of {text}", allow_retries=False)
    if unknown := sorted(set(names) - {level.name for level in known}):
        raise dg.Failure(f"unknown levels: {', '.join(unknown)}; expected one of {text}", allow_retries=False)
    return [level for level in known if level.name in names]


def bound_pool(instance: dg.DagsterInstance, pool: str = POOL, limit: int = 1) -> None:
    """Sets a pool's limit unless a person has: Dagster's default, one for all pools, is too high for this one."""
    storage = instance.event_log_storage
    if not storage.supports_global_concurrency_limits:
        return
    if pool not in {one.name for one in storage.get_pool_limits() if not one.from_default}:
        storage.set_concurrency_slots(pool, limit)
