"""`lakehouse plan`: what the declarations would change."""

from __future__ import annotations

import sys

import click

from lakehouse_assets.cli.home import ready, select


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@select
def plan(tables: tuple[str, ...], select: str | None) -> int:
    """Show what the declarations would change on the lake.

    Without a TABLE, such as shop.orders, it looks at all declared tables. Exits with 1 if a next run would fail.
    """
    settings = ready()
    from lakehouse_assets.cli.jobs import chosen, run_job, tables_in
    from lakehouse_assets.run import asset

    found = run_job(settings, asset.PLAN, {"tables": chosen(tables, select, settings, "plan.log")}, "plan.log")
    count = found[asset.LOOKED_AT].value
    same = "1 table matches its declaration" if count == 1 else f"{count} tables match their declarations"
    print(*(tables_in(found) or [same]), sep="\n\n")
    if failing := found[asset.FAILING].value:
        print(f"error: the next run of {', '.join(failing)} would fail", file=sys.stderr)
    return 1 if failing else 0
