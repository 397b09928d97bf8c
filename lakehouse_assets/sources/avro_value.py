"""The values of a topic that are Avro records in Confluent's wire format, read into the columns of a table.

Records, offsets and what they mean are kafka.py's; how the registry is asked for schemas, schema_registry.py's.
"""

from __future__ import annotations

import io
import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from lakehouse_assets.sources.field_names import match_names
from lakehouse_assets.sources.schema_registry import ask, registry_urls

if TYPE_CHECKING:
    import pyarrow as pa

HEADER = struct.Struct(">BI")
"""What a value begins with: a magic byte, 0, and the id of the schema that it was written by."""
TEXT_OR_BYTES = ("string", "large_string", "binary", "large_binary")
BECOMES: Mapping[str, str | tuple[str, ...]] = {
    "boolean": "bool",
    "int": ("int32", "int64", "float", "double"),
    "long": ("int64", "float", "double"),
    "float": ("float", "double"),
    "double": "double",
    "string": TEXT_OR_BYTES,
    "bytes": TEXT_OR_BYTES,
    "fixed": TEXT_OR_BYTES[2:],
    "enum": TEXT_OR_BYTES[:2],
    "int-date": "date32",
    "long-timestamp-millis": "timestamp[us, tz=",
    "long-timestamp-micros": "timestamp[us, tz=",
    "long-local-timestamp-millis": "timestamp[us]",
    "long-local-timestamp-micros": "timestamp[us]",
    "bytes-decimal": "decimal",
    "fixed-decimal": "decimal",
}
"""What the Arrow types begin with that an Avro type can become, with its logical type behind a hyphen; plain types as
Avro's own rules for another schema of the reader have it."""
INSTEAD = {"time": "long", "uuid": "string", "fixed": "binary"}
"""The types that values are not read as, each with the one to declare in its place."""
NO_TYPE = re.compile(rf"\b({'|'.join(INSTEAD)})\b(?!:)")
"""One of these, nested or not; before a colon it is the name of a field."""
NO_KEY = re.compile(r"map<(?!string)")
"""A map whose keys Avro does not have."""


