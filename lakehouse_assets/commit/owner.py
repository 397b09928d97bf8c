"""The owner mark: a small file in a table's folder that says which catalog has the table, for all others to see.

Runs read it; the collector and the job lakehouse_take_over write it. What lineage shows by itself is in collect/.
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
"""The folder below the table's location, wherever its properties put its metadata: whoever has the table finds it
there. Readers of the folder look for ``*.metadata.json`` only."""
TAKE_OVER = "lakehouse_take_over"
"""The job by which a person says that this catalog has a table."""


@dataclass(frozen=True)
class OwnerMark(Durable):
    """Says which catalog has a table."""

    catalog: str
    """The catalog, as catalog_text() describes it."""
    uuid: str
    """The table's UUID."""
    metadata_location: str
    """The metadata file that the catalog named when the mark was written."""
    settled_ms: int = 0
    """When a person decided that no other catalog has the table any more, by the storage's clock; 0 if nobody did."""

    @classmethod
    def of(cls, table: Table, settled_ms: int = 0) -> OwnerMark:
        """Makes the mark that names the catalog that the table was loaded from.

        settled_ms: when a person decided that no other catalog has the table, by the storage's clock; 0: nobody did.
        """
        uuid = str(table.metadata.table_uuid)
        return cls(catalog_text(table.catalog), uuid, table.metadata_location, settled_ms)


def catalog_text(catalog: Catalog) -> str:
    """Describes where a catalog is, without users and passwords; two different catalogs have different texts."""
    if "pyiceberg.catalog.glue" in sys.modules:  # a catalog that is one has imported it; it needs boto3, an extra
        from pyiceberg.catalog.glue import GlueCatalog

        if isinstance(catalog, GlueCatalog):  # whose region may come from the environment, or a profile
            account = f"{catalog.properties['glue.id']} " if "glue.id" in catalog.properties else ""
            return f"glue {account}in {catalog.glue.meta.endpoint_url}"
    kind, _ = catalog_type(catalog.properties)
    url = urlsplit(catalog.properties["uri"])
    if url.scheme.startswith("sqlite"):
        from sqlalchemy import make_url

        return f"{catalog.name} in {os.path.realpath(make_url(catalog.properties['uri']).database or '')}"
    host = url.netloc.rpartition("@")[2]
    warehouse = f", warehouse {catalog.properties.get('warehouse')}" if kind == "rest" else ""
    return f"{catalog.name} in {url.scheme.partition('+')[0]}://{host}{url.path.rstrip('/')}{warehouse}"


def mark_location(table_location: str) -> str:
    """Returns where the mark of a table at that location lies."""
    return f"{table_location.rstrip('/')}/{FOLDER}/{NAME}"


def read_mark(table: Table) -> OwnerMark | None:
    """Reads the mark in the table's folder; None where there is none, and for one that is torn or of an earlier table.

    Raises OSError where the storage can't be read.
    """
    found = read_json(table.io, mark_location(table.location()), OwnerMark.from_json)
    return found if found and found.uuid == str(table.metadata.table_uuid) else None


def write_mark(table: Table, mark: OwnerMark) -> None:
    """Replaces the mark in the table's folder, whole or not at all.

    Raises UnknownStorage, and the errors of the storage.
    """
    folder, _, name = mark_location(table.location()).rpartition("/")
    properties = {**table.catalog.properties, **table.io.properties}
    objects_at(properties, place_of(folder)).write(name, mark.to_json().encode())


def other_owner(table: Table, mark: OwnerMark | None) -> str | None:
    """Returns the message about a table that another catalog has, by the table's mark; None if no other has it."""
    if mark is None or mark.catalog == catalog_text(table.catalog):
        return None
    return (
        f"table {'.'.join(table.name())}: {mark_location(table.location())} says that another catalog has it, "
        f"{mark.catalog}; this one is {catalog_text(table.catalog)}. Two catalogs that write one table know nothing of "
        "each other's rows, and may take each other's files. Work with the other one, or drop the table there, without "
        f"its files, and take it over by the job {TAKE_OVER}"
    )
