"""Inputs plug into runs and expiry."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from lakehouse_assets.run.extension import Extension, RunHook, Upkeep

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

    from lakehouse_assets.run.run import Run


class Inputs(Extension):
    """Pins the inputs of runs, and tracks how far runs have read changes."""

    def hooks(self, run: Run) -> Iterable[RunHook]:
        """Returns the hooks, the first two only for a table that reads others."""
        from lakehouse_assets.inputs import hook as inputs

        reads = [inputs.Upstream(), inputs.PinnedInputs()] if run.table.dep_names or run.table.reads else []
        return [*reads, inputs.Positions(), inputs.DropZoneFiles()]

    def kept_snapshots(self, means: Upkeep, table: str, now: TableMetadata) -> Collection[int]:
        """Returns the snapshots that alive and resumable runs have pinned."""
        from lakehouse_assets.inputs.pinned import pinned_snapshots
        from lakehouse_assets.maintenance.collect.needed import RunFiles

        # Listed again for each version of the table: a run first loads the head, and only then leaves its copy.
        site, readers = means.site, [name for name, reader in means.tables.items() if table in reader.inputs]
        leavings = (RunFiles.of(site.receipts_of(name), site.list_receipts(name)) for name in readers)
        return pinned_snapshots(table, leavings, site.chains, site.now_ms()) if readers else ()
