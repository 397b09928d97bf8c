"""The result of `make run` as a text table, read from the catalog, so that it shows what the tables really hold.
Nothing is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyiceberg.table import Table

from lakehouse_assets.cli.terminal import table as text_table
from resources.catalog import load_lake, outlasting
from resources.settings import Settings

HEADER = ("table", "partitions", "rows", "data files", "bytes", "snapshots added", "seconds")


@dataclass(frozen=True)
class Snapshots:
    """The snapshots each table had at one moment: name → snapshot ids."""

    of_table: dict[str, frozenset[int]]

    @classmethod
    def of(cls, settings: Settings, names: Iterable[str]) -> Snapshots:
        tables = _tables(settings, names)
        return cls({name: frozenset(s.snapshot_id for s in t.metadata.snapshots) for name, t in tables.items()})

    def added_since(self, table: str, before: Snapshots) -> int:
        return len(self.of_table[table] - before.of_table.get(table, frozenset()))


def summary(settings: Settings, assets: Sequence[tuple[str, int | None, float]], before: Snapshots) -> str:
    """A text table with a line for each of ``assets``: (name, number of partitions or None, seconds).

    An asset that is not an Iceberg table has neither rows, files nor snapshots.
    """
    names = [name for name, _, _ in assets]
    tables, now = _tables(settings, names), Snapshots.of(settings, names)
    lines = []
    for name, partitions, seconds in assets:
        totals = ("", "", "", "")
        if name in tables:
            totals = (*_totals(tables[name]), str(now.added_since(name, before)))
        lines.append((name, "" if partitions is None else str(partitions), *totals, f"{seconds:.1f}"))
    return text_table(HEADER, lines)


def _tables(settings: Settings, names: Iterable[str]) -> dict[str, Table]:
    catalog = outlasting(lambda: load_lake(settings))
    return {name: catalog.load_table(name) for name in names if "." in name and catalog.table_exists(name)}


def _totals(table: Table) -> tuple[str, str, str]:
    snapshot = table.current_snapshot()
    totals = snapshot.summary if snapshot and snapshot.summary else {}
    rows, files, size = (int(totals.get(f"total-{what}", 0)) for what in ("records", "data-files", "files-size"))
    return f"{rows:,}", f"{files:,}", f"{size:,}"
