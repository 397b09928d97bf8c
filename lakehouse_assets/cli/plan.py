"""`lakehouse plan`: what the declarations would change."""

from __future__ import annotations

import sys

import click

from lakehouse_assets.cli.home import ready


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
def plan(tables: tuple[str, ...]) -> int:
    """Show what the declarations would change on the lake.

    Without a TABLE, such as shop.orders, it looks at all declared tables. Exits with 1 if a next run would fail.
    """
    settings = ready()
    from lakehouse_assets.cli.jobs import run_job, tables_in
    from lakehouse_assets.run import asset

    found = run_job(settings, asset.PLAN, {"tables": [*tables]}, "plan.log")
    count = found[asset.LOOKED_AT].value
    same = "1 table matches its declaration" if count == 1 else f"{count} tables match their declarations"
    print(*(tables_in(found) or [same]), sep="\n\n")
    if failing := found[asset.FAILING].value:
        print(f"error: the next run of {', '.join(failing)} would fail", file=sys.stderr)
    return 1 if failing else 0
