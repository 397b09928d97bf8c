"""Types as text in declarations and messages, such as ``list<string>``."""

from __future__ import annotations

import re
from itertools import count

from pyiceberg.exceptions import ValidationError
from pyiceberg.types import DecimalType, FixedType, IcebergType, ListType, MapType, NestedField, StructType

# The final field ids are assigned with the schema; until then, each field needs some unique id.
SOME_IDS = count(1_000_000)
OF_SPARK = {
    "bigint": "long",
    "integer": "int",
    "smallint": "int",
    "tinyint": "int",
    "short": "int",
    "byte": "int",
    "real": "float",
    "bool": "boolean",
    "text": "string",
    "varchar": "string",
    "char": "string",
    "numeric": "decimal(9,2)",
    "decimal": "decimal(9,2)",
    "datetime": "timestamp",
    "timestamp_ntz": "timestamp",
    "timestamp_ltz": "timestamptz",
    "array": "list<string>",
}
"""Type names of Spark and other databases, with Iceberg's spelling."""
# The name of a column or of a struct's member.
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
RESERVED = ("_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number")
"""Names that Iceberg reserves for metadata columns (org.apache.iceberg.MetadataColumns). In capitals, Iceberg doesn't
recognize them, but Spark ignores case, and a merge would double rows."""


def parse_type(text: str) -> IcebergType:
    """Parses a type: ``long``, ``list<string>``, ``map<string, double>``, ``struct<lat: double, lon: double>``.

    Elements, values and members of a nested type may be null. Raises ValueError for a text that is no type.
    """
    outer, _, inner = text.strip().partition("<")
    # Without brackets, or with none but the opening one.
    if not inner:
        return _primitive(text.strip())
    if not inner.endswith(">"):
        raise ValueError(f"{text!r} does not end with '>'")
    parts = _split(inner[:-1])
    match outer.strip().lower(), len(parts):
        case "list", 1:
            return ListType(next(SOME_IDS), parse_type(parts[0]), element_required=False)
        case "map", 2:
            key, value = map(parse_type, parts)
            return MapType(next(SOME_IDS), key, next(SOME_IDS), value, value_required=False)
        case "struct", _:
            members = [_member(part) for part in parts]
            if len({member.name.lower() for member in members}) < len(members):
                raise ValueError(f"{text!r} has two members of the same name; Spark ignores case")
            return StructType(*members)
    meant = _did_you_mean(text)
    raise ValueError(f"{text!r} is not one of list<type>, map<type, type>, struct<name: type, …>{meant}")


def type_text(type_: IcebergType) -> str:
    """Returns the text that parse_type() reads: without field ids."""
    match type_:
        case ListType():
            return f"list<{type_text(type_.element_type)}>"
        case MapType():
            return f"map<{type_text(type_.key_type)}, {type_text(type_.value_type)}>"
        case StructType():
            return f"struct<{', '.join(f'{f.name}: {type_text(f.field_type)}' for f in type_.fields)}>"
    return str(type_)


def _primitive(text: str) -> IcebergType:
    # A field parses the text of its type.
    try:
        type_ = NestedField(field_id=1, name="_", field_type=text, required=False).field_type
    except (ValueError, ValidationError) as error:
        raise ValueError(f"{text!r} is not a type{_did_you_mean(text)}") from error
    if isinstance(type_, DecimalType) and type_.scale > type_.precision:  # Spark has no such type
        raise ValueError(f"{text!r} has more digits after the decimal point than digits")
    if isinstance(type_, FixedType) and not len(type_):
        raise ValueError(f"{text!r} must have at least one byte")
    return type_


def _did_you_mean(text: str) -> str:
    """Returns Iceberg's spelling of a foreign type's name, as the end of a sentence; empty if unknown."""
    meant = OF_SPARK.get(re.split(r"[<(]", text.strip().lower())[0].strip())
    return f"; did you mean {meant}?" if meant else ""


def _member(text: str) -> NestedField:
    name, _, type_ = map(str.strip, text.partition(":"))
    if not NAME.fullmatch(name) or not type_:
        raise ValueError(f"{text.strip()!r} is not of the form name: type")
    return NestedField(field_id=next(SOME_IDS), name=name, field_type=parse_type(type_), required=False)


def _split(text: str) -> list[str]:
    """Splits a text at the commas outside brackets."""
    parts, depth = [""], 0
    for letter in text:
        # One more for an opening bracket, one less for a closing one.
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
