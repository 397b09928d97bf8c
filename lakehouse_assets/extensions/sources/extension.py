"""Sources plug into runs and code locations."""

from __future__ import annotations

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

    def definitions(self, tables: Sequence[Table], settings: Settings) -> dg.Definitions:
        """Returns what moves and purges rows."""
        from lakehouse_assets.extensions.sources.definitions import source_definitions

        return source_definitions(tables, settings)
