"""How the table in the catalog differs from its declaration, as data, and the message made from it.
What follows from a difference is decided by who asks: target.py refuses them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.declare.table import Table
from lakehouse_assets.declare.terms import spec_text


@dataclass(frozen=True)
class ColumnMissing:
    """Declared, and not in the table."""

    column: str
    type: str

    def __str__(self) -> str:
        return f"column {self.column}: declared {self.type}, found none"


@dataclass(frozen=True)
class ColumnUndeclared:
    """In the table, and not declared."""

    column: str
    type: str

    def __str__(self) -> str:
        return f"column {self.column}: not declared, found {self.type}"


@dataclass(frozen=True)
class TypeDiffers:
    """declared, found: types as Iceberg spells them."""

    column: str
    declared: str
    found: str

    def __str__(self) -> str:
        return f"column {self.column}: declared {self.declared}, found {self.found}"


@dataclass(frozen=True)
class ColumnRequired:
    """Required in the table, declared optional. The audit goes by the declaration and a fork takes any null, so nulls
    would come into a column that must have none. The other way round is no difference: the audit holds it."""

    column: str

    def __str__(self) -> str:
        return f"column {self.column}: declared optional, found required"


@dataclass(frozen=True)
class SpecDiffers:
    """declared, found: partition specs as terms of Iceberg's DDL."""

    declared: str
    found: str

    def __str__(self) -> str:
        return f"partitioned by: declared {self.declared}, found {self.found}"


SchemaChange = ColumnMissing | ColumnUndeclared | TypeDiffers | ColumnRequired | SpecDiffers


def schema_changes(table: Table, found: TableMetadata) -> list[SchemaChange]:
    """Every difference that matters, columns first. Columns are compared by name: a catalog may number them itself."""
    declared = {column.name: column for column in table.schema.columns}
    present = {column.name: column for column in found.schema().columns}
    changes: list[SchemaChange] = []
    for name, column in declared.items():
        kind, other = str(column.field_type), present.get(name)
        if other is None:
            changes.append(ColumnMissing(name, kind))
            continue
        if str(other.field_type) != kind:
            changes.append(TypeDiffers(name, kind, str(other.field_type)))
        if other.required and not column.required:
            changes.append(ColumnRequired(name))
    changes += [ColumnUndeclared(name, str(c.field_type)) for name, c in present.items() if name not in declared]
    wanted, actual = spec_text(table.spec, table.schema), spec_text(found.spec(), found.schema())
    if wanted != actual:
        changes.append(SpecDiffers(wanted, actual))
    return changes


def refusal_text(table: Table, changes: Sequence[SchemaChange]) -> str:
    """The message that refuses a table with these differences."""
    differences = "; ".join(map(str, changes))
    return (
        f"table {table.identifier}: the declaration and the table in the catalog differ: {differences}. Change the "
        "declaration, or evolve the table (ALTER TABLE in any engine), then materialize again"
    )
