"""Prints the SQL that a database needs to be a source, or executes it: `lakehouse source sql`.

What the SQL does is sources/postgres_ddl.py's.
"""

from __future__ import annotations

import dagster as dg

from lakehouse_assets.cli.instance import opened
from lakehouse_assets.cli.pipeline import Pipeline
from lakehouse_assets.cli.terminal import output_to
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.errors import LakehouseError
from lakehouse_assets.hot.definitions import SQL
from lakehouse_assets.sources.postgres_session import READING, connected


def source_sql(settings: Settings, name: str, *, apply: bool) -> int:
    """Prints the SQL, or executes it. Returns 0. Expects that home.prepare was called.

    name: of the table in PostgreSQL. Raises LakehouseError for a name that no table has as its source.
    """
    with output_to(settings.home / "source.log") as terminal, opened(settings):
        graph = Pipeline().graph
        key = dg.AssetKey(["postgres", name])
        known = [one for one in graph.get_all_asset_keys() if one.path[0] == "postgres"]
        if key not in known:
            names = ", ".join(sorted(one.path[-1] for one in known)) or "none"
            raise LakehouseError(f"no table has the source PostgresTable({name!r}); known are {names}")
        text = str(graph.get(key).metadata[SQL].value).removeprefix("```sql\n").removesuffix("```")
        if apply:
            with connected(f"postgres:{name}", READING) as cursor:
                cursor.execute(text)
        print(f"{name} is set up as a source\n" if apply else text, end="", file=terminal)
    return 0
