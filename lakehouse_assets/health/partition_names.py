"""Names an Iceberg partition for people, by its Dagster key where it has one, else by its path; finds the key's owner.

What a key owns is declare/region.py's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple
from urllib.parse import quote_plus

import dagster as dg
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record

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
        path = path_of((spec_id, values))
        names[spec_id, values] = Name(f"{key} ({path})" if key else path or "whole table", key)
    return names


def partition_paths(metadata: TableMetadata) -> Callable[[Partition], str]:
    """Returns a function that gives a partition's path: its values where it has none, "" without partitions."""
    paths = {spec_id: _paths(metadata, spec) for spec_id, spec in metadata.specs().items()}

    def path_of(partition: Partition) -> str:
        spec_id, values = partition
        try:
            return paths[spec_id](values)
        except (ValueError, OverflowError):  # a date that Python's calendar lacks, such as in the year 10000
            return str(values)

    return path_of


def _paths(metadata: TableMetadata, spec: PartitionSpec) -> Callable[[tuple[Any, ...]], str]:
    """Returns a function that does what ``spec.partition_to_path`` does.

    That one finds the types of the fields again for each partition.
    """
    types = spec.partition_type(_schema_with_sources(metadata, spec)).fields
    parts = [
        (quote_plus(field.name, safe=""), partial(field.transform.to_human_string, found.field_type))
        for field, found in zip(spec.fields, types, strict=True)
    ]
    return lambda values: "/".join(
        f"{name}={quote_plus(text(value), safe='')}" for (name, text), value in zip(parts, values, strict=False)
    )


def _schema_with_sources(metadata: TableMetadata, spec: PartitionSpec) -> Schema:
    """Returns the newest schema that has a spec's columns: a column of an old spec may have been dropped since.

    If no schema has them all, it is the current one.
    """
    schemas = [metadata.schema(), *reversed(metadata.schemas)]
    sources = [field.source_id for field in spec.fields]
    complete = (schema for schema in schemas if all(map(schema.find_column_name, sources)))
    return next(complete, metadata.schema())


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
