"""Reads which live files a manifest lists, without their column metrics: several times as fast as PyIceberg's reader.
What the files add up to is in summaries.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from json import loads
from struct import Struct
from typing import Any, NamedTuple

from pyiceberg.avro.decoder import BinaryDecoder, new_decoder
from pyiceberg.avro.file import META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.reader import OptionReader, Reader
from pyiceberg.avro.resolver import construct_reader
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFileContent, ManifestEntryStatus, ManifestFile
from pyiceberg.types import DoubleType, FloatType, ListType, MapType, NestedField, StructType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from lakehouse_assets.errors import UnreadableMetadata

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


def read_manifest(io: FileIO, manifest: ManifestFile) -> bytes:
    """The manifest's file. Raises UnreadableMetadata if it is not as long as the manifest list says (PyIceberg takes a
    torn one for a shorter one), OSError where it can't be read."""
    with io.new_input(manifest.manifest_path).open() as stream:
        data = stream.read()
    if len(data) != manifest.manifest_length:
        raise _unreadable(manifest, f"{len(data)} bytes, its manifest list says {manifest.manifest_length}")
    return data


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
    decoder = new_decoder(data)
    header: AvroFileHeader = _header_reader().read(decoder)
    layout, codec = _layout(header.meta["avro.schema"]), header.compression_codec()
    while decoder.tell() < len(data):
        count, size, start = decoder.read_int(), decoder.read_int(), decoder.tell()
        end = start + size
        # PyIceberg's decoder reads what lies behind its buffer without an error, so sizes are checked here.
        if size < 0 or data[end : end + SYNC_SIZE] != header.sync:
            raise _unreadable(manifest, f"no Avro block of {size} bytes at byte {start}")
        block = data[start:end]
        yield from layout.entries(new_decoder(codec.decompress(block) if codec else block), count)
        decoder.skip(size + SYNC_SIZE)


@cache
def _header_reader() -> Reader:
    return construct_reader(META_SCHEMA, {-1: AvroFileHeader})


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
    """What reads a field, or gets past it as fast as possible."""
    if field.field_id == PARTITION and isinstance(field.field_type, StructType):
        return _partition(field.field_type)
    reader = _reader(field)
    # To skip a map or a list, PyIceberg calls Python for each item; to read one it calls C for all of them.
    drained = field.field_id in WANTED or isinstance(field.field_type, MapType | ListType)
    return reader.read if drained else reader.skip


def _reader(field: NestedField) -> Reader:
    reader = construct_reader(field.field_type)
    return reader if field.required else OptionReader(reader)


def _partition(struct: StructType) -> Read:
    """Partitions as tuples, so that they can be counted by."""
    reads = [_value(field) for field in struct.fields]
    return lambda decoder: tuple([read(decoder) for read in reads])


def _value(field: NestedField) -> Read:
    if not isinstance(field.field_type, FloatType | DoubleType):
        return _reader(field).read
    form = DOUBLE if isinstance(field.field_type, DoubleType) else FLOAT

    def read_float(decoder: BinaryDecoder) -> float | None:
        if not field.required and not decoder.read_int():
            return None
        (value,) = form.unpack(decoder.read(form.size))
        # All NaN as one object: as another one each is unequal to itself, and would be a partition of its own.
        return math.nan if value != value else float(value)

    return read_float


def _unreadable(manifest: ManifestFile, found: str) -> UnreadableMetadata:
    return UnreadableMetadata(
        f"the manifest {manifest.manifest_path} is torn or foreign: {found}. Restore it, or roll the table back to a "
        "snapshot that does not list it"
    )
