"""Finds the folders of the catalog's tables, and the tables that lie so that nobody can tell whose file a file is.

They are loaded in neighbours.py. Tables that nobody declared count as well: their files are just as live.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import BadRequestError, NoSuchNamespaceError
from pyiceberg.table import Table, TableProperties
from pyiceberg.typedef import Identifier

from lakehouse_assets.collect.links import folder_without_links
from lakehouse_assets.storage.place import Place, is_apart, meanings


@dataclass(frozen=True)
class Located:
    """A table and its folders."""

    identifier: str
    uuid: str
    roots: tuple[Place, ...]
    """The folders that its files are written to, without links; none of them lies within another."""

    def holds(self, place: Place) -> bool:
        """Tells whether the place is one of the table's folders or lies in one."""
        return any(place.is_within(root) for root in self.roots)


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
        identifier = table.identifier
        found = [] if _is_unshared(table, unshared) else [_unknown(*of) for of in self._others_unknown(identifier)]
        others = (other for other in self.tables if other.identifier != identifier)
        found += [
            f"{problem}. Drop one of the two from the catalog, without its files, or move it"
            for one, other, problem in _problems([table, *others])
            if identifier in (one, other)
        ]
        if any(_overlap(root, folder_without_links(staging)) for root in table.roots):
            found.append(f"{identifier} lies in {staging.location}, LAKEHOUSE_STAGING, or around it")
        return found

    def _others_unknown(self, identifier: str) -> Iterator[tuple[str, str]]:
        return ((name, why) for name, why in self.unknown.items() if name != identifier)


def _is_unshared(table: Located, unshared: Place | None) -> bool:
    if unshared is None:
        return False
    folder = folder_without_links(unshared)
    return all(root.is_within(folder) for root in table.roots)


def _unknown(name: str, why: str) -> str:
    return (
        f"{name} can't be read, so nobody knows which files it needs: {why}. Grant what is forbidden, restore what is "
        "missing or torn, or, if the table is lost for good, take it out of the catalog and leave its files alone. "
        "Where you know that no table needs files in another one's folder, let LAKEHOUSE_UNSHARED be that prefix"
    )


def located(identifier: str, table: Table) -> Located:
    """Returns the folders of a loaded table. Raises UnknownStorage."""
    return _located(identifier, table, _paths(table))


def located_here(identifier: str, table: Table) -> Located:
    """Returns the folders of a loaded table that may lie in the way of collected tables. Raises UnknownStorage.

    Folders in storages that no collected table can lie in are left out.
    """
    return _located(identifier, table, [path for path in _paths(table) if not is_apart(path)])


def _located(identifier: str, table: Table, paths: Iterable[str]) -> Located:
    return Located(identifier, str(table.metadata.table_uuid), _outermost(_folders(paths)))


def _paths(table: Table) -> list[str]:
    named = (
        table.properties.get(name) for name in (TableProperties.WRITE_DATA_PATH, TableProperties.WRITE_METADATA_PATH)
    )
    return [table.location(), *filter(None, named)]


def _folders(texts: Iterable[str]) -> set[Place]:
    return {folder_without_links(_without_slash(place)) for text in texts for place in meanings(text)}


def _without_slash(place: Place) -> Place:
    return Place(place.kind, place.bucket, place.key.rstrip("/"))


def _outermost(folders: Iterable[Place]) -> tuple[Place, ...]:
    found: list[Place] = []
    for folder in sorted(folders, key=lambda place: len(place.key)):
        if not any(folder.is_within(root) for root in found):
            found.append(folder)
    return tuple(found)


def identifiers(catalog: Catalog) -> Iterator[Identifier]:
    """Returns the identifier of every table, in nested namespaces as well."""
    open_namespaces = list(catalog.list_namespaces())
    seen: set[Identifier] = set()
    while open_namespaces:
        namespace = open_namespaces.pop()
        if namespace in seen:
            continue
        seen.add(namespace)
        yield from catalog.list_tables(namespace)
        open_namespaces += [child for child in _children(catalog, namespace) if child not in seen]


def _children(catalog: Catalog, namespace: Identifier) -> list[Identifier]:
    """Returns the namespaces directly below; none where the catalog refuses the question.

    It refuses where it has no nested namespaces.
    """
    try:
        return catalog.list_namespaces(namespace)
    except (NoSuchNamespaceError, BadRequestError):
        return []


def _problems(tables: Sequence[Located]) -> Iterator[tuple[str, str, str]]:
    """Finds the pairs of tables that are in each other's way, each with a sentence that says how."""
    by_uuid: dict[str, list[Located]] = defaultdict(list)
    for table in tables:
        by_uuid[table.uuid].append(table)
    for uuid, same in by_uuid.items():
        for one, other in combinations(same, 2):
            names = f"{one.identifier} and {other.identifier}"
            yield one.identifier, other.identifier, f"{names} are one table, {uuid}, registered twice"
    yield from _overlaps(tables)


def _overlaps(tables: Sequence[Located]) -> Iterator[tuple[str, str, str]]:
    """Finds the folders of tables that lie within another table's.

    The folders are sorted by the parts of their paths, so that a folder comes right before what lies in it.
    """
    roots = sorted(
        ((_parts(root), table.identifier, root) for table in tables for root in table.roots), key=lambda r: r[:2]
    )
    around: list[tuple[str, Place]] = []
    for _, identifier, root in roots:
        around = [(name, outer) for name, outer in around if root.is_within(outer)]
        for name, outer in around:
            if name != identifier:
                yield name, identifier, f"{identifier} at {root.location} lies within {name} at {outer.location}"
        around.append((identifier, root))


def _parts(place: Place) -> tuple[str, ...]:
    return (place.kind, place.bucket, *place.key.split("/"))


def _overlap(one: Place, other: Place) -> bool:
    return one.is_within(other) or other.is_within(one)
