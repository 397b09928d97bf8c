"""Looks at all tables of the catalog: which lie in each other's way, and which name files outside their own folders.

Where tables share a folder, nobody can tell which of them owns a file. A table may also name files outside its folder
(``add_files``). Tables that nobody declared count as well: their files are just as live.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import permutations, product

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    BadRequestError,
    NoSuchIcebergTableError,
    NoSuchNamespaceError,
    NoSuchTableError,
)
from pyiceberg.table import Table, TableProperties
from pyiceberg.typedef import Identifier

from lakehouse_assets.collect.needed import Reader, folder_without_links, without_links
from lakehouse_assets.storage.place import Place, aliases, is_elsewhere

FRESH_SECONDS = 300.0
"""The seconds for which one look serves all tables that are collected. A file that another table begins to name within
this time may still go if nobody needed it for the whole grace, as it may while its own table is collected."""
TRIES = 2
"""The number of times that a table is tried: its error may have passed once all others were looked at."""


@dataclass(frozen=True)
class Located:
    """A table and its folders."""

    identifier: str
    uuid: str
    roots: tuple[Place, ...]
    """The folders that its files are written to, without links; none of them lies within another."""

    @classmethod
    def of(cls, identifier: str, table: Table, *, skip_elsewhere: bool = False) -> Located:
        """Returns the folders of a loaded table. Raises UnknownStorage.

        skip_elsewhere: leave out folders in storages that no collected table can lie in.
        """
        named = [
            table.location(),
            table.properties.get(TableProperties.WRITE_DATA_PATH),
            table.properties.get(TableProperties.WRITE_METADATA_PATH),
        ]
        paths = [path for path in named if path and not (skip_elsewhere and is_elsewhere(path))]
        return cls(identifier, str(table.metadata.table_uuid), _outermost(paths))

    def holds(self, place: Place) -> bool:
        """Tells whether the place is one of the table's folders or lies in one."""
        return any(place.is_within(root) for root in self.roots)


def _outermost(paths: Iterable[str]) -> tuple[Place, ...]:
    places = {place for path in paths for place in aliases(path)}
    folders = {folder_without_links(Place(place.kind, place.bucket, place.key.rstrip("/"))) for place in places}
    found: list[Place] = []
    for folder in sorted(folders, key=lambda place: len(place.key)):
        if not any(folder.is_within(root) for root in found):
            found.append(folder)
    return tuple(found)


@dataclass(frozen=True)
class Locations:
    """All tables of the catalog."""

    tables: Sequence[Located]
    """The tables that could be loaded."""
    unknown: Mapping[str, str]
    """The reason why nobody knows which files a table needs, or where it lies, by the table's identifier."""

    def conflicts(self, table: Located, staging: Place, unshared: Place | None) -> list[str]:
        """Returns the reasons why no file of the table can be judged, each with what to do; empty if there is none.

        table: as it is now, whatever is known of it here. staging: the prefix of what is no table's. unshared:
        LAKEHOUSE_UNSHARED. A table that can't be read may name any file: it keeps every other table from being
        collected, but for those that lie below LAKEHOUSE_UNSHARED.
        """
        folder = folder_without_links(unshared) if unshared else None
        found = []
        if folder is None or not all(root.is_within(folder) for root in table.roots):
            found += [_unknown(name, why) for name, why in self.unknown.items() if name != table.identifier]
        for other in self.tables:
            if other.identifier != table.identifier and (problem := _problem(table, other)):
                found.append(f"{problem}. Drop one of the two from the catalog, without its files, or move it")
        staged = folder_without_links(staging)
        if any(root.is_within(staged) or staged.is_within(root) for root in table.roots):
            found.append(f"{table.identifier} lies in {staging.location}, LAKEHOUSE_STAGING, or around it")
        return found


