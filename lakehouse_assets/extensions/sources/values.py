"""Values of a topic as rows: JSON, Avro, and the schema registry.

The registry's client is configured by SCHEMA_REGISTRY_URL and variables named after Confluent's settings.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
import ssl
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Literal
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

from lakehouse_assets.declare.row_source import named_settings
from lakehouse_assets.errors import SourceUnreachable

if TYPE_CHECKING:
    import pyarrow as pa


class OtherCase(ValueError):
    """A field differs from a column only in case, which would silently be null."""


def match_names(objects: Sequence[dict[str, Any]], fields: pa.StructType, *, ignore_case: bool, path: str = "") -> None:
    """Renames fields that differ from a column only in case, in place, nested ones too.

    An exact name takes precedence. path: for messages. Raises OtherCase unless ``ignore_case``, and ValueError if two
    fields are one column.
    """
    import pyarrow as pa

    own = {field.name.lower(): field.name for field in fields}
    names: set[str] = set().union(*objects)
    for name in sorted(names.difference(own.values())):
        if (column := own.get(name.lower())) is None:
            continue
        for one in objects:
            if name not in one or column in one:
                continue
            if not ignore_case:
                raise OtherCase(
                    f"the field {path + name!r} differs from the column {path + column!r} only in case, so the column "
                    "would be null: declare ignore_case=True for the value, or give both the same name"
                )
            if twin := next((other for other in one if other != name and other.lower() == name.lower()), None):
                raise ValueError(f"its fields {path + name!r} and {path + twin!r} both become the column {column!r}")
            one[column] = one.pop(name)
    for member in fields:
        if pa.types.is_nested(member.type):
            within = [one[member.name] for one in objects if member.name in one]
            _match_within(within, member.type, ignore_case=ignore_case, path=f"{path}{member.name}.")


def _match_within(values: Sequence[Any], kind: pa.DataType, *, ignore_case: bool, path: str) -> None:
    """Does match_names() for the objects in values of a nested type; ignores values that are not of that type."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        match_names([one for one in values if isinstance(one, dict)], kind, ignore_case=ignore_case, path=path)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        items = [item for one in values if isinstance(one, list) for item in one]
        _match_within(items, kind.value_type, ignore_case=ignore_case, path=path)
    elif pa.types.is_map(kind):
        items = [item for one in values if isinstance(one, dict) for item in one.values()]
        _match_within(items, kind.item_type, ignore_case=ignore_case, path=path)


PREFIX = "SCHEMA_REGISTRY_"
SECONDS = 15.0
"""The limit of a request to the registry."""
NOT_FOUND = (40401, 40402, 40403)
"""The registry's codes for a missing subject, version or schema. Other 404s have another cause, such as an incomplete
URL."""


def registry_urls() -> str | None:
    """Returns the registry's URLs, separated by commas."""
    return os.environ.get(f"{PREFIX}URL")


def ask(path: str) -> dict[str, Any] | None:
    """Returns the answer of the first URL that has one; None if there is no such schema. Raises SourceUnreachable."""
    settings = named_settings(PREFIX)
    if not (urls := settings.get("url")):
        raise SourceUnreachable(f"{PREFIX}URL is not set, so no schema can be looked up")
    if any("@" in urlsplit(url).netloc for url in urls.split(",")):
        raise SourceUnreachable(
            f"{PREFIX}URL contains a user, which logs would show: set {PREFIX}BASIC_AUTH_USER_INFO to user:password"
        )
    failures = []
    for url in urls.split(","):
        try:
            return _answer(url.strip().rstrip("/") + path, settings)
        except HTTPError as error:
            if _code(error) in NOT_FOUND:
                return None
            failures.append(str(error))
        except (OSError, HTTPException, ValueError) as error:
            failures.append(str(error))
    raise SourceUnreachable(f"the schema registry can't be reached at {urls}: {'; '.join(failures)}")


