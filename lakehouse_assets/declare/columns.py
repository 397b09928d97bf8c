"""The columns of a declared table, their types as text, nested ones included, and the Iceberg schema that they form.

Partitioning and sorting by columns is in terms.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import dagster as dg
from pyiceberg.exceptions import ValidationError
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.types import DecimalType, FixedType, IcebergType, ListType, MapType, NestedField, StructType

# Ids are given when the schema is made; until then each field needs one that no other has.
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
"""Types by the names that Spark and other databases have for them, and how Iceberg spells them."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
RESERVED = ("_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number")
"""Names that Iceberg's readers and writers take for their own columns (org.apache.iceberg.MetadataColumns). In capitals
it does not see them, but Spark takes them for the same: a merge doubles rows."""


@dataclass(frozen=True)
class Column:
    """One declared column.

    Example:
        >>> from lakehouse_assets import Column, column
        >>> prefixed = [Column(f"origin_{c.name}", c.type, c.doc) for c in [column("lat", "double", "Degrees")]]
        >>> prefixed[0].name
        'origin_lat'
    """

    name: str
    """The column's name, as the step returns it."""
    type: str
    """An Iceberg type as Iceberg spells it (``int``, ``timestamptz``, ``decimal(9,2)``, ``list<string>``,
    ``map<string, long>``, ``struct<lat: double, lon: double>``)."""
    doc: str = ""
    """The column's documentation, in the catalog and in the UI."""
    required: bool = False
    """Whether it holds no nulls; the audit looks."""
    was: str = ""
    """The name that it had before: where the table has that one still, the next run renames it, and its values stay.
    Harmless once that is done. Parts of nested columns can't be renamed."""


def column(name: str, type: str, doc: str = "", *, required: bool = False, was: str = "") -> Column:
    """Declares a column; ``required`` ones hold no nulls (audited from file statistics).

    ``was`` is the name that it had before: the next run renames it.

    Example:
        >>> from lakehouse_assets import column
        >>> column("place", "struct<lat: double, lon: double>", "Where it was measured", required=True).type
        'struct<lat: double, lon: double>'
    """
    return Column(name, type, doc, required, was)


def schema_of(columns: Sequence[Column]) -> Schema:
    """Returns the Iceberg schema of these columns, with field ids from 1. Raises ValueError if they can't form one."""
    if not columns:
        raise ValueError("it has no columns")
    # For Spark, two names that differ only in case are the same column.
    names = [c.name.lower() for c in columns]
    if twice := sorted({n for n in names if names.count(n) > 1}):
        raise ValueError(f"columns declared twice: {', '.join(twice)}")
    if bad := [c.name for c in columns if not NAME.fullmatch(c.name)]:
        raise ValueError(f"column names must consist of letters, digits and _, found {', '.join(map(repr, bad))}")
    if taken := [c.name for c in columns if c.name.lower() in RESERVED]:
        raise ValueError(f"column names that Iceberg keeps for itself: {', '.join(taken)}; call them otherwise")
    for problem in _rename_problems(columns):
        raise ValueError(problem)
    return assign_fresh_schema_ids(Schema(*(_field(i, c) for i, c in enumerate(columns, start=1))))


def _rename_problems(columns: Sequence[Column]) -> Iterator[str]:
    renamed = [c for c in columns if c.was]
    names, before = {c.name.lower() for c in columns}, [c.was.lower() for c in renamed]
    for c in renamed:
        if not NAME.fullmatch(c.was):
            yield f"column {c.name!r} has was={c.was!r}, expected the name of a whole column: letters, digits and _"
        elif c.was.lower() in names:
            yield f"column {c.name!r} has was={c.was!r}, and that is declared too: leave out one of the two"
        elif before.count(c.was.lower()) > 1:
            yield f"several columns have was={c.was!r}: only one of them can be it"


def find_column(schema: Schema, name: str, option: str) -> NestedField:
    """Finds the column that an option of the declaration names. Raises ValueError if the schema lacks it."""
    names = [column.name for column in schema.columns]
    if name not in names:
        raise ValueError(f"{option} names the column {name!r}, the schema has {', '.join(names)}")
    return schema.find_field(name)


def _field(field_id: int, c: Column) -> NestedField:
    try:
        type_ = parse_type(c.type)
        field = NestedField(field_id=field_id, name=c.name, field_type=type_, required=c.required, doc=c.doc or None)
        Schema(field).check_format_version_compatibility(2)
    except (ValueError, ValidationError) as error:
        raise ValueError(
            f"column {c.name!r} has the type {c.type!r}, unknown to Iceberg's format 2: {error}"
        ) from error
    return field


def parse_type(text: str) -> IcebergType:
    """Returns the type that a text such as ``long`` or ``struct<lat: double, lon: double>`` spells.

    Other nested types are spelt ``list<string>`` and ``map<string, double>``. What is in a nested type is optional.

    Raises ValueError for a text that spells no type.
    """
    outer, _, inner = text.strip().partition("<")
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
                raise ValueError(f"{text!r} has two members of one name; for Spark, case makes no difference")
            return StructType(*members)
    meant = _did_you_mean(text)
    raise ValueError(f"{text!r} is none of list<type>, map<type, type>, struct<name: type, …>{meant}")


def types_of(schema: Schema) -> dict[str, str]:
    """Returns the types of a schema's columns by name, as declared ones are written."""
    return {column.name: type_text(column.field_type) for column in schema.columns}


def type_text(type_: IcebergType) -> str:
    """Returns the text of a type, as parse_type() reads it: without field ids."""
    match type_:
        case ListType():
            return f"list<{type_text(type_.element_type)}>"
        case MapType():
            return f"map<{type_text(type_.key_type)}, {type_text(type_.value_type)}>"
        case StructType():
            return f"struct<{', '.join(f'{f.name}: {type_text(f.field_type)}' for f in type_.fields)}>"
    return str(type_)


def _primitive(text: str) -> IcebergType:
    try:
        type_ = NestedField(field_id=1, name="_", field_type=text, required=False).field_type
    except (ValueError, ValidationError) as error:
        raise ValueError(f"{text!r} is no type{_did_you_mean(text)}") from error
    if isinstance(type_, DecimalType) and type_.scale > type_.precision:  # Spark has no such type
        raise ValueError(f"{text!r} has more digits behind its point than digits")
    if isinstance(type_, FixedType) and not len(type_):
        raise ValueError(f"{text!r} has no bytes")
    return type_


def _did_you_mean(text: str) -> str:
    """Says how Iceberg spells a type that has another name elsewhere, as the end of a sentence; empty if not known."""
    meant = OF_SPARK.get(re.split(r"[<(]", text.strip().lower())[0].strip())
    return f"; did you mean {meant}?" if meant else ""


def _member(text: str) -> NestedField:
    name, _, type_ = map(str.strip, text.partition(":"))
    if not NAME.fullmatch(name) or not type_:
        raise ValueError(f"{text.strip()!r} is not of the form name: type")
    return NestedField(field_id=next(SOME_IDS), name=name, field_type=parse_type(type_), required=False)


def _split(text: str) -> list[str]:
    """Splits a text at the commas that are in no brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def column_schema(schema: Schema) -> dg.TableSchema:
    """Returns the schema as Dagster shows it, docs and not-null constraints included."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                name=column.name,
                type=type_text(column.field_type),
                description=column.doc,
                constraints=dg.TableColumnConstraints(nullable=not column.required),
            )
            for column in schema.columns
        ]
    )
