"""Local paths as locations and back, and the message for a home that was moved."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from lakehouse_assets.environment.env_reader import SettingsError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

FILE_URL = re.compile(r"(?:(?i:file):(?://(?:localhost)?(?=/)|(?!//)))?(/.*)", re.DOTALL)
"""A path of this machine, or its URL; one of another host is no place here."""
OF_A_HOME = ("catalog.db", "dagster")
"""What a home that has been used holds itself."""


def location_of(path: Path) -> str:
    """Returns the location of an absolute path: its URL if that has nothing to percent-encode, else the path itself.

    PyIceberg and Hadoop decode no ``%20``; other readers do. PyIceberg ends a URL, but not a plain path, at ``#`` or
    ``?``. So the plain path is the one spelling of ``/My Projects #1`` that all of them take for the same folder.
    """
    url = path.as_uri()
    return url if url == f"file://{path}" else str(path)


def path_of(location: str) -> Path | None:
    """Returns the path that a location names, undecoded; None if it is not on this machine."""
    found = FILE_URL.fullmatch(location)
    return Path(found[1]) if found else None


def folder_of(home: Path, name: str) -> Path:
    """Returns the folder for the warehouse or for staged files of a home.

    Older versions put that of a home in ``My Projects`` into ``My%20Projects``. A home in use that has it there
    keeps it there, because the tables' metadata names its files.
    """
    own, encoded = home / name, Path(home.as_uri().removeprefix("file://"), name)
    in_use = any((home / file).exists() for file in OF_A_HOME)
    return encoded if encoded != own and in_use and not own.exists() and encoded.is_dir() else own


def refuse_moved(catalog: Catalog) -> None:
    """Raises SettingsError if a table's recorded metadata file is missing, but is in the warehouse as it is now.

    In a warehouse that was not moved, no file is looked at.
    """
    from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
    from sqlalchemy import select

    assert isinstance(catalog, SqlCatalog)
    warehouse = path_of(catalog.properties.get("warehouse", ""))
    if warehouse is None:
        return
    elsewhere = ~IcebergTables.metadata_location.startswith(f"{location_of(warehouse)}/", autoescape=True)
    asked = select(IcebergTables.metadata_location).where(IcebergTables.catalog_name == catalog.name, elsewhere)
    with catalog.engine.connect() as connection:
        recorded = [path_of(location or "") for location in connection.scalars(asked)]
    for file in filter(None, recorded):
        if (old := _warehouse_of(file, warehouse)) and not file.exists():
            raise SettingsError(_message(old, warehouse))


def _warehouse_of(file: Path, warehouse: Path) -> Path | None:
    """Returns the folder below which a file was, at the same relative path at which the warehouse has it now."""
    folders = (folder for folder in file.parents if folder.name == warehouse.name)
    return next((folder for folder in folders if (warehouse / file.relative_to(folder)).is_file()), None)


def _message(old: Path, new: Path) -> str:
    if not old.parent.exists():  # the whole home was moved
        old, new = old.parent, new.parent
    link = f"ln -s {shlex.quote(str(new))} {shlex.quote(str(old))}"
    return (
        f"{new} was moved: the catalog's tables name their files in {old}, where they no longer are. Iceberg's "
        f"metadata has absolute paths. Either move {new} back, or make a link in its old place: "
        + (link if old.parent.exists() else f"mkdir -p {shlex.quote(str(old.parent))} && {link}")
    )
