"""The columns of a declared table, and the Iceberg schema that they form.
Partitioning and sorting by columns is in terms.py."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.exceptions import ValidationError
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Column:
    """One column. type: an Iceberg type as Iceberg spells it (``int``, ``timestamptz``, ``decimal(9,2)``)."""

    name: str
    type: str
    doc: str = ""
    required: bool = False


def column(name: str, type: str, doc: str = "", *, required: bool = False) -> Column:
    """A column; ``required`` ones hold no nulls (audited from file statistics)."""
    return Column(name, type, doc, required)


def schema_of(columns: Sequence[Column]) -> Schema:
    """The Iceberg schema of these columns, with field ids from 1. Raises ValueError if they can't form one."""
    if not columns:
        raise ValueError("it has no columns")
    # For Spark, two names that differ only in case are the same column.
    names = [c.name.lower() for c in columns]
    if twice := sorted({n for n in names if names.count(n) > 1}):
        raise ValueError(f"columns declared twice: {', '.join(twice)}")
    if bad := [c.name for c in columns if not NAME.fullmatch(c.name)]:
        raise ValueError(f"column names must consist of letters, digits and _, found {', '.join(map(repr, bad))}")
    return Schema(*(_field(i, c) for i, c in enumerate(columns, start=1)))


def find_column(schema: Schema, name: str, option: str) -> NestedField:
    """The column that an option of the declaration names. Raises ValueError if the schema lacks it."""
    if name not in schema.column_names:
        raise ValueError(f"{option} names the column {name!r}, the schema has {', '.join(schema.column_names)}")
    return schema.find_field(name)


def _field(field_id: int, c: Column) -> NestedField:
    try:
        field = NestedField(field_id=field_id, name=c.name, field_type=c.type, required=c.required, doc=c.doc or None)
        Schema(field).check_format_version_compatibility(2)
    except (ValueError, ValidationError) as error:
        raise ValueError(f"column {c.name!r} has the type {c.type!r}, unknown to Iceberg's format 2") from error
    return field
