"""What `lakehouse run` prints at its end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TextIO

from lakehouse_assets.cli.terminal import table as text_table
from lakehouse_assets.commit.deletes import live_rows
from lakehouse_assets.environment.catalog import find_table, load_lake, with_retries
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.maintenance.health.findings import by_check, size_text
from lakehouse_assets.maintenance.health.health import TableHealth
from lakehouse_assets.maintenance.health.look import look, summary_cache
from lakehouse_assets.maintenance.levels import LEVELS
from lakehouse_assets.run.resource import Lakehouse

HEADER = ("table", "partitions", "rows", "data files", "bytes", "snapshots added", "seconds")


def summary(settings: Settings, assets: Sequence[tuple[str, int | None, float]], began: float, to: TextIO) -> str:
    """Returns a text table of assets: (name, number of partitions or None, seconds).

    An asset that is no Iceberg table has no rows, files or snapshots. began: epoch seconds. to: the table fits this
    stream.
    """
    catalog, lines = with_retries(lambda: load_lake(settings)), []
    for name, partitions, seconds in assets:
        # Rows, data files, bytes, snapshots added.
        totals = ["", "", "", ""]
        if "." in name and (table := find_table(catalog, name)):
            snapshot = table.current_snapshot()
            found = snapshot.summary if snapshot and snapshot.summary else {}
            rows = live_rows(table.metadata, snapshot, table.io) if snapshot else 0
            totals = ["" if rows is None else str(rows)]
            totals += [f"{int(found.get(f'total-{what}', 0)):,}" for what in ("data-files", "files-size")]
            totals.append(str(sum(one.timestamp_ms >= began * 1000 for one in table.metadata.snapshots)))
        lines.append((name, "" if partitions is None else str(partitions), *totals, f"{seconds:.1f}"))
    return text_table(HEADER, lines, to)


def health_line(settings: Settings, identifiers: Iterable[str]) -> str:
    """Returns the tables' health in one line. An error is told there, not raised: the tables are filled already."""
    try:
        lakehouse = Lakehouse(settings)
        catalog, cache, found = lakehouse.catalog(), summary_cache(lakehouse), list[TableHealth]()
        for identifier in identifiers:
            if table := find_table(catalog, identifier):
                found.append(look(table, cache))
    except Exception as error:
        return f"health of the lake: unknown, {type(error).__name__}: {error}"
    if not found:
        return "health of the lake: there are no tables yet"
    actions = {
        # What no level of maintenance can mend needs a person.
        health.identifier: [one.action or "a person" for of in by_check(health, LEVELS).values() for one in of]
        for health in found
    }
    files, size = (sum(health.total(number) for health in found) for number in ("files", "size"))
    held = f"{len(found)} tables, {files:,} data files, {size_text(size)}"
    care = "; ".join(f"{name} needs {', '.join(dict.fromkeys(of))}" for name, of in actions.items() if of)
    return f"health of the lake: {held}; {care or 'nothing to do'}"
