"""The columns of a declared table, and the Iceberg schema that they form.

Partitioning and sorting by columns is in terms.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.exceptions import ValidationError
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.types import NestedField

from lakehouse_assets.declare.column_types import NAME, parse_type

RESERVED = ("_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number")
"""Names that Iceberg's readers and writers take for their own columns (org.apache.iceberg.MetadataColumns). In capitals
it does not see them, but Spark takes them for the same: a merge doubles rows."""


@dataclass(frozen=True)
class Column:
    """One declared column."""

    name: str
    type: str
    """An Iceberg type as Iceberg spells it (``int``, ``timestamptz``, ``decimal(9,2)``, ``list<string>``,
    ``map<string, long>``, ``struct<lat: double, lon: double>``)."""
    doc: str = ""
    required: bool = False


def column(name: str, type: str, doc: str = "", *, required: bool = False) -> Column:
    """Declares a column; ``required`` ones hold no nulls (audited from file statistics)."""
    return Column(name, type, doc, required)


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
    return assign_fresh_schema_ids(Schema(*(_field(i, c) for i, c in enumerate(columns, start=1))))


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
