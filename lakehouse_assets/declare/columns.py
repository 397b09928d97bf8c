"""The columns of a declared table, their types as text, nested ones included, and the Iceberg schema that they form.

Partitioning and sorting by columns is in terms.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import dagster as dg
from pyiceberg.exceptions import ValidationError
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.types import NestedField

from lakehouse_assets.type_text import NAME, RESERVED, parse_type, type_text


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


def types_of(schema: Schema) -> dict[str, str]:
    """Returns the types of a schema's columns by name, as declared ones are written."""
    return {column.name: type_text(column.field_type) for column in schema.columns}


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