def _answer(url: str, settings: Mapping[str, str]) -> dict[str, Any]:
    request = Request(url, headers={"Accept": "application/vnd.schemaregistry.v1+json"})
    if user := settings.get("basic.auth.user.info"):
        # A plain header would follow any redirect.
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(user.encode()).decode()}")
    tls = ssl.create_default_context(cafile=settings.get("ssl.ca.location"))
    if certificate := settings.get("ssl.certificate.location"):
        # Without a password, OpenSSL would ask for an encrypted key's at the terminal.
        password = settings.get("ssl.key.password", "")
        tls.load_cert_chain(certificate, settings.get("ssl.key.location"), password)
    with urlopen(request, timeout=SECONDS, context=tls) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def _code(error: HTTPError) -> int | None:
    """Returns the registry's own error code; None if the answer has none."""
    try:
        found: int | None = json.load(error).get("error_code")
    except (AttributeError, OSError, ValueError):
        return None
    return found


ARROW_CHANGED = re.compile(r"Column\(/(?P<field>.*)\) changed from (?P<wanted>\w+) to (?P<is>\w+)")
"""Arrow's message (26) for another JSON type."""
NO_JSON_TYPE = re.compile(r"\b(time|uuid|fixed|map)\b(?!:)")
"""Matches types that JSON lacks, also nested. A word before a colon is a field's name, not a type."""


@dataclass(frozen=True)
class Json:
    """Values that are JSON objects. A field becomes the column of its name; other fields are left out.

    Dates and times are ISO 8601 text, decimals are numbers or text. A field whose name differs from a column's in case
    only fails the run, because the column would silently be null.

    Examples:
        >>> from lakehouse_assets import Json, KafkaTopic
        >>> KafkaTopic("flight-events", value=Json()).name
        'kafka:flight-events'
    """

    type: Literal["json"] = field(default="json", repr=False)
    """Its name in YAML and in a worker's input."""
    ignore_case: bool = False
    """Whether a field also becomes a column whose name differs in case only."""

    def problems(self, columns: Mapping[str, str]) -> Iterator[str]:
        """Yields types that JSON lacks."""
        for name, type_ in columns.items():
            if found := NO_JSON_TYPE.search(type_):
                instead = "a struct with its fields" if found[1] == "map" else "string"
                part = "which" if type_.startswith(found[1]) else f"whose {found[1]}"
                yield f"column {name!r} is of the type {type_}, {part} can't be read from JSON: declare it {instead}"

    def parse(self, values: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
        """Returns a row for each value. Raises ValueError if one is unreadable, without saying which."""
        import pyarrow as pa
        import pyarrow.json

        # With ignore_case, objects whose fields were renamed are written as JSON again, so numbers keep all digits.
        # Without it, Arrow reads the values as they came.
        objects = [_object(value, exact=self.ignore_case) for value in values]
        match_names(objects, pa.struct([*schema]), ignore_case=self.ignore_case)
        # A value may span lines.
        options = pyarrow.json.ParseOptions(
            explicit_schema=pa.schema([(field.name, _read_as(field.type)) for field in schema]),
            unexpected_field_behavior="ignore",
            newlines_in_values=True,
        )
        text = "\n".join(map(_text, objects)).encode() if self.ignore_case else b"\n".join(values)
        try:
            read = pyarrow.json.ReadOptions(block_size=len(text) + 1)
            found = pyarrow.json.read_json(io.BytesIO(text), read, options)
            return found.select(schema.names).cast(schema).combine_chunks().to_batches()[0]
        except pa.ArrowException as error:
            raise ValueError(_told(str(error))) from None


class Number(str):
    """A JSON number as written, with all digits."""

    __slots__ = ()


def _read_as(kind: pa.DataType) -> pa.DataType:
    """Returns the type as which JSON is read, to be cast afterwards: Arrow reads no dates or large lists from JSON."""
    import pyarrow as pa

    if pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_read_as(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _read_as(field.type)) for field in kind])
    return kind


