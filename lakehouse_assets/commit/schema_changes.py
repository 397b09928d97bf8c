"""Finds how the table in the catalog differs from its declaration, as data.

Which differences a run may carry out is in schema_policy.py, and how it does that in evolution.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from lakehouse_assets.declare.columns import type_text
from lakehouse_assets.declare.table import Table
from lakehouse_assets.declare.terms import order_text, spec_text

NONE, NOT_SET = "none", "not set"


class ChangeKind(StrEnum):
    """The kinds of differences."""

    MISSING = "missing"
    """A declared column is not in the table."""
    UNDECLARED = "undeclared"
    """A column of the table is not declared."""
    TYPE = "type"
    """A column has another type."""
    REQUIRED = "required"
    """A column that is declared optional is required in the table: nulls would come into it, since the audit goes by
    the declaration and forks take any null. The other way round is no difference: the audit lets no null pass."""
    DOC = "doc"
    """A column is declared with another doc. One that is declared without is no difference."""
    SPEC = "spec"
    """The table is partitioned otherwise."""
    ORDER = "order"
    """The table is sorted otherwise."""
    PROPERTY = "property"
    """A declared property has another value. Properties that are not declared are no difference: others set them."""


OF_COLUMNS = frozenset(ChangeKind) - {ChangeKind.SPEC, ChangeKind.ORDER, ChangeKind.PROPERTY}


@dataclass(frozen=True)
class SchemaChange:
    """One difference between a declaration and its table."""

    kind: ChangeKind
    declared: str
    """The declared side: a type as Iceberg spells it, ``optional`` or ``required``, partition or sort terms, a doc, or
    the value of a property; ``none`` where it has nothing."""
    found: str
    """The same of the table; ``none`` where it has nothing, ``not set`` for a property that it lacks."""
    subject: tuple[str, ...] = ()
    """The column as a path of names, within nested types through ``element``, ``key`` and ``value``; the name of a
    property; else empty."""
    of_map_key: bool = False
    """Whether it is a difference of the keys of a map."""

    @property
    def name(self) -> str:
        """The name of the column or property."""
        return ".".join(self.subject)

    @property
    def is_nested(self) -> bool:
        """Whether it is a difference of a part of a column."""
        return self.kind in OF_COLUMNS and len(self.subject) > 1

    @property
    def what(self) -> str:
        """The subject in words, such as ``column n`` or ``partitioned by``."""
        of_table = {
            ChangeKind.SPEC: "partitioned by",
            ChangeKind.ORDER: "sorted by",
            ChangeKind.PROPERTY: f"property {self.name}",
            ChangeKind.DOC: f"doc of column {self.name}",
        }
        return of_table.get(self.kind, f"column {self.name}")

    def __str__(self) -> str:
        return f"{self.what}: declared {self.declared}, found {self.found}"


def schema_changes(table: Table, found: TableMetadata) -> list[SchemaChange]:
    """Finds every difference that matters. Columns are compared by name: a catalog may choose field ids itself."""
    changes = list(_of_struct(table.schema.as_struct(), found.schema().as_struct()))
    undeclared = [change for change in changes if change.kind is ChangeKind.UNDECLARED]
    changes = [change for change in changes if change.kind is not ChangeKind.UNDECLARED] + undeclared
    for kind, wanted, actual in (
        (ChangeKind.SPEC, spec_text(table.spec, table.schema), spec_text(found.spec(), found.schema())),
        (ChangeKind.ORDER, order_text(table.order, table.schema), order_text(found.sort_order(), found.schema())),
    ):
        if wanted != actual:
            changes.append(SchemaChange(kind, wanted, actual))
    for name, value in sorted(table.all_properties.items()):
        if name != "format-version" and (there := found.properties.get(name)) != value:
            changes.append(SchemaChange(ChangeKind.PROPERTY, value, NOT_SET if there is None else there, (name,)))
    return changes


def _of_struct(ours: StructType, theirs: StructType, parent: tuple[str, ...] = ()) -> Iterator[SchemaChange]:
    there = {field.name: field for field in theirs.fields}
    for field in ours.fields:
        path, other = (*parent, field.name), there.pop(field.name, None)
        if other is None:
            yield SchemaChange(ChangeKind.MISSING, type_text(field.field_type), NONE, path)
        else:
            yield from _of_field(field, other, path)
    for field in there.values():
        yield SchemaChange(ChangeKind.UNDECLARED, NONE, type_text(field.field_type), (*parent, field.name))


def _of_field(ours: NestedField, theirs: NestedField, path: tuple[str, ...]) -> Iterator[SchemaChange]:
    yield from _of_type(ours.field_type, theirs.field_type, path)
    if theirs.required and not ours.required:
        yield SchemaChange(ChangeKind.REQUIRED, "optional", "required", path)
    if ours.doc and ours.doc != theirs.doc:
        yield SchemaChange(ChangeKind.DOC, repr(ours.doc), repr(theirs.doc or ""), path)


def _of_type(ours: IcebergType, theirs: IcebergType, path: tuple[str, ...]) -> Iterator[SchemaChange]:
    match ours, theirs:
        case StructType(), StructType():
            yield from _of_struct(ours, theirs, path)
        case ListType(), ListType():
            yield from _of_field(ours.element_field, theirs.element_field, (*path, "element"))
        case MapType(), MapType():
            of_key = _of_type(ours.key_type, theirs.key_type, (*path, "key"))
            yield from (replace(change, of_map_key=True) for change in of_key if change.kind is not ChangeKind.REQUIRED)
            yield from _of_field(ours.value_field, theirs.value_field, (*path, "value"))
        case _ if ours != theirs:
            yield SchemaChange(ChangeKind.TYPE, type_text(ours), type_text(theirs), path)
