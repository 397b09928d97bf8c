"""`lakehouse maintain`: what the tables need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from lakehouse_assets.cli.home import cold, ready, select
from lakehouse_assets.environment.machine import command
from lakehouse_assets.errors import LakehouseError

if TYPE_CHECKING:
    import dagster as dg


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@click.option("--apply", is_flag=True, help="Do the work, instead of only showing it.")
@click.option("--force", is_flag=True, help="Also do work below the limits at which it is worth its cost.")
@click.option("--level", "levels", multiple=True, help="Only this kind of work, such as expire; repeatable.")
@click.option("--allow-large", is_flag=True, help="Allow moving more than 20 % of a table's bytes to the trash.")
@select
@cold
def maintain(
    tables: tuple[str, ...],
    levels: tuple[str, ...],
    select: str | None,
    *,
    apply: bool,
    force: bool,
    allow_large: bool,
) -> None:
    """Show which maintenance the tables need.

    Without a TABLE, such as shop.orders, it looks at all declared tables. Without a level, it looks for all kinds of
    work except those that are done only if they are named: sort and collect.
    """
    settings = ready()
    from lakehouse_assets.cli.instance import opened
    from lakehouse_assets.cli.jobs import chosen, run_job
    from lakehouse_assets.run.in_flight import MAINTENANCE

    config = {
        "dry_run": not apply,
        "allow_large": allow_large,
        "force": force,
        "tables": chosen(tables, select, settings, "maintain.log"),
    }
    config |= {"patient": False}  # a person wants the work done now, even if the table was written recently
    config |= {"levels": [*levels]} if levels else {}
    with opened(settings) as (instance, _):
        if problem := full_pool(instance):
            raise LakehouseError(problem)
    found = run_job(settings, MAINTENANCE, config, "maintain.log")
    print(*_told(found, config), sep="\n\n")


def full_pool(instance: dg.DagsterInstance) -> str:
    """Returns why this run would wait, and a remedy; empty if a slot is free.

    It would wait silently and keep a processor busy: Dagster's in-process executor polls the pool.
    """
    from lakehouse_assets.maintenance.job import POOL

    info = instance.event_log_storage.get_concurrency_info(POOL)
    if not info.slot_count:
        return f"the pool {POOL} has no slots; set its limit to at least 1 in the UI (Deployment, Concurrency)"
    holders = info.active_run_ids | info.assigned_run_ids
    if len(holders) < info.slot_count:  # a maintenance run has one op, and so one slot
        return ""
    return (
        f"the run {', '.join(sorted(holders))} is already maintaining tables; wait until it ends, or terminate it in "
        "the UI"
    )


def _told(found: Mapping[str, dg.MetadataValue[Any]], config: Mapping[str, Any]) -> Iterator[str]:
    from lakehouse_assets.cli.jobs import tables_in
    from lakehouse_assets.maintenance.maintenance_run import LOOKED_AT, MEASURED, PLAN

    # PLAN has the work, MEASURED the tables' numbers beside the limits.
    has_plan, measured = (bool(getattr(found.get(name), "records", ())) for name in (PLAN, MEASURED))
    if not has_plan:
        count = found[LOOKED_AT].value
        looked_at = f"{count} table{'' if count == 1 else 's'} checked" if count else "no table exists yet"
        numbers = ". These are the limits at which maintenance would act:" if measured else ""
        yield f"{looked_at}; nothing to do{numbers}"
    yield from tables_in(found)
    if has_plan and config["dry_run"]:
        yield f"nothing was changed; `{command('maintain --apply')}` does it"
    elif measured and not config["force"]:
        yield f"`{command('maintain --force')}` shows what could be done below the limits (--level, TABLE)"
