"""Sources plug into runs and code locations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from lakehouse_assets.run.extension import Extension, RunHook

if TYPE_CHECKING:
    import dagster as dg

    from lakehouse_assets.declare.table import Table
    from lakehouse_assets.environment.settings import Settings
    from lakehouse_assets.run.run import Run


class Sources(Extension):
    """Kafka topics and PostgreSQL tables whose rows are moved into a table."""

    def hooks(self, run: Run) -> Iterable[RunHook]:
        """Returns one for a table with a source."""
        from lakehouse_assets.extensions.sources.hook import MoveSource

        return [MoveSource()] if run.table.source is not None else []

    def problems(self, tables: Sequence[Table]) -> Iterable[str]:
        """Yields the PostgreSQL tables that several tables have as their source."""
        from lakehouse_assets.extensions.sources.postgres import PostgresTable

        readers = defaultdict[str, list[str]](list)
        for table in tables:
            if isinstance(table.source, PostgresTable):
                readers[table.source.name].append(table.identifier)
        for source, names in readers.items():
            if len(names) > 1:
                yield (
                    f"tables {', '.join(names)}: several have the source {source}, of which each purges what the "
                    "others have not moved; let one of them have it, and the others read that one"
                )

    def definitions(self, tables: Sequence[Table], settings: Settings) -> dg.Definitions:
        """Returns what moves and purges rows."""
        from lakehouse_assets.extensions.sources.definitions import source_definitions

        return source_definitions(tables, settings)