def _unknown(name: str, why: str) -> str:
    return (
        f"{name} can't be read, so nobody knows which files it needs: {why}. Grant what is forbidden, restore what is "
        "missing or torn, or, if the table is lost for good, take it out of the catalog and leave its files alone. "
        "Where you know that no table needs files in another one's folder, let LAKEHOUSE_UNSHARED be that prefix"
    )


def _problem(one: Located, other: Located) -> str | None:
    """Returns how two tables are in each other's way; None if they are not."""
    if one.uuid == other.uuid:
        return f"{one.identifier} and {other.identifier} are one table, {one.uuid}, registered twice"
    for inner, outer in permutations((one, other)):
        for root, around in product(inner.roots, outer.roots):
            if root.is_within(around):
                there = f"{outer.identifier} at {around.location}"
                return f"{inner.identifier} at {root.location} lies within {there}"
    return None


@dataclass
class Neighbours:
    """Every table of the catalog, read anew once a look is too old; a manifest is read once only."""

    catalog: Catalog
    outside: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The locations that a table names and that lie in none of its own folders, by the table's UUID."""
    _readers: dict[Located, Reader] = field(default_factory=dict)
    _last: tuple[float, Locations] | None = None

    def look(self) -> Locations:
        """Loads every table and reads what it names, unless that was done a moment ago.

        If the last look is less than FRESH_SECONDS old, the same object is returned. A table that can't be read is in
        the result's ``unknown``, as are the tables of a namespace that can't be listed: ``namespace.*``. Raises what
        the catalog raises where its namespaces can't be listed.
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
        left, unlisted = self._identifiers()
        for _ in range(TRIES):
            unknown.clear()
            for identifier in left:
                try:
                    self._look_at(identifier, tables)
                except Exception as error:  # catalogs and storages have errors of their own, of one table or of all
                    unknown[identifier] = f"{type(error).__name__}: {error}"
            left = list(unknown)
        unknown |= unlisted
        return Locations(list(tables.values()), {".".join(name): why for name, why in unknown.items()})

    def _identifiers(self) -> tuple[list[Identifier], dict[Identifier, str]]:
        """Returns the identifier of every table, in nested namespaces as well; and why namespaces can't be listed."""
        left, seen = list(self.catalog.list_namespaces()), set[Identifier]()
        found: list[Identifier] = []
        unlisted: dict[Identifier, str] = {}
        while left:
            namespace = left.pop()
            if namespace in seen:
                continue
            seen.add(namespace)
            try:
                found += self.catalog.list_tables(namespace)
            except Exception as error:  # a role may have no right to list the databases of others
                unlisted[*namespace, "*"] = f"{type(error).__name__}: {error}"
                continue
            with suppress(NoSuchNamespaceError, BadRequestError):  # of a catalog without nested namespaces
                left += self.catalog.list_namespaces(namespace)
        return found, unlisted

    def _look_at(self, identifier: Identifier, tables: dict[Identifier, Located]) -> None:
        """Notes where the table lies, then reads its manifests: they may be what can't be read."""
        if table := self._load(identifier):
            tables[identifier] = Located.of(".".join(identifier), table, skip_elsewhere=True)
            self._read(table, tables[identifier])

    def _load(self, identifier: Identifier) -> Table | None:
        """Loads a table; None if it was dropped since it was listed, or is no Iceberg table."""
        try:
            return self.catalog.load_table(identifier)
        except NoSuchIcebergTableError:
            return None
        except NoSuchTableError:  # what REST servers also answer for a metadata file that is missing
            with suppress(NoSuchNamespaceError):
                if identifier in self.catalog.list_tables(identifier[:-1]):
                    raise
            return None

    def _read(self, table: Table, where: Located) -> None:
        outside = self.outside[where.uuid]

        def note(location: str) -> None:
            if is_elsewhere(location) or all(where.holds(without_links(place)) for place in aliases(location)):
                return
            outside.add(location)

        reader = self._readers.setdefault(where, Reader(table.io, note))
        reader.io, reader.found = table.io, note
        reader.read(table.metadata_location, table.metadata)