def _told(problem: str) -> str:
    """Says Arrow's problem in terms of fields and columns, if it is a known one."""
    if found := ARROW_CHANGED.search(problem):
        return (
            f"its field {found['field']!r} is of the type {found['is']}, but its column has the type {found['wanted']}"
        )
    return problem


def _object(value: bytes, *, exact: bool) -> dict[str, Any]:
    """Parses a value. Raises ValueError also for null, over which Arrow (26) ends the process. exact: keeps Numbers."""
    numbers: dict[str, Any] = {"parse_float": Number, "parse_int": Number, "parse_constant": Number} if exact else {}
    try:
        found = json.loads(value.decode(), **numbers)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    return found


def _text(value: Any) -> str:
    """Returns a value as JSON, with each Number as it was written."""
    match value:
        case Number():
            return value
        case dict():
            return f"{{{','.join(f'{json.dumps(name)}:{_text(one)}' for name, one in value.items())}}}"
        case list():
            return f"[{','.join(map(_text, value))}]"
    return json.dumps(value)


HEADER = struct.Struct(">BI")
"""Magic byte 0, and the id of the writer's schema."""
TEXT_OR_BYTES = ("string", "large_string", "binary", "large_binary")
"""Arrow's types of text, then those of bytes."""
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
"""By Avro type, with its logical type after a hyphen: prefixes of the Arrow types that it can become. Plain types
follow Avro's schema resolution."""
INSTEAD = {"time": "long", "uuid": "string", "fixed": "binary"}
"""Unreadable types, and what to declare instead."""
NO_TYPE = re.compile(rf"\b({'|'.join(INSTEAD)})\b(?!:)")
"""Matches unreadable types as NO_JSON_TYPE does."""
NO_KEY = re.compile(r"map<(?!string)")
"""Matches maps whose keys are not strings."""


