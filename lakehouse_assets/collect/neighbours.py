"""What other tables of the catalog name within a table's folders: files that were added to them by their paths.
Where tables lie is in locations.py; this reads their metadata and manifests."""

from __future__ import annotations

import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from gzip import BadGzipFile

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ForbiddenError, NoSuchPropertyException, NoSuchTableError, ValidationError
from pyiceberg.table import Table

from lakehouse_assets.collect.links import without_links
from lakehouse_assets.collect.locations import Located, Locations, identifiers, located
from lakehouse_assets.collect.reachable import Reader
from lakehouse_assets.errors import UnreadableMetadata
from lakehouse_assets.storage.place import meanings

UNREADABLE = (
    *(UnreadableMetadata, FileNotFoundError, ForbiddenError, NoSuchPropertyException),
    *(ValidationError, ValueError, EOFError, BadGzipFile, zlib.error),  # what is torn or foreign; also UnknownStorage
)
"""What is told of a single table, and stays so until a person sees to it. Other errors pass, or are of all tables."""


@dataclass
class Neighbours:
    """Every table of the catalog, read anew at each look; a manifest is read once only, however many tables are
    collected. outside: by table UUID, what the table names that lies in none of its own folders."""

    catalog: Catalog
    outside: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _readers: dict[str, Reader] = field(default_factory=dict)

    def look(self) -> Locations:
        """Load every table and read what it names.

        Raises OSError and what the catalog raises, but for what is UNREADABLE: they may pass until another try.
        """
        tables: list[Located] = []
        unknown: dict[str, str] = {}
        for identifier in identifiers(self.catalog):
            name = ".".join(identifier)
            try:
                tables.append(self._look_at(name, self.catalog.load_table(identifier)))
            except NoSuchTableError:  # dropped since it was listed
                continue
            except UNREADABLE as error:
                unknown[name] = f"{type(error).__name__}: {error}"
        return Locations(tables, unknown)

    def named_by_others(self, uuid: str) -> set[str]:
        """What all other tables name that lies in none of their own folders."""
        return {location for other, found in self.outside.items() if other != uuid for location in found}

    def _look_at(self, name: str, table: Table) -> Located:
        found = located(name, table)
        outside = self.outside[found.uuid]

        def note(location: str) -> None:
            if not all(found.holds(without_links(place)) for place in meanings(location)):
                outside.add(location)

        reader = self._readers.setdefault(found.uuid, Reader(table.io, note))
        reader.io, reader.found = table.io, note
        reader.read(table.metadata_location, table.metadata)
        return found
