"""Writes what ends `make run`: a text table of what the tables really hold, and a line on the lake's health.

Both are read from the catalog. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table

from lakehouse_assets.cli.terminal import table as text_table
from lakehouse_assets.health.findings import by_check
from lakehouse_assets.health.health import TableHealth
from lakehouse_assets.health.health_reader import summary_cache
from lakehouse_assets.health.look import look
from lakehouse_assets.health.text import size_text
from lakehouse_assets.maintenance.levels import LEVELS
from lakehouse_assets.run.resource import Lakehouse
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


def health_line(settings: Settings, identifiers: Iterable[str]) -> str:
    """Returns the health of declared tables, in one line.

    It says what could not be read, and never raises: the tables are filled already.
    """
    try:
        found = _look_at(Lakehouse(settings), identifiers)
    except Exception as error:
        return f"health of the lake: unknown, {type(error).__name__}: {error}"
    if not found:
        return "health of the lake: there are no tables yet"
    ill = {health.identifier: levels for health in found if (levels := _levels(health))}
    files, size = (sum(health.total(number) for health in found) for number in ("files", "size"))
    held = f"{len(found)} tables, {files:,} data files, {size_text(size)}"
    care = "; ".join(f"{identifier} needs {levels}" for identifier, levels in ill.items())
    return f"health of the lake: {held}; {care or 'nothing to mend'}"


def _look_at(lakehouse: Lakehouse, identifiers: Iterable[str]) -> list[TableHealth]:
    catalog, cache = lakehouse.catalog(), summary_cache(lakehouse)
    found = []
    for identifier in identifiers:
        try:
            found.append(look(catalog.load_table(identifier), cache))
        except (NoSuchTableError, NoSuchNamespaceError):  # no run has created it yet
            continue
    return found


def _levels(health: TableHealth) -> str:
    found = (finding for of_check in by_check(health, LEVELS).values() for finding in of_check)
    return ", ".join(dict.fromkeys(finding.action or "a person" for finding in found))
