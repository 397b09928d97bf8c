"""Writes the line on the lake's health that ends `make run`.

How a table's health is found and judged is health/'s.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

from lakehouse_assets.health.findings import by_check
from lakehouse_assets.health.health import TableHealth
from lakehouse_assets.health.health_reader import summary_cache
from lakehouse_assets.health.look import look
from lakehouse_assets.health.text import size_text
from lakehouse_assets.maintenance.levels import LEVELS
from lakehouse_assets.run.resource import Lakehouse
from resources.settings import Settings


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
