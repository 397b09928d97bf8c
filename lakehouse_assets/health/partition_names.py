"""What people call an Iceberg partition: by its Dagster key where it has one, else by its path. Pure.
Which key owns it is partition_keys.py's."""

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
"""Spec id and values."""
KeyOf = Callable[[Record], str | None]
"""From a partition of the table's default spec to the Dagster key that owns it; None where none does."""


class Name(NamedTuple):
    """text: the Dagster key, with the partition's path where several have that key; without a key the path.
    key: the key alone, None without."""

    text: str
    key: str | None


def partition_names(metadata: TableMetadata, partitions: Sequence[Partition], key_of: KeyOf) -> dict[Partition, Name]:
    """A name for each."""
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
    """What gives a partition's path, its values where it has none; "" without partitions."""
    paths = {spec_id: _paths(metadata, spec) for spec_id, spec in metadata.specs().items()}

    def path_of(partition: Partition) -> str:
        spec_id, values = partition
        try:
            return paths[spec_id](values)
        except (ValueError, OverflowError):  # a date that Python's calendar lacks, such as in the year 10000
            return str(values)

    return path_of


def _paths(metadata: TableMetadata, spec: PartitionSpec) -> Callable[[tuple[Any, ...]], str]:
    """What ``spec.partition_to_path`` does, which finds the types of the fields again for each partition."""
    types = spec.partition_type(_schema_with_sources(metadata, spec)).fields
    parts = [
        (quote_plus(field.name, safe=""), partial(field.transform.to_human_string, found.field_type))
        for field, found in zip(spec.fields, types, strict=True)
    ]
    return lambda values: "/".join(
        f"{name}={quote_plus(text(value), safe='')}" for (name, text), value in zip(parts, values, strict=False)
    )


def _schema_with_sources(metadata: TableMetadata, spec: PartitionSpec) -> Schema:
    """The newest schema that has the columns of a spec: one of an old spec may have been dropped since."""
    schemas = [metadata.schema(), *reversed(metadata.schemas)]
    sources = [field.source_id for field in spec.fields]
    complete = (schema for schema in schemas if all(map(schema.find_column_name, sources)))
    return next(complete, metadata.schema())
