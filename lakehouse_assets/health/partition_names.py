"""Names an Iceberg partition for people: by its Dagster key where it has one, else by its path. Pure.

Which key owns it is partition_keys.py's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote_plus

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record

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
