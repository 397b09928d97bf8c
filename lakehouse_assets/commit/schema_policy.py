"""Differences between a table and its declaration, and what a run may do about each."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StructType,
)

from lakehouse_assets.declare.columns import order_text, spec_text
from lakehouse_assets.declare.table import OnLayoutChange, OnSchemaChange, Table
from lakehouse_assets.type_text import parse_type, type_text

NONE, NOT_SET = "none", "not set"
"""Stand for what one side of a difference lacks."""
COLUMN_PROPERTY = ".column."
"""Precedes the column in names of properties."""


class ChangeKind(StrEnum):
    """The kinds of differences."""

    MISSING = "missing"
    """A declared column is not in the table."""
    UNDECLARED = "undeclared"
    """A column of the table is not declared."""
    TYPE = "type"
    REQUIRED = "required"
    """The table requires a column that is declared optional: nulls would enter it, as forks accept them and the audit
    goes by the declaration. The reverse is no difference, as the audit lets no null pass."""
    RENAMED = "renamed"
    """The table has the column under its declared former name."""
    DOC = "doc"
    """A column has another doc than declared; no declared doc is no difference."""
    SPEC = "spec"
    ORDER = "order"
    PROPERTY = "property"
    """A declared property has another value. Others may set undeclared ones."""


OF_COLUMNS = frozenset(ChangeKind) - {ChangeKind.SPEC, ChangeKind.ORDER, ChangeKind.PROPERTY}


@dataclass(frozen=True)
class SchemaChange:
    """One difference between a declaration and its table."""

    kind: ChangeKind
    declared: str
    """A type as Iceberg spells it, name, ``optional`` or ``required``, partition or sort terms, doc or property value;
    or ``none``."""
    found: str
    """The same of the table; ``not set`` for a missing property."""
    subject: tuple[str, ...] = ()
    """The path of a column, in nested types through ``element``, ``key`` and ``value``; or the name of a property."""
    of_map_key: bool = False
    """Whether it is in the type of a map's keys, which Iceberg does not change."""

    @property
    def name(self) -> str:
        """The name of the column or property."""
        return ".".join(self.subject)

    @property
    def is_nested(self) -> bool:
        """Whether it concerns a part of a column."""
        return self.kind in OF_COLUMNS and len(self.subject) > 1

    @property
    def what(self) -> str:
        """The subject in words, such as ``column n``."""
        of_table = {
            ChangeKind.SPEC: "partitioned by",
            ChangeKind.ORDER: "sorted by",
            ChangeKind.PROPERTY: f"property {self.name}",
            ChangeKind.RENAMED: "name of a column",
            ChangeKind.DOC: f"doc of column {self.name}",
        }
        return of_table.get(self.kind, f"column {self.name}")

    def __str__(self) -> str:
        return f"{self.what}: declared {self.declared}, found {self.found}"


def schema_changes(table: Table, found: TableMetadata) -> list[SchemaChange]:
    """Finds every difference. Columns are compared by name: a catalog may choose field ids."""
    renames = renames_of(table, found)
    found = renamed(found, renames)
    changes = [SchemaChange(ChangeKind.RENAMED, new, old, (new,)) for old, new in renames.items()]
    changes += _of_struct(table.schema.as_struct(), found.schema().as_struct())
    undeclared = [change for change in changes if change.kind is ChangeKind.UNDECLARED]
    changes = [change for change in changes if change.kind is not ChangeKind.UNDECLARED] + undeclared
    for kind, wanted, actual in (
        (ChangeKind.SPEC, spec_text(table.spec, table.schema), spec_text(found.spec(), found.schema())),
        (ChangeKind.ORDER, order_text(table.order, table.schema), order_text(found.sort_order(), found.schema())),
    ):
        if wanted != actual:
            changes.append(SchemaChange(kind, wanted, actual))
    for name, value in sorted(table.all_properties.items()):
        # format-version becomes a field of the metadata, and no property.
        if name != "format-version" and (there := found.properties.get(name)) != value:
            changes.append(SchemaChange(ChangeKind.PROPERTY, value, NOT_SET if there is None else there, (name,)))
    return changes


