"""Names an Iceberg partition for people, by its Dagster key where it has one, else by its path; finds the key's owner.

What a key owns is declare/region.py's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import dagster as dg
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record

from lakehouse_assets.commit.manifests import partition_paths
from lakehouse_assets.commit.schema_policy import ChangeKind, schema_changes
from lakehouse_assets.declare.region import Region
from lakehouse_assets.declare.table import Table
from lakehouse_assets.errors import DeclarationError, UnknownPartitions

Partition = tuple[int, tuple[Any, ...]]
"""A partition by its spec's id and its values."""
KeyOf = Callable[[Record], str | None]
"""Returns the Dagster key that owns a partition of the table's default spec; None where none does."""


class Name(NamedTuple):
    """The name of a partition."""

    text: str
    """The Dagster key, with the partition's path where several partitions have that key; without a key the path, or
    ``whole table`` where that is empty."""
    key: str | None
    """The Dagster key alone; None without one."""


def partition_names(metadata: TableMetadata, partitions: Sequence[Partition], key_of: KeyOf) -> dict[Partition, Name]:
    """Names each of the partitions."""
    keys = {(i, v): key_of(Record(*v)) if i == metadata.default_spec_id else None for i, v in partitions}
    shared = Counter(keys.values())
    path_of = partition_paths(metadata)
    names = {}
    for (spec_id, values), key in keys.items():
        if key and shared[key] == 1:
            names[spec_id, values] = Name(key, key)
            continue
        path = path_of((spec_id, Record(*values)))
        names[spec_id, values] = Name(f"{key} ({path})" if key else path or "whole table", key)
    return names


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
