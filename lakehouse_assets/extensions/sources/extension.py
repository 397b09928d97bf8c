"""Sources plug into runs and code locations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import dagster as dg

from lakehouse_assets.run.extension import Extension, RunHook

if TYPE_CHECKING:
    from lakehouse_assets.declare.table import Table
    from lakehouse_assets.environment.settings import Settings
    from lakehouse_assets.run.run import Run

SQL = "sql"
"""Metadata of a source's asset: the SQL for its database."""


class Sources(Extension):
    """Moves rows of Kafka topics and PostgreSQL tables."""

    def hooks(self, run: Run) -> Iterable[RunHook]:
        """Returns a hook if the table has a source."""
        from lakehouse_assets.extensions.sources.hook import MoveSource

        return [MoveSource()] if run.table.source is not None else []

    def problems(self, tables: Sequence[Table]) -> Iterable[str]:
        """Yields a problem for each PostgreSQL table that is the source of several tables."""
        from lakehouse_assets.extensions.sources.postgres import PostgresTable

        readers = defaultdict[str, list[str]](list)
        for table in tables:
            if isinstance(table.source, PostgresTable):
                readers[table.source.name].append(table.identifier)
        for source, names in readers.items():
            if len(names) > 1:
                yield (
                    f"tables {', '.join(names)}: they share the source {source}, and each would purge rows that the "
                    "others have not moved; declare it for one table, and let the others read that table"
                )

    def definitions(self, tables: Sequence[Table], settings: Settings) -> dg.Definitions:
        """Returns what shows, moves and purges rows; nothing without sources."""
        moved = [table for table in tables if table.source is not None]
        if not moved:
            return dg.Definitions()
        from lakehouse_assets.declare.row_source import is_on_loopback
        from lakehouse_assets.extensions.sources.postgres import PostgresTable
        from lakehouse_assets.extensions.sources.purge import purge_job
        from lakehouse_assets.extensions.sources.sensors import movers_sensor, purges_sensor, source_check, source_key
        from lakehouse_assets.extensions.sources.warm import warm_job

        # So that nobody takes production's rows by accident.
        by_hand = settings.by_hand and not is_on_loopback()
        status = dg.DefaultSensorStatus.STOPPED if by_hand else dg.DefaultSensorStatus.RUNNING
        purged = [table for table in moved if isinstance(table.source, PostgresTable)]
        assets = {source_key(table): table for table in moved}
        return dg.Definitions(
            assets=[
                dg.AssetSpec(
                    key,
                    group_name="sources",
                    kinds={key.path[0]},
                    metadata=_set_up(table),
                    description=f"What is moved into {table.identifier}: how much of it there is, how long it waits.",
                )
                for key, table in assets.items()
            ],
            asset_checks=[source_check(table) for table in moved],
            sensors=[movers_sensor(moved, status), *([purges_sensor(purged, status)] if purged else [])],
            jobs=[purge_job(purged), warm_job(purged)] if purged else [],
        )


def _set_up(table: Table) -> dict[str, dg.MetadataValue]:
    """Returns the SQL that makes a PostgreSQL table a source; nothing for a topic."""
    from lakehouse_assets.declare.columns import types_of
    from lakehouse_assets.extensions.sources.postgres import PostgresTable
    from lakehouse_assets.extensions.sources.postgres_ddl import ddl

    if not isinstance(table.source, PostgresTable):
        return {}
    text = ddl(table.source, types_of(table.schema), table.write_mode.match_on)
    return {SQL: dg.MetadataValue.md(f"```sql\n{text}```")}
