"""Releases plug into expiry."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from lakehouse_assets.run.extension import Extension, Upkeep

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata


class Releases(Extension):
    """Tables that readers get together."""

    def kept_snapshots(self, means: Upkeep, table: str, now: TableMetadata) -> Collection[int]:
        """Returns the snapshots in kept releases, even if their tags are gone."""
        from lakehouse_assets.extensions.releases.pointer import released_snapshots

        return released_snapshots(means.catalog, table, means.domains)
