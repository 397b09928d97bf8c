"""How the table in the catalog differs from its declaration, as data, and the message made from it.
The caller decides what follows: target.py refuses every difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.declare.table import Table
from lakehouse_assets.declare.terms import spec_text


class Kind(StrEnum):
    """What differs."""

    MISSING = "missing"
    """A declared column is not in the table."""
    UNDECLARED = "undeclared"
    """A column of the table is not declared."""
    TYPE = "type"
    """A column has another type."""
    REQUIRED = "required"
    """A column that is declared optional is required in the table: nulls would come into it, since the audit goes by
    the declaration and forks take any null. The other way round is no difference: the audit lets no null pass."""
    SPEC = "spec"
    """The table is partitioned otherwise."""


@dataclass(frozen=True)
class SchemaChange:
    """One difference. declared, found: types as Iceberg spells them, ``optional`` or ``required``, or partition terms;
    ``none`` where that side lacks the column. column: empty for a partition spec."""

    kind: Kind
    declared: str
    found: str
    column: str = ""

    def __str__(self) -> str:
        subject = f"column {self.column}" if self.column else "partitioned by"
        return f"{subject}: declared {self.declared}, found {self.found}"


def schema_changes(table: Table, found: TableMetadata) -> list[SchemaChange]:
    """Every difference that matters. Columns are compared by name: a catalog may choose field ids itself."""
    ours = {column.name: column for column in table.schema.columns}
    theirs = {column.name: column for column in found.schema().columns}
    changes: list[SchemaChange] = []
    for name, column in ours.items():
        kind, other = str(column.field_type), theirs.get(name)
        if other is None:
            changes.append(SchemaChange(Kind.MISSING, kind, "none", name))
            continue
        if str(other.field_type) != kind:
            changes.append(SchemaChange(Kind.TYPE, kind, str(other.field_type), name))
        if other.required and not column.required:
            changes.append(SchemaChange(Kind.REQUIRED, "optional", "required", name))
    undeclared = [column for name, column in theirs.items() if name not in ours]
    changes += [SchemaChange(Kind.UNDECLARED, "none", str(column.field_type), column.name) for column in undeclared]
    wanted, actual = spec_text(table.spec, table.schema), spec_text(found.spec(), found.schema())
    return changes if wanted == actual else [*changes, SchemaChange(Kind.SPEC, wanted, actual)]


def refusal_text(table: Table, changes: Sequence[SchemaChange]) -> str:
    """The message that refuses a table with these differences."""
    return (
        f"table {table.identifier}: the declaration and the table in the catalog differ: "
        f"{'; '.join(map(str, changes))}. Change the declaration, or evolve the table (ALTER TABLE in any engine), "
        "then materialize again"
    )
