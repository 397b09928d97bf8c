"""Reads the wanted fields of records in Avro files, by field id, and skips the others as fast as possible.

What manifests and their lists hold is in manifest_reader.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from json import loads
from struct import Struct
from typing import Any

from pyiceberg.avro.decoder import BinaryDecoder, new_decoder
from pyiceberg.avro.reader import OptionReader, Reader
from pyiceberg.avro.resolver import construct_reader
from pyiceberg.types import DoubleType, FloatType, ListType, MapType, NestedField, StructType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from lakehouse_assets.commit.avro_file import AVRO_SCHEMA, open_avro, unreadable

Read = Callable[[BinaryDecoder], Any]
Wanted = tuple[int, ...]
"""Field ids, in the order in which their values are wanted. The values of unwanted fields go into one place behind
them."""
# Field ids whose structs are read in a way of their own: https://iceberg.apache.org/spec/#manifests
DATA_FILE, PARTITION = 2, 102
# PyIceberg's decoder rounds a double to a float.
FLOAT, DOUBLE = Struct("<f"), Struct("<d")


@dataclass(frozen=True)
class _Layout:
    """The way in which entries of one Avro schema are read."""

    leading: tuple[tuple[int, Read], ...]
    """The fields up to the last one that is wanted, each with the place of its value."""
    rest: tuple[Read, ...]
    """The fields after these."""
    width: int
    """The number of fields that are wanted."""

    def entries(self, decoder: BinaryDecoder, count: int) -> Iterator[list[Any]]:
        """Reads the entries of one block.

        The rest of its last entry is not read: PyIceberg writes a block for each entry.
        """
        for left in range(count, 0, -1):
            values: list[Any] = [None] * (self.width + 1)
            for place, read in self.leading:
                values[place] = read(decoder)
            yield values
            if left > 1:
                for read in self.rest:
                    read(decoder)


def records(data: bytes, path: str, wanted: Wanted) -> Iterator[list[Any]]:
    """Yields the values of the wanted fields of each record, and one value behind them that means nothing.

    A field that the file lacks is None. Raises as open_avro() does.
    """
    header, blocks = open_avro(data, path)
    if AVRO_SCHEMA not in header.meta:
        raise unreadable(path, f"its header has no {AVRO_SCHEMA}")
    layout = _layout(header.meta[AVRO_SCHEMA], wanted)
    for count, block in blocks:
        yield from layout.entries(new_decoder(block), count)


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
    """Returns the function that reads a wanted field, or skips another one."""
    if wanted and field.field_id == PARTITION and isinstance(field.field_type, StructType):
        return partition_reader(field.field_type)
    return field_reader(field).read if wanted else passing(field)


def passing(field: NestedField) -> Read:
    """Returns the function that gets past a field as fast as possible."""
    reader = field_reader(field)
    # To skip a map or a list, PyIceberg calls Python for each item; to read one it calls C for all of them.
    return reader.read if isinstance(field.field_type, MapType | ListType) else reader.skip


def field_reader(field: NestedField) -> Reader:
    """Returns PyIceberg's reader of one field."""
    reader = construct_reader(field.field_type)
    return reader if field.required else OptionReader(reader)


def partition_reader(struct: StructType) -> Read:
    """Returns the function that reads partitions as tuples, so that entries can be counted by them."""
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
        # All NaNs are one object: another one is unequal to it, and would be a partition of its own.
        return math.nan if value != value else float(value)

    return read_float
