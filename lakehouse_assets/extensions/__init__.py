"""The features that come with this library, in the order in which runs call their hooks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from lakehouse_assets.run.extension import Extension, RunHook

if TYPE_CHECKING:
    import dagster as dg
    from pyiceberg.table.metadata import TableMetadata

    from lakehouse_assets.declare.table import Table
    from lakehouse_assets.environment.settings import Settings
    from lakehouse_assets.maintenance.level import MaintenanceContext
    from lakehouse_assets.run.table_run import TableRun


class Queue(Extension):
    """Messages that request partitions."""

    def hooks(self, run: TableRun) -> Iterable[RunHook]:
        """Returns one if the environment has a queue."""
        from lakehouse_assets.run.queue_part import RunQueue

        return [RunQueue(run)] if run.lakehouse.settings.queue is not None else []

    def definitions(self, tables: Sequence[Table], settings: Settings) -> dg.Definitions:
        """Returns the sensor, its check and the redrive job."""
        from lakehouse_assets.queue.definitions import queue_definitions

        return queue_definitions(tables, settings)


class Inputs(Extension):
    """Versions of the tables that a run reads, and how far it has read their changes."""

    def hooks(self, run: TableRun) -> Iterable[RunHook]:
        """Pins the inputs after their versions in Dagster were read, so that the pins contain these."""
        from lakehouse_assets.run import inputs

        reads = [inputs.Upstream(), inputs.Inputs()] if run.table.dep_names or run.table.reads else []
        return [*reads, inputs.Positions(), inputs.DropZoneFiles()]

    def kept_snapshots(self, means: MaintenanceContext, table: str, now: TableMetadata) -> Collection[int]:
        """Returns what runs that are alive or may be resumed have pinned."""
        from lakehouse_assets.collect.needed import RunFiles, pinned_snapshots

        # Looked up for each version of the table: a run first loads the head, then leaves its copy.
        site, readers = means.site, [name for name, reader in means.tables.items() if table in reader.inputs]
        leavings = (RunFiles.of(site.receipts_of(name), site.list_receipts(name)) for name in readers)
        return pinned_snapshots(table, leavings, site.chains, site.now_ms()) if readers else ()


class Sources(Extension):
    """Kafka topics and PostgreSQL tables whose rows are moved into a table."""

    def hooks(self, run: TableRun) -> Iterable[RunHook]:
        """Returns one for a table with a source."""
        from lakehouse_assets.run.moving import MoveSource

        return [MoveSource()] if run.table.source is not None else []

    def definitions(self, tables: Sequence[Table], settings: Settings) -> dg.Definitions:
        """Returns what moves and purges rows."""
        from lakehouse_assets.hot.definitions import source_definitions

        return source_definitions(tables, settings)


class Releases(Extension):
    """Tables that readers get together."""

    def kept_snapshots(self, means: MaintenanceContext, table: str, now: TableMetadata) -> Collection[int]:
        """Returns the snapshots in releases."""
        from lakehouse_assets.releases.pointer import released_snapshots

        return released_snapshots(means.catalog, table, means.domains)


EXTENSIONS: Sequence[Extension] = (
    # What waits in the inbox is recorded before inputs are pinned: the pins then contain what the messages tell of.
    Queue(),
    Inputs(),
    Sources(),
    Releases(),
)
