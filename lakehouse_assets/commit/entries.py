"""Reads the live entries of manifests, each manifest once, and only of those that may hold given partitions.

Manifests never change; which of them are listed now is the caller's question.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile, PartitionFieldSummary
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record
from pyiceberg.types import IcebergType, PrimitiveType, UnknownType

from lakehouse_assets.commit.manifest_reader import read_manifests

Partition = tuple[int, Record]
"""The place of a file: the id of its partition spec, and its partition tuple."""


def partition_of(entry: ManifestEntry) -> Partition:
    """Returns the place of the entry's file."""
    return entry.data_file.spec_id, entry.data_file.partition


@dataclass
class Entries:
    """The live entries of the manifests that were read so far, by the manifest's path."""

    without_metrics: bool = False
    """Whether they are kept without the files' metrics, which take most of their memory."""
    _known: dict[str, list[ManifestEntry]] = field(default_factory=dict)

    def read(self, io: FileIO, manifests: Sequence[ManifestFile]) -> list[list[ManifestEntry]]:
        """Returns the entries of each of the manifests, and reads those that are new. Raises as read_manifests()."""
        new = [manifest for manifest in manifests if manifest.manifest_path not in self._known]
        for manifest, entries in read_manifests(io, new):
            self._known[manifest.manifest_path] = [*map(_slim, entries)] if self.without_metrics else entries
        return [self._known[manifest.manifest_path] for manifest in manifests]


def _slim(entry: ManifestEntry) -> ManifestEntry:
    file = entry.data_file
    slim = DataFile.from_args(content=file.content, file_path=file.file_path, partition=file.partition)
    slim.spec_id = file.spec_id
    return ManifestEntry.from_args(
        status=entry.status, snapshot_id=entry.snapshot_id, sequence_number=entry.sequence_number, data_file=slim
    )


def values_of(record: Record) -> tuple[Any, ...]:
    """Returns the values of a partition, which a Record does not iterate over."""
    return tuple(record[at] for at in range(len(record)))


def partition_paths(metadata: TableMetadata) -> Callable[[Partition], str]:
    """Returns a function that gives a partition's path: its values where it has none, "" without partitions."""
    specs = {spec_id: (spec, _schema_with_sources(metadata, spec)) for spec_id, spec in metadata.specs().items()}

    def path_of(partition: Partition) -> str:
        (spec, schema), values = specs[partition[0]], partition[1]
        try:
            return spec.partition_to_path(values, schema)
        except (ValueError, OverflowError):  # a date that Python's calendar lacks, such as in the year 10000
            return str(values_of(values))

    return path_of


def _schema_with_sources(metadata: TableMetadata, spec: PartitionSpec) -> Schema:
    """Returns the newest schema that has a spec's columns: a column of an old spec may have been dropped since.

    If no schema has them all, it is the current one.
    """
    schemas = [metadata.schema(), *reversed(metadata.schemas)]
    sources = [field.source_id for field in spec.fields]
    complete = (schema for schema in schemas if all(map(schema.find_column_name, sources)))
    return next(complete, metadata.schema())


class Partitions:
    """A filter that lets through manifests which may list a file of one of these partitions, by their summaries."""

    def __init__(self, metadata: TableMetadata, partitions: Iterable[Partition]) -> None:
        self._tuples: dict[int, list[Record]] = defaultdict(list)
        specs = metadata.specs()
        for spec_id, values in set(partitions):
            if spec_id in specs:
                self._tuples[spec_id].append(values)
        self._types = {
            spec_id: [field.field_type for field in specs[spec_id].partition_type(metadata.schema()).fields]
            for spec_id in self._tuples
        }

    def may_be_in(self, manifest: ManifestFile) -> bool:
        """Tells whether the manifest may list such a file; True where its summaries can't rule that out."""
        tuples = self._tuples.get(manifest.partition_spec_id)
        if not tuples:
            return False
        types, summaries = self._types[manifest.partition_spec_id], manifest.partitions or []
        if len(types) != len(summaries):
            return True
        ranges = [(s.contains_null, _bounds(s, kind)) for s, kind in zip(summaries, types, strict=True)]
        return any(all(_may_contain(*r, values[n]) for n, r in enumerate(ranges)) for values in tuples)


def _bounds(summary: PartitionFieldSummary, kind: IcebergType) -> tuple[Any, ...] | None:
    """Returns the least and the greatest value of a partition field that is neither null nor NaN, by a summary.

    It is empty where there are none; None where they can't be read, as those of a column that was dropped.
    """
    if not isinstance(kind, PrimitiveType) or isinstance(kind, UnknownType):
        return None
    low, high = summary.lower_bound, summary.upper_bound
    return () if low is None or high is None else (from_bytes(kind, low), from_bytes(kind, high))


def _may_contain(has_null: bool, bounds: tuple[Any, ...] | None, value: Any) -> bool:
    if value is None:
        return has_null
    if bounds is None or value != value:  # no bounds hold for NaN
        return True
    try:
        return bool(bounds and bounds[0] <= value <= bounds[1])
    except TypeError:  # the tuple holds it in another representation
        return True
