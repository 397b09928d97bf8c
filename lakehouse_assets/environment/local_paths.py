"""Converts local paths to locations and back, and recognises a moved home."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from lakehouse_assets.environment.env_reader import SettingsError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

FILE_URL = re.compile(r"(?:(?i:file):(?://(?:localhost)?(?=/)|(?!//)))?(/.*)", re.DOTALL)
"""An absolute path, or its URL without another host."""
OF_A_HOME = ("catalog.db", "dagster")
"""What a used home contains."""


def location_of(path: Path) -> str:
    """Returns a path's location: its URL if that encodes nothing, else the path.

    In a URL, PyIceberg and Hadoop decode no ``%20``, but other readers do; and PyIceberg ends a URL, but not a path, at
    ``#`` or ``?``. So for ``/My Projects #1``, only the path means the same folder to all readers.
    """
    url = path.as_uri()
    return url if url == f"file://{path}" else str(path)


def path_of(location: str) -> Path | None:
    """Returns a location's path, undecoded; None if it is not on this machine."""
    found = FILE_URL.fullmatch(location)
    return Path(found[1]) if found else None


def folder_of(home: Path, name: str) -> Path:
    """Returns a home's folder for the warehouse or staged files.

    Older versions wrote ``My Projects`` as ``My%20Projects``. A used home keeps that folder: its tables' metadata names
    the files there.
    """
    own, encoded = home / name, Path(home.as_uri().removeprefix("file://"), name)
    in_use = any((home / file).exists() for file in OF_A_HOME)
    return encoded if encoded != own and in_use and not own.exists() and encoded.is_dir() else own


def refuse_moved(catalog: Catalog) -> None:
    """Raises SettingsError if the warehouse was moved: a table's metadata file is only in the present one.

    Looks at no file if the warehouse was not moved.
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
    """Returns the warehouse before the move; None unless the present one has the file at the same place."""
    # The old warehouse is a folder of the same name above the file.
    folders = (folder for folder in file.parents if folder.name == warehouse.name)
    return next((folder for folder in folders if (warehouse / file.relative_to(folder)).is_file()), None)


def _message(old: Path, new: Path) -> str:
    if not old.parent.exists():  # the whole home was moved
        old, new = old.parent, new.parent
    link = f"ln -s {shlex.quote(str(new))} {shlex.quote(str(old))}"
    return (
        f"{new} was moved: Iceberg's metadata has absolute paths, and the catalog's tables still refer to files in "
        f"{old}. Move {new} back, or create a link in its old place: "
        + (link if old.parent.exists() else f"mkdir -p {shlex.quote(str(old.parent))} && {link}")
    )
