"""`lakehouse source` and `lakehouse warm`: tables in PostgreSQL that are sources."""

from __future__ import annotations

import click

from lakehouse_assets.cli.home import ready
from lakehouse_assets.errors import LakehouseError


@click.group()
def source() -> None:
    """Set up a database as a source of a table."""


@source.command()
@click.argument("table")
@click.option(
    "--apply", is_flag=True, help="Execute the SQL on the database that PGHOST and the other PG* variables name."
)
def sql(table: str, *, apply: bool) -> None:
    """Print the SQL that a TABLE in PostgreSQL needs to be a source."""
    settings = ready()
    import dagster as dg

    from lakehouse_assets.cli.instance import opened
    from lakehouse_assets.cli.pipeline import Pipeline
    from lakehouse_assets.cli.terminal import output_to
    from lakehouse_assets.extensions.sources.extension import SQL
    from lakehouse_assets.extensions.sources.postgres_session import READING, connected

    with output_to(settings.home / "source.log"), opened(settings):
        graph = Pipeline().graph
        key = dg.AssetKey(["postgres", table])
        # A source is an asset of its own, whose metadata has the SQL.
        known = [one for one in graph.get_all_asset_keys() if one.path[0] == "postgres"]
        if key not in known:
            names = ", ".join(sorted(one.path[-1] for one in known)) or "none"
            raise LakehouseError(f"no table has the source PostgresTable({table!r}); the declared sources are {names}")
        text = str(graph.get(key).metadata[SQL].value).removeprefix("```sql\n").removesuffix("```")
        if apply:
            with connected(f"postgres:{table}", READING) as cursor:
                cursor.execute(text)
    print(f"{table} is set up as a source\n" if apply else text, end="")


@click.command()
@click.argument("table")
@click.option("--where", required=True, help="A condition over its columns, such as \"day = '2026-01-31'\".")
def warm(table: str, where: str) -> None:
    """Put rows of a table back into its source in PostgreSQL.

    TABLE is an identifier such as shop.orders.
    """
    settings = ready()
    from lakehouse_assets.cli.jobs import run_job
    from lakehouse_assets.extensions.sources.warm import WARM

    found = run_job(settings, WARM, {"table": table, "where": where}, "warm.log")
    print(f"{found['rows'].value} rows of {table} were put back into its source")
