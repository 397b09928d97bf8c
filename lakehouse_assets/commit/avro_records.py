"""Reads records of Avro files: only the wanted fields, by their ids; past the others it gets as fast as possible.
What manifests and their lists hold is in manifest_reader.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from json import loads
from struct import Struct
from typing import Any

from pyiceberg.avro.decoder import BinaryDecoder, StreamingBinaryDecoder, new_decoder
from pyiceberg.avro.file import META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.reader import OptionReader, Reader
from pyiceberg.avro.resolver import construct_reader
from pyiceberg.types import DoubleType, FloatType, ListType, MapType, NestedField, StructType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from lakehouse_assets.errors import UnreadableMetadata

Read = Callable[[BinaryDecoder], Any]
Wanted = tuple[int, ...]
"""Field ids, in the order in which their values are wanted. Values that nobody looks at go behind them."""
# Field ids whose structs are read in a way of their own: https://iceberg.apache.org/spec/#manifests
DATA_FILE, PARTITION = 2, 102
# PyIceberg's decoder rounds a double to a float.
FLOAT, DOUBLE = Struct("<f"), Struct("<d")


@dataclass(frozen=True)
class _Layout:
    """How entries of one Avro schema are read. leading: the fields up to the last one that is wanted, each with its
    place in the entry. rest: the fields after these. width: how many are wanted."""

    leading: tuple[tuple[int, Read], ...]
    rest: tuple[Read, ...]
    width: int

    def entries(self, decoder: BinaryDecoder, count: int) -> Iterator[list[Any]]:
        """The entries of one block. The rest of its last entry is not read: PyIceberg writes a block for each entry."""
        for left in range(count, 0, -1):
            values: list[Any] = [None] * (self.width + 1)
            for place, read in self.leading:
                values[place] = read(decoder)
            yield values
            if left > 1:
                for read in self.rest:
                    read(decoder)


def records(data: bytes, path: str, wanted: Wanted) -> Iterator[list[Any]]:
    """The values of the wanted fields of each record, and one value behind them that means nothing.

    A field that the file lacks is None. path: for messages. Raises UnreadableMetadata for a torn or foreign file; one
    that ends with a whole block looks whole.
    """
    header, start = _header(data, path)
    decoder = new_decoder(data)
    decoder.skip(start)
    layout, codec = _layout(header.meta["avro.schema"], wanted), header.compression_codec()
    while decoder.tell() < len(data):
        try:
            count, size, start = decoder.read_int(), decoder.read_int(), decoder.tell()
        except EOFError as error:
            raise unreadable(path, f"it ends within the head of an Avro block, at byte {len(data)}") from error
        end = start + size
        # PyIceberg's decoder reads what lies behind its buffer without an error, so sizes are checked here.
        if size < 0 or data[end : end + SYNC_SIZE] != header.sync:
            raise unreadable(path, f"no Avro block of {size} bytes at byte {start}")
        block = data[start:end]
        yield from layout.entries(new_decoder(codec.decompress(block) if codec else block), count)
        decoder.skip(size + SYNC_SIZE)


def _header(data: bytes, path: str) -> tuple[AvroFileHeader, int]:
    """The header and its length. Read by the slow decoder: the fast one may read what lies behind a torn file."""
    decoder = StreamingBinaryDecoder(data)
    try:
        return _header_reader().read(decoder), decoder.tell()
    except (EOFError, ValueError) as error:
        raise unreadable(path, f"no Avro header in {len(data)} bytes") from error


@cache
def _header_reader() -> Reader:
    return construct_reader(META_SCHEMA, {-1: AvroFileHeader})


@lru_cache(maxsize=64)  # a table has one for each schema and spec, and parsing it takes longer than a small manifest
def _layout(avro_schema: str, wanted: Wanted) -> _Layout:
    fields: list[NestedField] = []
    for field in AvroSchemaConversion().avro_to_iceberg(loads(avro_schema)).fields:
        kind = field.field_type
        fields += kind.fields if field.field_id == DATA_FILE and isinstance(kind, StructType) else [field]
    places = {field_id: place for place, field_id in enumerate(wanted)}
    unwanted = len(wanted)
    steps = [(places.get(field.field_id, unwanted), _step(field, field.field_id in places)) for field in fields]
    last = max((at for at, (place, _) in enumerate(steps) if place != unwanted), default=-1)
    return _Layout(tuple(steps[: last + 1]), tuple(read for _, read in steps[last + 1 :]), unwanted)


def _step(field: NestedField, wanted: bool) -> Read:
    """What reads a field, or gets past it as fast as possible."""
    if wanted and field.field_id == PARTITION and isinstance(field.field_type, StructType):
        return _partition(field.field_type)
    reader = _reader(field)
    # To skip a map or a list, PyIceberg calls Python for each item; to read one it calls C for all of them.
    drained = wanted or isinstance(field.field_type, MapType | ListType)
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


def unreadable(path: str, found: str) -> UnreadableMetadata:
    """The error for a torn or foreign manifest or manifest list."""
    return UnreadableMetadata(
        f"the manifest {path} is torn or foreign: {found}. Restore it, or roll the table back to a "
        "snapshot that does not list it"
    )