@dataclass(frozen=True)
class Avro:
    """Values that are Avro records, as Confluent's serializers write them; a field becomes the column of its name.

    Fields that are no column are left out, and a column that a record lacks is null; a field whose name differs from a
    column's in case only fails the run. Each record is read by the schema
    that it was written by, which the schema registry at SCHEMA_REGISTRY_URL has.

    Example:
        >>> from lakehouse_assets import Avro, KafkaTopic
        >>> KafkaTopic("flight-events", value=Avro()).name
        'kafka:flight-events'
    """

    type: Literal["avro"] = field(default="avro", repr=False)
    """What it is called in YAML, and in what a worker is given."""
    ignore_case: bool = False
    """Whether a field also becomes the column whose name differs from its own in case only."""

    def problems(self, columns: Mapping[str, str]) -> Iterator[str]:
        """Yields the columns whose types values can't become. columns: their types by name."""
        for name, type_ in columns.items():
            if found := NO_TYPE.search(type_):
                part = "which" if type_.startswith(found[1]) else f"whose {found[1]}"
                instead = INSTEAD[found[1]]
                yield f"column {name!r} is of the type {type_}, {part} can't be read from Avro: declare it {instead}"
            if NO_KEY.search(type_):
                yield f"column {name!r} is of the type {type_}, but the keys of Avro's maps are strings"

    def parse(self, values: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
        """Returns a row for each value. Raises ValueError, which names none, if one of them can't be read.

        Raises SourceUnreachable if the registry does not answer.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        places: dict[int, list[int]] = {}
        for place, value in enumerate(values):
            places.setdefault(_schema_id(value), []).append(place)
        parts = [
            _rows([values[place] for place in of], number, schema, ignore_case=self.ignore_case)
            for number, of in places.items()
        ]
        order = pc.sort_indices(pa.array([place for of in places.values() for place in of]))
        return pa.Table.from_batches(parts).take(order).combine_chunks().to_batches()[0]


@dataclass(frozen=True)
class WriterSchema:
    """A schema that values were written by, as fastavro has it."""

    wrapped: dict[str, Any]
    """The schema of a record whose one field is the value."""
    named: Mapping[str, Any]
    """The named types that it is made of."""


def _schema_id(value: bytes) -> int:
    if len(value) < HEADER.size or value[0] != 0:
        raise ValueError(
            "it does not begin with the magic byte 0 and the id of a schema, so that it was not written by a "
            "serializer of Confluent's schema registry"
        )
    number: int = HEADER.unpack_from(value)[1]
    return number


def _rows(values: Sequence[bytes], schema_id: int, schema: pa.Schema, *, ignore_case: bool) -> pa.RecordBatch:
    """Returns a row for each value that was written by one schema."""
    import pyarrow as pa

    writer = _writer_schema(schema_id, registry_urls())
    type_ = writer.wrapped["fields"][0]["type"]
    for problem in _problems("", type_, pa.struct([*schema]), writer.named):
        raise ValueError(f"by its schema {schema_id}, {problem}")
    records = [_decoded(value, schema_id, writer) for value in values]
    match_names(records, pa.struct([*schema]), ignore_case=ignore_case)
    arrays = []
    for column in schema:
        try:
            arrays.append(pa.array([record.get(column.name) for record in records], column.type))
        except pa.ArrowException as error:
            raise ValueError(f"the field {column.name!r} can't become the type {column.type}: {error}") from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _decoded(value: bytes, schema_id: int, writer: WriterSchema) -> dict[str, Any]:
    """Returns the record that a value holds."""
    import fastavro

    body = io.BytesIO(value)
    body.seek(HEADER.size)
    try:
        found: Any = fastavro.schemaless_reader(body, writer.wrapped, None)
    except Exception as error:  # of many kinds, as the bytes may be anything
        raise ValueError(f"it is no record of its schema {schema_id}: {error!r}") from None
    if left := len(value) - body.tell():
        raise ValueError(f"it is no record of its schema {schema_id}: {left} bytes follow the record")
    if found["value"] is None:
        raise ValueError("it is null, no record")
    record: dict[str, Any] = found["value"]
    return record


@cache
def _writer_schema(schema_id: int, registry: str | None) -> WriterSchema:
    """Asks for a schema, once a process. registry: where, as another one has others by the same ids."""
    import fastavro

    if (found := ask(f"/schemas/ids/{schema_id}")) is None:
        raise ValueError(f"the schema registry has no schema {schema_id}")
    if (kind := found.get("schemaType") or "AVRO") != "AVRO":
        raise ValueError(f"its schema {schema_id} is of the type {kind}, not AVRO")
    named: dict[str, Any] = {}
    try:
        of_value = _parsed(found, named)
        # fastavro forgets the named types of a schema that is a name or a union of names. A record is its fields, one
        # behind the other, so that the same bytes are one of a single field.
        wrapper = {"type": "record", "name": "ValueOfTopic", "fields": [{"name": "value", "type": of_value}]}
        wrapped: Any = fastavro.parse_schema(wrapper, named)
    except (fastavro.schema.SchemaParseException, ValueError) as error:
        raise ValueError(f"its schema {schema_id} can't be read: {error!r}") from None
    return WriterSchema(wrapped, named)


def _parsed(found: Mapping[str, Any], named: dict[str, Any]) -> Any:
    """Returns a schema as fastavro has it, and adds its named types to ``named``, with those of what it refers to."""
    import fastavro

    for one in found.get("references") or ():
        if one["name"] not in named:
            path = f"/subjects/{quote(one['subject'], safe='')}/versions/{one['version']}"
            if (other := ask(path)) is None:
                raise ValueError(f"the schema registry has no {path}")
            _parsed(other, named)
    return fastavro.parse_schema(json.loads(found["schema"], object_hook=_as_stored), named)


def _as_stored(type_: dict[str, Any]) -> dict[str, Any]:
    """Returns a type without its logical one where no column has that: a uuid is read as text, a time as a number."""
    if _name(type_) not in BECOMES:
        type_.pop("logicalType", None)
    return type_


def _name(type_: Any) -> str:
    """Returns the name of an Avro type that is no union, as BECOMES has it."""
    if not isinstance(type_, dict):
        return str(type_)
    return f"{type_.get('type')}-{type_['logicalType']}" if "logicalType" in type_ else str(type_.get("type"))


def _problems(path: str, type_: Any, column: pa.DataType, named: Mapping[str, Any]) -> Iterator[str]:
    """Yields the parts of an Avro type that can't become those of a column's type. path: to its field."""
    import pyarrow as pa

    if isinstance(type_, list):
        for one in type_:
            yield from _problems(path, one, column, named)
        return
    type_ = named.get(type_, type_) if isinstance(type_, str) else type_
    name = _name(type_)
    if name == "record" and pa.types.is_struct(column):
        fields = {one["name"]: one["type"] for one in type_["fields"]}
        in_lower = {of.lower(): kind for of, kind in fields.items()}  # match_names() decides whether case matters
        for part in column:
            if kind := fields.get(part.name, in_lower.get(part.name.lower())):
                yield from _problems(f"{path}.{part.name}".lstrip("."), kind, part.type, named)
    elif name == "array" and (pa.types.is_list(column) or pa.types.is_large_list(column)):
        yield from _problems(f"{path}[]", type_["items"], column.value_type, named)
    elif name == "map" and pa.types.is_map(column):
        yield from _problems(f"{path}[]", type_["values"], column.item_type, named)
    elif name != "null" and not str(column).startswith(BECOMES.get(name, ())):
        what = f"the field {path!r}" if path else "the value"
        yield f"{what} is of the type {name.replace('-', ' ', 1)}, which can't become the type {column}"
