"""A partition spec as people write it: Iceberg's DDL terms on one line, for messages.
Reading such terms out of a declaration is table.py's."""

from __future__ import annotations

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform


def spec_text(spec: PartitionSpec, schema: Schema) -> str:
    """``day(at), bucket(16, id)``; ``none`` for a table without partitions. schema: names the columns."""
    return ", ".join(_term(field, schema) for field in spec.fields) or "none"


def _term(field: PartitionField, schema: Schema) -> str:
    # A column that was dropped since has left its number only.
    column = schema.find_column_name(field.source_id) or f"column {field.source_id}"
    if isinstance(field.transform, IdentityTransform):
        return column
    name, _, width = str(field.transform).rstrip("]").partition("[")
    return f"{name}({width}, {column})" if width else f"{name}({column})"
