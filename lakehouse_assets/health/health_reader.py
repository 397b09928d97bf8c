"""Reads the health of declared tables for Dagster: from the catalog, with the summaries that are kept below staging.

What a look is, is in look.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import dagster as dg
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, ValidationError
from pyiceberg.table import Table as IcebergTable

from lakehouse_assets.collect.pass_report import LOOK, LastLook, notes
from lakehouse_assets.declare.table import Table
from lakehouse_assets.errors import UnreadableMetadata
from lakehouse_assets.health.health import TableHealth
from lakehouse_assets.health.look import look
from lakehouse_assets.health.partition_names import keys_of
from lakehouse_assets.health.summary_cache import SummaryCache
from lakehouse_assets.run.resource import Lakehouse


def summary_cache(lakehouse: Lakehouse) -> SummaryCache:
    """Returns the cache of all tables' summaries, beside the receipts.

    No table is named ``health``: identifiers have a dot.
    """
    return SummaryCache(lakehouse.staging_io(), f"{lakehouse.settings.staging}/health")


@dataclass(frozen=True)
class HealthReader:
    """Reads tables from a catalog, and their health."""

    catalog: Catalog
    cache: SummaryCache
    instance: dg.DagsterInstance
    """The instance that knows the keys of dynamic partitions."""
    staging: str
    """The value of LAKEHOUSE_STAGING."""

    @classmethod
    def of(cls, lakehouse: Lakehouse, catalog: Catalog, instance: dg.DagsterInstance) -> HealthReader:
        """Makes a reader with the cache and the staging prefix that the environment names."""
        return cls(catalog, summary_cache(lakehouse), instance, lakehouse.settings.staging)

    def load(self, table: Table) -> IcebergTable | None:
        """Loads the table as it is now; None if it has not been created.

        Raises UnreadableMetadata for a metadata.json that is torn or foreign, and what catalogs raise.
        """
        try:
            return self.catalog.load_table(table.identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except (ValidationError, ValueError) as error:
            reason = " ".join(str(error).split("\n")[:2])
            raise UnreadableMetadata(
                f"table {table.identifier}: the metadata.json that the catalog points to is torn or foreign: {reason}. "
                "Restore it, or register the table with an earlier one"
            ) from error

    def health(self, table: Table, loaded: IcebergTable, deadline: float | None = None) -> TableHealth:
        """Returns the table's health, with partitions named by Dagster keys. Raises what look() raises."""
        health = look(loaded, self.cache, keys_of(table, loaded.metadata, self.instance), deadline)
        return replace(health, collected=LastLook.read(self.cache.io, notes(self.staging, health.uuid, LOOK)))