def renames_of(table: Table, found: TableMetadata) -> dict[str, str]:
    """Returns the new names of columns that are declared under another name now, by old names.

    Leaves out a column whose new name the table has, in whatever case.
    """
    there = [field.name for field in found.schema().fields]
    taken = {name.lower() for name in there}
    return {c.was: c.name for c in table.columns if c.was in there and c.name.lower() not in taken}


def renamed(found: TableMetadata, renames: Mapping[str, str]) -> TableMetadata:
    """Returns the metadata with the new names in its schema and properties."""
    if not renames:
        return found
    schema = found.schema()
    fields = [field.model_copy(update={"name": renames.get(field.name, field.name)}) for field in schema.fields]
    new = Schema(*fields, schema_id=schema.schema_id, identifier_field_ids=schema.identifier_field_ids)
    others = [one for one in found.schemas if one.schema_id != schema.schema_id]
    moved = renamed_properties(found.properties, renames)
    properties = {name: value for name, value in found.properties.items() if name not in moved}
    properties |= {new: found.properties[old] for old, new in moved.items()}
    return found.model_copy(update={"schemas": [*others, new], "properties": properties})


def renamed_properties(properties: Collection[str], renames: Mapping[str, str]) -> dict[str, str]:
    """Returns the new names of renamed columns' properties, by old names."""
    found = {}
    for name in properties:
        head, of_column, path = name.partition(COLUMN_PROPERTY)
        column, dot, rest = path.partition(".")
        if of_column and column in renames:
            found[name] = f"{head}{of_column}{renames[column]}{dot}{rest}"
    return found


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


LAYOUT = {ChangeKind.SPEC, ChangeKind.ORDER, ChangeKind.PROPERTY, ChangeKind.DOC}
"""The kinds that ``on_layout_change`` decides; ``on_schema_change`` decides the others."""
# What messages advise.
EVOLVE = f'declare on_layout_change="{OnLayoutChange.EVOLVE}"'
APPEND = f'declare on_schema_change="{OnSchemaChange.APPEND_NEW_COLUMNS}"'
SYNC = f'declare on_schema_change="{OnSchemaChange.SYNC_ALL_COLUMNS}"'
IGNORE = f'declare on_schema_change="{OnSchemaChange.IGNORE}"'


class PolicyAction(StrEnum):
    """The ways to treat a difference."""

    APPLY = "apply"
    """Change the table as declared."""
    LEAVE = "leave"
    """Make the run's rows fit the table."""
    REFUSE = "refuse"
    """Fail before a worker starts."""


@dataclass(frozen=True)
class PolicyVerdict:
    """The decision about one difference."""

    change: SchemaChange
    action: PolicyAction
    reason: str = ""
    """Why it is refused, and what to do."""
    lost: str = ""
    """The values that a dropped column loses, in words."""

    def __str__(self) -> str:
        return f"{self.change}{f' ({self.reason})' if self.reason else ''}"


def verdicts(table: Table, found: TableMetadata) -> list[PolicyVerdict]:
    """Decides about every difference, in the order of schema_changes()."""
    by_new_names = renamed(found, renames_of(table, found))
    return [_verdict(table, by_new_names, change) for change in schema_changes(table, found)]


