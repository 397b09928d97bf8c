"""Opens the table of a declaration, or creates it if no rows are lost.

A lost catalog must not look like an empty lake.
"""

from __future__ import annotations

import logging
import re
import shlex
import sys
from contextlib import suppress

from pyarrow.fs import FileInfo, FileSelector, FileType
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, ValidationError
from pyiceberg.io import FileIO
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.commit.fork import FORK_NAME, is_fork
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.file_io import ClosingFileIO
from lakehouse_assets.environment.settings import read_home
from lakehouse_assets.errors import PublishRefused

logger = logging.getLogger(__name__)

# hash clusters rows by partition before the write, so that a writer keeps one file open, not one for each partition.
# Iceberg's default for sorted tables, range, samples first, which would compute the step twice. zstd is what Iceberg's
# own library sets on tables that it creates; without it writers use gzip, which is slower
# (https://iceberg.apache.org/docs/latest/configuration/#write-properties). The metadata log forgets older files, and
# the collector finds them; write.metadata.delete-after-commit.enabled stays off: only the collector deletes files.
DEFAULTS = {
    "write.distribution-mode": "hash",
    "write.parquet.compression-codec": "zstd",
    "format-version": "2",
    "write.metadata.previous-versions-max": "100",
}


def open_target(catalog: Catalog, table: Table) -> IcebergTable:
    """Loads the declared table; creates it if it is missing.

    Raises PublishRefused if it would be created over the rows of a table that the catalog has lost.
    """
    with suppress(NoSuchTableError):
        return catalog.load_table(table.identifier)
    namespace = table.identifier.rpartition(".")[0]
    try:
        catalog.create_namespace(namespace)
    except Exception:  # it exists; if another run creates it now, a SQL catalog breaks its own constraint
        if not catalog.namespace_exists(namespace):
            raise
    if refused := refusal(catalog, table):
        with suppress(NoSuchTableError):
            return catalog.load_table(table.identifier)  # another run has created it, and published, since
        raise PublishRefused(refused)
    return catalog.create_table_if_not_exists(
        table.identifier,
        schema=table.schema,
        partition_spec=table.spec,
        sort_order=table.order,
        properties={**DEFAULTS, **table.all_properties},
    )


def refusal(catalog: Catalog, table: Table) -> str | None:
    """Returns why the table can't be created at its location, if another table is there.

    Only metadata with a snapshot counts: it has rows. A failed creation leaves metadata without one, failed runs leave
    forks. Works for SQL and Glue catalogs, whose clients choose a location; None for others. Raises OSError if the
    location can't be read.
    """
    location = _location(catalog, table)
    if location is None:
        return None
    # Properties may move the metadata folder: the location of a file without a name is the folder.
    folder = load_location_provider(location, dict(table.properties)).new_metadata_location("").rstrip("/")
    newest = _newest(ClosingFileIO(catalog.properties), folder)
    if newest is None:
        return None
    register = (
        "from lakehouse_assets.environment.catalog import load_lake; "
        "from lakehouse_assets.environment.settings import read_settings; "
        f"load_lake(read_settings()).register_table({table.identifier!r}, {newest!r})"
    )
    home = f"LAKEHOUSE_HOME={shlex.quote(str(read_home()))}"
    command = f"{home} {shlex.quote(sys.executable)} -c {shlex.quote(register)}"
    return (
        f"table {table.identifier}: the catalog {catalog.name!r} has no such table, but {location}, where it would be "
        f"created, contains the metadata of a table with rows; the newest is {newest}. No table was created or "
        "changed. If the catalog was lost, or these files belong to another catalog, restore it, or register these "
        f"files with {command}. If the table was dropped on purpose, delete {location}, or move it away. Then "
        "materialize again"
    )


def _location(catalog: Catalog, table: Table) -> str | None:
    """Returns where the catalog's client would create the table; None if it does not choose."""
    if not isinstance(catalog, MetastoreCatalog):
        return None
    namespace, _, name = table.identifier.rpartition(".")
    # NoSuchNamespaceError: only `lakehouse plan` asks before the namespace is created. ValueError: there is no
    # warehouse, so S3 Tables under Glue chooses the location, or create_table complains.
    with suppress(NoSuchNamespaceError, ValueError):
        return catalog._resolve_table_location(None, namespace, name)
    return None


def _newest(io: ClosingFileIO, folder: str) -> str | None:
    """Returns the newest metadata file of a table with a snapshot, if any; forks don't count."""
    scheme, netloc, path = io.parse_location(folder, io.properties)
    listed = io.fs_by_scheme(scheme, netloc).get_file_info(FileSelector(path, allow_not_found=True))
    for file in sorted(filter(_is_metadata, listed), key=_recency, reverse=True):
        location = f"{folder}/{file.base_name}"
        metadata = _read(io, location)
        # Workers' commits to a fork have usual names; only their log names the fork base.
        if metadata and metadata.snapshots and not is_fork(entry.metadata_file for entry in metadata.metadata_log):
            return location
    return None


def _is_metadata(file: FileInfo) -> bool:
    # Not only at the end: compressed metadata may end with .metadata.json.gz.
    return file.type is FileType.File and ".metadata.json" in file.base_name and FORK_NAME not in file.base_name


def _recency(file: FileInfo) -> tuple[int, int]:
    """Returns the version (12 in 00012-… or v12.…), then the time: copied files have new times."""
    version = re.match(r"v?(\d+)", file.base_name)
    return int(version[1]) if version else -1, file.mtime_ns or 0


def _read(io: FileIO, location: str) -> TableMetadata | None:
    try:
        return FromInputFile.table_metadata(io.new_input(location))
    except (ValueError, ValidationError) as error:  # incomplete, or no metadata: it could not be registered
        logger.warning("ignoring %s, which can't be read as a table's metadata: %s", location, error)
        return None
