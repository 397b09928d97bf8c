"""Shows the result of `make run` as a text table, read from the catalog, so that it says what the tables really hold.

Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pyiceberg.table import Table

from lakehouse_assets.cli.terminal import table as text_table
from resources.catalog import load_lake, with_retries
from resources.settings import Settings

HEADER = ("table", "partitions", "rows", "data files", "bytes", "snapshots added", "seconds")


def snapshots(settings: Settings, names: Iterable[str]) -> dict[str, set[int]]:
    """Returns the ids of the snapshots that each table has now, by the table's name."""
    return {name: _snapshots(table) for name, table in _tables(settings, names).items()}


def summary(settings: Settings, assets: Sequence[tuple[str, int | None, float]], before: Mapping[str, set[int]]) -> str:
    """Returns a text table with a line for each of ``assets``: (name, number of partitions or None, seconds).

    An asset that is not an Iceberg table has neither rows, files nor snapshots. before: the snapshots before the run.
    """
    tables = _tables(settings, [name for name, _, _ in assets])
    lines = []
    for name, partitions, seconds in assets:
        totals = ("", "", "", "")
        if (table := tables.get(name)) is not None:
            totals = (*_totals(table), str(len(_snapshots(table) - before.get(name, set()))))
        lines.append((name, "" if partitions is None else str(partitions), *totals, f"{seconds:.1f}"))
    return text_table(HEADER, lines)


def _tables(settings: Settings, names: Iterable[str]) -> dict[str, Table]:
    catalog = with_retries(lambda: load_lake(settings))
    return {name: catalog.load_table(name) for name in names if "." in name and catalog.table_exists(name)}


def _snapshots(table: Table) -> set[int]:
    return {snapshot.snapshot_id for snapshot in table.metadata.snapshots}


def _totals(table: Table) -> tuple[str, str, str]:
    snapshot = table.current_snapshot()
    totals = snapshot.summary if snapshot and snapshot.summary else {}
    rows, files, size = (int(totals.get(f"total-{what}", 0)) for what in ("records", "data-files", "files-size"))
    return f"{rows:,}", f"{files:,}", f"{size:,}"
