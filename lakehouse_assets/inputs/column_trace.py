"""From which columns a column was computed, by the lineage in the materializations of Dagster's log."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import dagster as dg

from lakehouse_assets.errors import LakehouseError

LINEAGE = "dagster/column_lineage"
"""Dagster's name for the metadata (https://docs.dagster.io/guides/build/assets/metadata-and-tags/column-level-lineage)."""


class Columns:
    """The lineage in the latest materialization of each asset."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance = instance
        self._lineage = cache(self._read)

    def lines(self, key: dg.AssetKey, column: str | None) -> Iterator[str]:
        """Yields a line for a column, or each of a table, with the columns that it was computed from below it.

        Raises LakehouseError for a table that no SQL step has filled, or an unknown column.
        """
        lineage, name = self._lineage(key), ".".join(key.path)
        if lineage is None:
            raise LakehouseError(f"the lineage of {name} is not known: no run of a SQL step has materialized it")
        if column is not None and column not in lineage:
            known = f"; that of {', '.join(lineage)} is" if lineage else ""
            raise LakehouseError(f"the lineage of {name}.{column} is not known{known}")
        for one in [column] if column else lineage:
            yield f"{name}.{one}"
            yield from self._below(key, one)

    def _below(self, key: dg.AssetKey, column: str) -> Iterator[str]:
        origins = (self._lineage(key) or {}).get(column, [])
        for number, origin in enumerate(origins, start=1):
            is_last = number == len(origins)
            known = self._lineage(origin.asset_key) is not None
            yield f"{'└─' if is_last else '├─'} {'.'.join(origin.asset_key.path)}.{origin.column_name}"
            if known:
                indent = "   " if is_last else "│  "
                yield from (f"{indent}{line}" for line in self._below(origin.asset_key, origin.column_name))

    def _read(self, key: dg.AssetKey) -> dict[str, list[dg.TableColumnDep]] | None:
        event = self._instance.get_latest_materialization_event(key)
        made = event.asset_materialization if event else None
        found = made.metadata.get(LINEAGE) if made else None
        if not isinstance(found, dg.TableColumnLineageMetadataValue):
            return None
        return {column: [*deps] for column, deps in found.lineage.deps_by_column.items()}
