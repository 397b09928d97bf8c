"""The target: the Iceberg table of a declaration, loaded if it is there, created if it is missing.

Rows and snapshots are not made here. What becomes of differences between the two is in evolution.py.
"""

from __future__ import annotations

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table as IcebergTable

from lakehouse_assets.declare.table import Table
from lakehouse_assets.declare.tuning import metrics_of_new
from lakehouse_assets.errors import PublishRefused

# hash clusters rows by partition before the write, so that a writer keeps one file open, not one for each partition.
# Iceberg's default for sorted tables, range, would compute the step twice, because it samples first.
# zstd is what Iceberg's own library gives a table that it creates; without the property its writers still use gzip
# (https://iceberg.apache.org/docs/latest/configuration/#write-properties), which is written and read more slowly.
# The metadata log forgets older metadata files, and the collector finds them. That a commit deletes them itself
# (write.metadata.delete-after-commit.enabled) stays off: nothing but the collector deletes a file.
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
    try:
        return catalog.load_table(table.identifier)
    except NoSuchTableError:
        return _create(catalog, table)


def _create(catalog: Catalog, table: Table) -> IcebergTable:
    from lakehouse_assets.commit.remains import refusal  # imports PyArrow, for half a second

    namespace = table.identifier.rpartition(".")[0]
    try:
        catalog.create_namespace(namespace)
    except Exception:  # it exists; if another run creates it now, a SQL catalog breaks its own constraint
        if not catalog.namespace_exists(namespace):
            raise
    if refused := refusal(catalog, table):
        try:
            return catalog.load_table(table.identifier)  # another run has created it, and published, since
        except NoSuchTableError:
            raise PublishRefused(refused) from None
    return catalog.create_table_if_not_exists(
        table.identifier,
        schema=table.schema,
        partition_spec=table.spec,
        sort_order=table.order,
        properties={**DEFAULTS, **metrics_of_new(table), **table.all_properties},
    )
