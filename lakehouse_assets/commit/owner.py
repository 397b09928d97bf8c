"""The owner mark: a file in a table's folder that names its catalog.

Two catalogs with one table don't see each other's commits, and may remove each other's files.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lakehouse_assets.environment.catalog_in_spark import catalog_type
from lakehouse_assets.storage.objects import objects_at
from lakehouse_assets.storage.place import place_of
from lakehouse_assets.wire.receipts import read_json
from lakehouse_assets.wire.work import Durable

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

NAME = "lakehouse-owner.json"
FOLDER = "metadata"
"""Below the table's location, whatever its properties say, so that anyone with the table finds it."""
TAKE_OVER = "lakehouse_take_over"
"""The job that claims a table for this catalog."""


@dataclass(frozen=True)
class OwnerMark(Durable):
    """The catalog that has a table."""

    catalog: str
    """As catalog_text() describes it."""
    uuid: str
    metadata_location: str
    """The table's metadata file when the mark was written."""
    settled_ms: int = 0
    """When a person decided that no other catalog has the table, by the storage's clock; 0 if never."""

    @classmethod
    def of(cls, table: Table, settled_ms: int = 0) -> OwnerMark:
        """Makes the mark of the table's catalog."""
        uuid = str(table.metadata.table_uuid)
        return cls(catalog_text(table.catalog), uuid, table.metadata_location, settled_ms)


def catalog_text(catalog: Catalog) -> str:
    """Identifies a catalog, without users and passwords."""
    if "pyiceberg.catalog.glue" in sys.modules:  # else no catalog is Glue; importing it needs boto3, an extra
        from pyiceberg.catalog.glue import GlueCatalog

        if isinstance(catalog, GlueCatalog):  # by its URL: the region may be in no property
            account = f"{catalog.properties['glue.id']} " if "glue.id" in catalog.properties else ""
            return f"glue {account}in {catalog.glue.meta.endpoint_url}"
    kind, _ = catalog_type(catalog.properties)
    url = urlsplit(catalog.properties["uri"])
    if url.scheme.startswith("sqlite"):
        from sqlalchemy import make_url

        # By its real path: two links to one database are one catalog.
        return f"{catalog.name} in {os.path.realpath(make_url(catalog.properties['uri']).database or '')}"
    host = url.netloc.rpartition("@")[2]
    warehouse = f", warehouse {catalog.properties.get('warehouse')}" if kind == "rest" else ""
    # Without the driver, as in postgresql+psycopg2.
    return f"{catalog.name} in {url.scheme.partition('+')[0]}://{host}{url.path.rstrip('/')}{warehouse}"


def mark_location(table_location: str) -> str:
    """Returns the location of a table's mark."""
    return f"{table_location.rstrip('/')}/{FOLDER}/{NAME}"


def read_mark(table: Table) -> OwnerMark | None:
    """Reads the mark; None if missing, torn or of an earlier table. Raises OSError if the storage fails."""
    found = read_json(table.io, mark_location(table.location()), OwnerMark.from_json)
    return found if found and found.uuid == str(table.metadata.table_uuid) else None


def write_mark(table: Table, mark: OwnerMark) -> None:
    """Replaces the mark atomically. Raises UnknownStorage and storage errors."""
    folder, _, name = mark_location(table.location()).rpartition("/")
    properties = {**table.catalog.properties, **table.io.properties}
    objects_at(properties, place_of(folder)).write(name, mark.to_json().encode())


def other_owner(table: Table, mark: OwnerMark | None) -> str | None:
    """Returns the error text if the mark names another catalog."""
    if mark is None or mark.catalog == catalog_text(table.catalog):
        return None
    return (
        f"table {'.'.join(table.name())}: {mark_location(table.location())} says that the table belongs to another "
        f"catalog, {mark.catalog}; this one is {catalog_text(table.catalog)}. Two catalogs that write the same table "
        "don't see each other's rows, and may remove each other's files. Use the other catalog, or drop the table "
        f"from it without its files and take it over with the job {TAKE_OVER}"
    )
