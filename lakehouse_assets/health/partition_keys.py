"""Finds which Dagster key of a declared table owns one of its Iceberg partitions.

What a key owns is declare/region.py's; what partitions are called is partition_names.py's.
"""

from __future__ import annotations

from functools import cache

import dagster as dg
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record

from lakehouse_assets.commit.schema_policy import ChangeKind, schema_changes
from lakehouse_assets.declare.region import Region
from lakehouse_assets.declare.table import Table
from lakehouse_assets.errors import DeclarationError, UnknownPartitions
from lakehouse_assets.health.partition_names import KeyOf


def keys_of(table: Table, metadata: TableMetadata, instance: dg.DagsterInstance) -> KeyOf:
    """Returns a function from a partition of the default spec to the declared table's key that owns it.

    The function returns None for all partitions of a table that is not partitioned as it is declared, whose keys only
    select what its step reads, or of which a dynamic key is no value of its column: the table's health must be known
    then too.

    instance: knows dynamic keys.
    """
    partitions = table.partitions
    if (
        partitions is None
        or not table.alignment.of_table
        or any(change.kind is ChangeKind.SPEC for change in schema_changes(table, metadata))
    ):
        return lambda _: None

    @cache  # made at the first partition only
    def region() -> Region | None:
        keys = partitions.get_partition_keys(dynamic_partitions_store=instance)
        try:
            return table.alignment.region(keys) if keys else None
        except (UnknownPartitions, DeclarationError):
            return None

    def key_of(partition: Record) -> str | None:
        owners = region()
        return owners.key_of(partition) if owners else None

    return key_of