def _verdict(table: Table, found: TableMetadata, change: SchemaChange) -> PolicyVerdict:
    if change.kind in LAYOUT:
        evolves = table.on_layout_change == OnLayoutChange.EVOLVE
        return (
            PolicyVerdict(change, PolicyAction.APPLY)
            if evolves
            else PolicyVerdict(change, PolicyAction.REFUSE, f"to change it, {EVOLVE}")
        )
    if reason := _twin(found, change):
        return PolicyVerdict(change, PolicyAction.REFUSE, reason)
    appends = table.on_schema_change == OnSchemaChange.APPEND_NEW_COLUMNS and change.kind is not ChangeKind.UNDECLARED
    if appends or table.on_schema_change == OnSchemaChange.SYNC_ALL_COLUMNS:
        reason = next(_not_applied(table, found, change), "")
        return PolicyVerdict(change, PolicyAction.REFUSE if reason else PolicyAction.APPLY, reason)
    if change.kind is ChangeKind.REQUIRED and change.is_nested:
        return PolicyVerdict(change, PolicyAction.LEAVE)  # Spark itself refuses a null there
    if table.on_schema_change == OnSchemaChange.FAIL:
        return PolicyVerdict(change, PolicyAction.REFUSE, _how_to_allow(table, found, change))
    reason = next(_not_left(table, found, change), "")
    return PolicyVerdict(change, PolicyAction.REFUSE if reason else PolicyAction.LEAVE, reason)


def _twin(found: TableMetadata, change: SchemaChange) -> str:
    """Returns why no policy allows a new column whose name differs only in case from another; "" for any other."""
    twins = [name for name in found.schema().column_names if name.lower() == change.name.lower()]
    is_new = change.kind is ChangeKind.MISSING and twins
    return f"the table has {twins[0]}, which Spark treats as the same name: declare that name" if is_new else ""


def _how_to_allow(table: Table, found: TableMetadata, change: SchemaChange) -> str:
    """Returns what to declare, or why no declaration helps."""
    cant = next(_not_applied(table, found, change), None)
    if change.kind is ChangeKind.UNDECLARED:
        to_keep = "" if next(_not_left(table, found, change), None) else f"to keep it, {APPEND} or {IGNORE}"
        return "; ".join(filter(None, (to_keep, cant or f"to drop it, {SYNC}")))
    if cant:
        can_stay = change.kind is ChangeKind.TYPE and not next(_not_left(table, found, change), None)
        return f"{cant}; to leave it, {IGNORE}" if can_stay else cant
    verb = {ChangeKind.MISSING: "add", ChangeKind.TYPE: "widen", ChangeKind.RENAMED: "rename"}.get(
        change.kind, "change"
    )
    return f"to {verb} it, {APPEND} or {SYNC}"


def _not_applied(table: Table, found: TableMetadata, change: SchemaChange) -> Iterator[str]:
    """Yields why no policy may change the table in this way."""
    match change.kind:
        case _ if change.of_map_key:
            yield "the keys of a map can't change"
        case ChangeKind.MISSING if not change.is_nested:
            if table.schema.find_field(change.name).required and found.current_snapshot_id and not table.replaces_all:
                yield "existing rows have no value for a required column: declare it optional"
            yield from _named_as_a_partition(found, change)
        case ChangeKind.RENAMED:
            field_id = found.schema().find_field(change.name).field_id
            if spec := next((s for s in found.partition_specs for f in s.fields if f.source_id == field_id), None):
                yield (
                    f"the table is partitioned by it (spec {spec.spec_id}), and such columns keep their names: declare "
                    f"{change.found}"
                )
            yield from _named_as_a_partition(found, change)
        case ChangeKind.UNDECLARED:
            yield from _uses(found, change)
        case ChangeKind.TYPE if not _is_wider(change):
            yield (
                "Iceberg only widens types: int to long, float to double, the precision of decimals. Declare "
                f"{change.found}, or add a column"
            )
        case ChangeKind.REQUIRED if (
            found.schema().find_field(change.name).field_id in found.schema().identifier_field_ids
        ):
            yield "it is an identifier field of the table: declare it required"


def _named_as_a_partition(found: TableMetadata, change: SchemaChange) -> Iterator[str]:
    fields = ((spec, field) for spec in found.partition_specs for field in spec.fields)
    if spec := next((spec for spec, field in fields if field.name == change.name), None):
        yield f"a field of the table's partitions (spec {spec.spec_id}) has this name: choose another"


