"""Recognises a warehouse that was moved behind its catalog's back, and says how to go on.

Nothing is moved or rewritten here.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from lakehouse_assets.environment.env_reader import SettingsError
from lakehouse_assets.environment.local_paths import location_of, path_of

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


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