@dataclass(frozen=True)
class Avro:
    """Values that are Avro records of Confluent's serializers. A field becomes the column of its name.

    Other fields are left out, and a column that a record lacks is null. A field whose name differs from a column's in
    case only fails the run. Each record is read with its writer's schema, from the schema registry at
    SCHEMA_REGISTRY_URL.

    Examples:
        >>> from lakehouse_assets import Avro, KafkaTopic
        >>> KafkaTopic("flight-events", value=Avro()).name
        'kafka:flight-events'
    """

    type: Literal["avro"] = field(default="avro", repr=False)
    """Its name in YAML and in a worker's input."""
    ignore_case: bool = False
    """Whether a field also becomes a column whose name differs in case only."""

    def problems(self, columns: Mapping[str, str]) -> Iterator[str]:
        """Yields types that values can't become."""
        for name, type_ in columns.items():
            if found := NO_TYPE.search(type_):
                part = "which" if type_.startswith(found[1]) else f"whose {found[1]}"
                instead = INSTEAD[found[1]]
                yield f"column {name!r} is of the type {type_}, {part} can't be read from Avro: declare it {instead}"
            if NO_KEY.search(type_):
                yield f"column {name!r} is of the type {type_}, but the keys of Avro's maps are strings"

    def parse(self, values: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
        """Returns a row for each value. Raises as Json.parse(), and SourceUnreachable."""
        import pyarrow as pa
        import pyarrow.compute as pc

        places: dict[int, list[int]] = {}
        for place, value in enumerate(values):
            places.setdefault(_schema_id(value), []).append(place)
        parts = [
            _rows([values[place] for place in of], number, schema, ignore_case=self.ignore_case)
            for number, of in places.items()
        ]
        # The parts are by schema: brings the rows back into the order of the values.
        order = pc.sort_indices(pa.array([place for of in places.values() for place in of]))
        return pa.Table.from_batches(parts).take(order).combine_chunks().to_batches()[0]


@dataclass(frozen=True)
class WriterSchema:
    """The schema of written values, as fastavro has it."""

    wrapped: dict[str, Any]
    """A record whose one field, ``value``, is the value: _writer_schema() says why."""
    named: Mapping[str, Any]
    """Schemas of named types, by name."""


def _schema_id(value: bytes) -> int:
    if len(value) < HEADER.size or value[0] != 0:
        raise ValueError(
            "it does not begin with the magic byte 0 and a schema id, so it was not written by a serializer of "
            "Confluent's schema registry"
        )
    number: int = HEADER.unpack_from(value)[1]
    return number


def _rows(values: Sequence[bytes], schema_id: int, schema: pa.Schema, *, ignore_case: bool) -> pa.RecordBatch:
    import pyarrow as pa

    writer = _writer_schema(schema_id, registry_urls())
    type_ = writer.wrapped["fields"][0]["type"]
    # Raises the first problem, if there is one.
    for problem in _problems("", type_, pa.struct([*schema]), writer.named):
        raise ValueError(f"according to its schema {schema_id}, {problem}")
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
    import fastavro

    body = io.BytesIO(value)
    body.seek(HEADER.size)
    try:
        found: Any = fastavro.schemaless_reader(body, writer.wrapped, None)
    except Exception as error:  # of any kind: the bytes may be anything
        raise ValueError(f"it is not a record of its schema {schema_id}: {error!r}") from None
    if left := len(value) - body.tell():
        raise ValueError(f"it is not a record of its schema {schema_id}: {left} bytes follow the record")
    if found["value"] is None:
        raise ValueError("it is null, not a record")
    record: dict[str, Any] = found["value"]
    return record


@cache
def _writer_schema(schema_id: int, registry: str | None) -> WriterSchema:
    """Looks up a schema. registry: only for the cache, as another registry has other schemas by these ids."""
    import fastavro

    if (found := ask(f"/schemas/ids/{schema_id}")) is None:
        raise ValueError(f"the schema registry has no schema {schema_id}")
    if (kind := found.get("schemaType") or "AVRO") != "AVRO":
        raise ValueError(f"its schema {schema_id} is of the type {kind}, not AVRO")
    named: dict[str, Any] = {}
    try:
        of_value = _parsed(found, named)
        # fastavro forgets the named types of a schema that is a name or a union of names. A record is its fields in
        # sequence, so the same bytes are a record of one field.
        wrapper = {"type": "record", "name": "ValueOfTopic", "fields": [{"name": "value", "type": of_value}]}
        wrapped: Any = fastavro.parse_schema(wrapper, named)
    except (fastavro.schema.SchemaParseException, ValueError) as error:
        raise ValueError(f"its schema {schema_id} can't be read: {error!r}") from None
    return WriterSchema(wrapped, named)


def _parsed(found: Mapping[str, Any], named: dict[str, Any]) -> Any:
    """Parses the registry's answer after the schemas that it refers to. Adds the named types of all to ``named``."""
    import fastavro

    for one in found.get("references") or ():
        if one["name"] not in named:
            path = f"/subjects/{quote(one['subject'], safe='')}/versions/{one['version']}"
            if (other := ask(path)) is None:
                raise ValueError(f"the schema registry has no {path}")
            _parsed(other, named)
    return fastavro.parse_schema(json.loads(found["schema"], object_hook=_as_stored), named)


def _as_stored(type_: dict[str, Any]) -> dict[str, Any]:
    """Drops a logical type that BECOMES lacks, so that the value is read as it is stored: a uuid as text."""
    if _name(type_) not in BECOMES:
        type_.pop("logicalType", None)
    return type_


def _name(type_: Any) -> str:
    """Returns a type's name as in BECOMES."""
    if not isinstance(type_, dict):
        return str(type_)
    return f"{type_.get('type')}-{type_['logicalType']}" if "logicalType" in type_ else str(type_.get("type"))


def _problems(path: str, type_: Any, column: pa.DataType, named: Mapping[str, Any]) -> Iterator[str]:
    """Yields why values of an Avro type can't become a column. path: of the field; empty for the whole value."""
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