def _not_left(table: Table, found: TableMetadata, change: SchemaChange) -> Iterator[str]:
    """Yields why a run's rows can't be made to fit the table."""
    cant = next(_not_applied(table, found, change), None)
    if change.is_nested and change.kind is ChangeKind.UNDECLARED:
        yield f"new rows have no value for a part of a column: declare it; {cant or f'to drop it, {SYNC}'}"
    elif change.is_nested:
        how = cant or f"{APPEND} or {SYNC}"
        yield f"{OnSchemaChange.IGNORE} applies only to whole columns, so declare this one as the table has it; {how}"
    elif change.kind is ChangeKind.MISSING:
        if used := _declared_uses(table, change.name):
            yield f"it can't be left out, as it is declared {used}: {cant or APPEND}"
    elif change.kind is ChangeKind.TYPE:
        yield from _needed_types(table, found, change)
    elif change.kind is ChangeKind.UNDECLARED and found.schema().find_field(change.name).required:
        yield "new rows would have no value for a required column: declare it, and return it from the step"
    elif change.kind is ChangeKind.RENAMED:
        yield f"new values would not be written under either name: {cant or f'{APPEND} or {SYNC}'}"
    elif change.kind is ChangeKind.REQUIRED:
        yield f"it would get nulls: {cant or f'declare it required, or {APPEND}'}"


def _needed_types(table: Table, found: TableMetadata, change: SchemaChange) -> Iterator[str]:
    """Yields why rows of the declared type can't be written as the table's type."""
    name = change.name
    ours = {table.schema.find_column_name(field.source_id) for field in table.spec.fields}
    theirs = {
        found.schema().find_column_name(field.source_id) for spec in found.partition_specs for field in spec.fields
    }
    # int and long have the same partition values.
    if name in ours | theirs and {change.declared, change.found} != {"int", "long"}:
        yield f"partitions are computed from it, and files are found by them: declare {change.found}"
    elif name in table.write_mode.match_on and change.found == "uuid":
        yield "Iceberg may skip files that hold a uuid (apache/iceberg#14216), so it can't be a key: choose another"


def _declared_uses(table: Table, name: str) -> str:
    """Returns one way in which the declaration uses a column; "" if there is none."""
    column = table.schema.find_field(name)
    uses = {
        "required": column.required,
        "unique": name in table.unique,
        "a key of the merge": name in table.write_mode.match_on,
        "a source of partitions": column.field_id in {field.source_id for field in table.spec.fields},
        "a source of the sort order": column.field_id in {field.source_id for field in table.order.fields},
        "with metrics": name in table.tuning.metrics,
        "used by a check": any(re.search(rf"\b{re.escape(name)}\b", check, re.I) for check in table.checks.values()),
    }
    return next((use for use, is_so in uses.items() if is_so), "")


def _uses(found: TableMetadata, change: SchemaChange) -> Iterator[str]:
    """Yields why the table needs the column, so that no run may drop it."""
    ids = index_by_id(Schema(found.schema().find_field(change.name))).keys()  # with those of its parts
    specs = [s.spec_id for s in found.partition_specs if ids & {field.source_id for field in s.fields}]
    if specs:
        yield f"the table is partitioned by it (spec {specs[-1]}), and such columns can't be dropped: declare it"
    elif ids & {field.source_id for field in found.sort_order().fields}:
        yield "the table is sorted by it: declare it, or drop the order first"
    elif ids & set(found.schema().identifier_field_ids):
        yield "it is an identifier field of the table: declare it"


def _is_wider(change: SchemaChange) -> bool:
    """Whether format 2 lets a table widen the type. PyIceberg's promote() allows more: all that readers accept."""
    # Parts of nested types are compared one by one, so if one of these is nested, the other is something else.
    if "<" in change.found + change.declared:
        return False
    match parse_type(change.found), parse_type(change.declared):
        case (IntegerType(), LongType()) | (FloatType(), DoubleType()):
            return True
        case DecimalType() as there, DecimalType() as declared:
            return there.scale == declared.scale and there.precision < declared.precision
    return False


def of_action(found: Sequence[PolicyVerdict], action: PolicyAction) -> list[SchemaChange]:
    """Returns the differences with this action."""
    return [verdict.change for verdict in found if verdict.action is action]
