"""Finds tables that share a folder, or name files outside their own folders (``add_files``).

If tables share a folder, nobody can tell who owns a file.
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

from lakehouse_assets.maintenance.collect.needed import Reader, folder_without_links, without_links
from lakehouse_assets.storage.place import Place, aliases, is_elsewhere

FRESH_SECONDS = 300.0
"""One look serves all tables collected within this time. A file that another table begins to name meanwhile may be
removed."""
TRIES = 2
"""Of each table: an error may be temporary."""


@dataclass(frozen=True)
class Located:
    """A table and its folders."""

    identifier: str
    uuid: str
    roots: tuple[Place, ...]
    """Without links; no folder lies within another."""

    @classmethod
    def of(cls, identifier: str, table: Table, *, skip_elsewhere: bool = False) -> Located:
        """Returns a table's folders. Raises UnknownStorage. skip_elsewhere: omit storages that can't be collected."""
        named = [
            table.location(),
            table.properties.get(TableProperties.WRITE_DATA_PATH),
            table.properties.get(TableProperties.WRITE_METADATA_PATH),
        ]
        paths = [path for path in named if path and not (skip_elsewhere and is_elsewhere(path))]
        return cls(identifier, str(table.metadata.table_uuid), _outermost(paths))

    def holds(self, place: Place) -> bool:
        """Whether the place is in one of the table's folders."""
        return any(place.is_within(root) for root in self.roots)


def _outermost(paths: Iterable[str]) -> tuple[Place, ...]:
    places = {place for path in paths for place in aliases(path)}
    folders = {folder_without_links(Place(place.kind, place.bucket, place.key.rstrip("/"))) for place in places}
    found: list[Place] = []
    # A folder's key is shorter than the keys of those inside it.
    for folder in sorted(folders, key=lambda place: len(place.key)):
        if not any(folder.is_within(root) for root in found):
            found.append(folder)
    return tuple(found)


@dataclass(frozen=True)
class Locations:
    """All tables of the catalog."""

    tables: Sequence[Located]
    unknown: Mapping[str, str]
    """Why a table can't be read, by identifier."""

    def conflicts(self, table: Located, staging: Place, exclusive_prefix: Place | None) -> list[str]:
        """Returns why no file of the table can be judged.

        An unreadable table may name any file, so it blocks all tables except those below ``exclusive_prefix``: a person
        knows that there, no table needs files in another's folder.
        """
        folder = folder_without_links(exclusive_prefix) if exclusive_prefix else None
        found = []
        if folder is None or not all(root.is_within(folder) for root in table.roots):
            found += [_unknown(name, why) for name, why in self.unknown.items() if name != table.identifier]
        for other in self.tables:
            if other.identifier != table.identifier and (problem := _problem(table, other)):
                found.append(f"{problem}. Drop one of the two from the catalog, without its files, or move it")
        staged = folder_without_links(staging)
        if any(root.is_within(staged) or staged.is_within(root) for root in table.roots):
            found.append(f"{table.identifier} is inside {staging.location} (LAKEHOUSE_STAGING), or contains it")
        return found


def _unknown(name: str, why: str) -> str:
    return (
        f"{name} can't be read, so it is unknown which files it needs: {why}. Grant what is forbidden, restore what is "
        "missing or torn, or, if the table is lost for good, remove it from the catalog and leave its files alone. If "
        "you know that no table needs files in another table's folder, set LAKEHOUSE_EXCLUSIVE_PREFIX to their common "
        "prefix"
    )


def _problem(one: Located, other: Located) -> str | None:
    if one.uuid == other.uuid:
        return f"{one.identifier} and {other.identifier} are the same table, {one.uuid}, registered twice"
    for inner, outer in permutations((one, other)):
        for root, around in product(inner.roots, outer.roots):
            if root.is_within(around):
                there = f"{outer.identifier} at {around.location}"
                return f"{inner.identifier} at {root.location} is inside {there}"
    return None


@dataclass
class Neighbours:
    """Reads every table of the catalog, and each manifest once."""

    catalog: Catalog
    outside: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The locations that a table names outside its own folders, by its UUID."""
    _readers: dict[Located, Reader] = field(default_factory=dict)
    _last: tuple[float, Locations] | None = None

    def look(self) -> Locations:
        """Loads every table and reads what it names; returns the last object for FRESH_SECONDS.

        Unreadable tables are in ``unknown``, as is ``namespace.*`` if a namespace can't be listed. Raises the catalog's
        errors if it can't list namespaces.
        """
        if self._last is None or time.monotonic() - self._last[0] >= FRESH_SECONDS:
            self._last = time.monotonic(), self._look()
        return self._last[1]

    def named_by_others(self, uuid: str) -> set[str]:
        """Returns other tables' locations outside their folders."""
        return {location for other, found in self.outside.items() if other != uuid for location in found}

    def _look(self) -> Locations:
        tables: dict[Identifier, Located] = {}
        unknown: dict[Identifier, str] = {}
        left, unlisted = self._identifiers()
        for _ in range(TRIES):
            # Only errors of the last try count.
            unknown.clear()
            for identifier in left:
                try:
                    self._look_at(identifier, tables)
                except Exception as error:  # any error of catalogs and storages
                    unknown[identifier] = f"{type(error).__name__}: {error}"
            left = list(unknown)
        unknown |= unlisted
        return Locations(list(tables.values()), {".".join(name): why for name, why in unknown.items()})

    def _identifiers(self) -> tuple[list[Identifier], dict[Identifier, str]]:
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
            with suppress(NoSuchNamespaceError, BadRequestError):  # a catalog without nested namespaces
                left += self.catalog.list_namespaces(namespace)
        return found, unlisted

    def _look_at(self, identifier: Identifier, tables: dict[Identifier, Located]) -> None:
        """Notes a table's folders, then what it names. The folders count even if its manifests are unreadable."""
        if table := self._load(identifier):
            tables[identifier] = Located.of(".".join(identifier), table, skip_elsewhere=True)
            self._read(table, tables[identifier])

    def _load(self, identifier: Identifier) -> Table | None:
        """Returns None for a table that is gone, or not Iceberg's."""
        try:
            return self.catalog.load_table(identifier)
        except NoSuchIcebergTableError:
            return None
        except NoSuchTableError:  # REST servers also answer this if a metadata file is missing
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

        # A known reader skips manifests that it has read; its FileIO may have expired credentials.
        reader = self._readers.setdefault(where, Reader(table.io, note))
        reader.io, reader.found = table.io, note
        reader.read(table.metadata_location, table.metadata)
