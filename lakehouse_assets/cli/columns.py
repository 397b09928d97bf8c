"""`lakehouse columns`: the lines for a file, or for a table of the catalog."""

from __future__ import annotations

from pathlib import Path

import click

from lakehouse_assets.cli.home import used_by_command
from lakehouse_assets.cli.project import enter_project
from lakehouse_assets.environment.catalog import catalog_problems
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.errors import LakehouseError


@click.command()
@click.argument("source", metavar="FILE|TABLE")
def columns(source: str) -> None:
    """Print the column(…) lines for a file or a table.

    A table is named as namespace.table.
    """
    from lakehouse_assets.cli.column_lines import lines_for_table, look_at

    if Path(source).is_file():
        print(look_at(Path(source)).text)
        return
    if "/" in source or source.count(".") != 1:
        raise LakehouseError(f"there is no file {source}; name a table as namespace.table")
    enter_project()
    print(lines_for_table(source, used_by_command(read_settings(check=catalog_problems))))
