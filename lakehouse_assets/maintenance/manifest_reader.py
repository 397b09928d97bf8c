"""Reads which live files a manifest lists, without their column metrics: several times as fast as PyIceberg's reader.
What the files add up to is in summaries.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from json import loads
from struct import Struct
from typing import Any, NamedTuple

from pyiceberg.avro.decoder import BinaryDecoder, new_decoder
from pyiceberg.avro.reader import OptionReader, Reader
from pyiceberg.avro.resolver import construct_reader
from pyiceberg.manifest import DataFileContent, ManifestEntryStatus, ManifestFile
from pyiceberg.types import DoubleType, FloatType, ListType, MapType, NestedField, StructType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from lakehouse_assets.maintenance.manifest_files import AVRO_SCHEMA, open_manifest

Read = Callable[[BinaryDecoder], Any]

# Field ids: https://iceberg.apache.org/spec/#manifests
STATUS, SEQUENCE, DATA_FILE = 0, 3, 2
CONTENT, PARTITION, RECORD_COUNT, FILE_SIZE = 134, 102, 103, 104
WANTED = {STATUS: 0, SEQUENCE: 1, CONTENT: 2, PARTITION: 3, RECORD_COUNT: 4, FILE_SIZE: 5}
UNWANTED = len(WANTED)
"""The place in an entry where values go that nobody looks at."""


# PyIceberg's decoder rounds a double to a float.
FLOAT, DOUBLE = Struct("<f"), Struct("<d")


class LiveFile(NamedTuple):
    """A file that a manifest lists as added or existing. sequence: its data sequence number, the manifest's where the
    entry inherits it. size: in bytes."""

    content: DataFileContent
    partition: tuple[Any, ...]
    rows: int
    size: int
    sequence: int


def live_files(data: bytes, manifest: ManifestFile) -> Iterator[LiveFile]:
    """What ``manifest.fetch_manifest_entry(io, discard_deleted=True)`` finds, in its order. data: the manifest's file.

    Raises UnreadableMetadata for a torn or foreign manifest.
    """
    for status, sequence, content, partition, rows, size, _ in _entries(data, manifest):
        if status != ManifestEntryStatus.DELETED:
            inherited = manifest.sequence_number if sequence is None else sequence
            yield LiveFile(_CONTENTS[content or 0], partition, rows, size, inherited)


_CONTENTS = tuple(DataFileContent)  # by number: calling the enum for each entry takes four times as long


@dataclass(frozen=True)
class _Layout:
    """How entries of one Avro schema are read. leading: the fields up to the last one that is wanted, each with its
    place in the entry. rest: the fields after these."""

    leading: tuple[tuple[int, Read], ...]
    rest: tuple[Read, ...]

    def entries(self, decoder: BinaryDecoder, count: int) -> Iterator[list[Any]]:
        """The entries of one block. The rest of its last entry is not read: PyIceberg writes a block for each entry."""
        for left in range(count, 0, -1):
            values: list[Any] = [None] * (UNWANTED + 1)
            for place, read in self.leading:
                values[place] = read(decoder)
            yield values
            if left > 1:
                for read in self.rest:
                    read(decoder)


def _entries(data: bytes, manifest: ManifestFile) -> Iterator[list[Any]]:
    header, blocks = open_manifest(data, manifest)
    layout = _layout(header.meta[AVRO_SCHEMA])
    for count, block in blocks:
        yield from layout.entries(new_decoder(block), count)


@lru_cache(maxsize=64)  # a table has one for each schema and spec, and parsing it takes longer than a small manifest
def _layout(avro_schema: str) -> _Layout:
    fields: list[NestedField] = []
    for field in AvroSchemaConversion().avro_to_iceberg(loads(avro_schema)).fields:
        kind = field.field_type
        fields += kind.fields if field.field_id == DATA_FILE and isinstance(kind, StructType) else [field]
    steps = [(WANTED.get(field.field_id, UNWANTED), _step(field)) for field in fields]
    last = max(at for at, (place, _) in enumerate(steps) if place != UNWANTED)
    return _Layout(tuple(steps[: last + 1]), tuple(read for _, read in steps[last + 1 :]))


def _step(field: NestedField) -> Read:
    """What reads a field that is wanted, or gets past it."""
    if field.field_id == PARTITION and isinstance(field.field_type, StructType):
        return partition_reader(field.field_type)
    reader = field_reader(field)
    return reader.read if field.field_id in WANTED else passing(field)


def passing(field: NestedField) -> Read:
    """What gets past a field as fast as possible."""
    reader = field_reader(field)
    # To skip a map or a list, PyIceberg calls Python for each item; to read one it calls C for all of them.
    return reader.read if isinstance(field.field_type, MapType | ListType) else reader.skip


def field_reader(field: NestedField) -> Reader:
    """PyIceberg's reader of one field."""
    reader = construct_reader(field.field_type)
    return reader if field.required else OptionReader(reader)


def partition_reader(struct: StructType) -> Read:
    """Partitions as tuples, so that they can be counted by."""
    reads = [_value(field) for field in struct.fields]
    return lambda decoder: tuple([read(decoder) for read in reads])


def _value(field: NestedField) -> Read:
    if not isinstance(field.field_type, FloatType | DoubleType):
        return field_reader(field).read
    form = DOUBLE if isinstance(field.field_type, DoubleType) else FLOAT

    def read_float(decoder: BinaryDecoder) -> float | None:
        if not field.required and not decoder.read_int():
            return None
        (value,) = form.unpack(decoder.read(form.size))
        # All NaN as one object: as another one each is unequal to itself, and would be a partition of its own.
        return math.nan if value != value else float(value)

    return read_float
