"""Finds the files that tables of the catalog name outside their own folders: files that were added by their paths.

Where tables lie is in locations.py; this reads their metadata and manifests.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchIcebergTableError, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.typedef import Identifier

from lakehouse_assets.collect.links import without_links
from lakehouse_assets.collect.locations import Located, Locations, identifiers, located_here
from lakehouse_assets.collect.reachable import Reader
from lakehouse_assets.storage.place import is_apart, meanings

FRESH_SECONDS = 300.0
"""The seconds for which one look serves all tables that are collected. A file that another table comes to name
meanwhile may still go if nobody has needed it for the whole grace, as it could while one table was collected."""
TRIES = 2
"""The number of times that a table is tried: its error may have passed once all others were looked at."""


@dataclass
class Neighbours:
    """Every table of the catalog, read anew once a look is too old; a manifest is read once only."""

    catalog: Catalog
    outside: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The locations that a table names and that lie in none of its own folders, by the table's UUID."""
    _readers: dict[str, Reader] = field(default_factory=dict)
    _last: tuple[float, Locations] | None = None

    def look(self) -> Locations:
        """Loads every table and reads what it names, unless that was done a moment ago.

        If the last look is less than FRESH_SECONDS old, the same object is returned. A table that can't be read is in
        the result's ``unknown``. Raises what the catalog raises where it can't be listed.
        """
        if self._last is None or time.monotonic() - self._last[0] >= FRESH_SECONDS:
            self._last = time.monotonic(), self._look()
        return self._last[1]

    def named_by_others(self, uuid: str) -> set[str]:
        """Returns the locations that each other table names outside its own folders."""
        return {location for other, found in self.outside.items() if other != uuid for location in found}

    def _look(self) -> Locations:
        tables: dict[Identifier, Located] = {}
        unknown: dict[Identifier, str] = {}
        left = list(identifiers(self.catalog))
        for _ in range(TRIES):
            unknown.clear()
            for identifier in left:
                try:
                    self._look_at(identifier, tables)
                except Exception as error:  # catalogs and storages have errors of their own, of one table or of all
                    unknown[identifier] = f"{type(error).__name__}: {error}"
            left = list(unknown)
        return Locations(list(tables.values()), {".".join(name): why for name, why in unknown.items()})

    def _look_at(self, identifier: Identifier, tables: dict[Identifier, Located]) -> None:
        """Notes where the table lies, then reads its manifests: they may be what can't be read."""
        if table := self._load(identifier):
            tables[identifier] = located_here(".".join(identifier), table)
            self._read(table, tables[identifier])

    def _load(self, identifier: Identifier) -> Table | None:
        """Loads a table; None if it was dropped since it was listed, or is no Iceberg table."""
        try:
            return self.catalog.load_table(identifier)
        except NoSuchIcebergTableError:
            return None
        except NoSuchTableError:  # what REST servers also answer for a metadata file that is missing
            if self._is_listed(identifier):
                raise
            return None

    def _is_listed(self, identifier: Identifier) -> bool:
        try:
            return identifier in self.catalog.list_tables(identifier[:-1])
        except NoSuchNamespaceError:
            return False

    def _read(self, table: Table, where: Located) -> None:
        outside = self.outside[where.uuid]

        def note(location: str) -> None:
            if is_apart(location) or all(where.holds(without_links(place)) for place in meanings(location)):
                return
            outside.add(location)

        reader = self._readers.setdefault(where.uuid, Reader(table.io, note))
        reader.io, reader.found = table.io, note
        reader.read(table.metadata_location, table.metadata)
