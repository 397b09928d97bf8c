"""Decides what a run may make of each difference between a declaration and its table, with the reason.

The decisions are pure functions. Which differences there are is in schema_changes.py; evolution.py carries them out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import DecimalType, DoubleType, FloatType, IntegerType, LongType

from lakehouse_assets.commit.schema_changes import ChangeKind, SchemaChange, schema_changes
from lakehouse_assets.declare.columns import parse_type
from lakehouse_assets.declare.table import OnLayoutChange, OnSchemaChange, Table

LAYOUT = {ChangeKind.SPEC, ChangeKind.ORDER, ChangeKind.PROPERTY, ChangeKind.DOC}
EVOLVE = f'declare on_layout_change="{OnLayoutChange.EVOLVE}"'
APPEND = f'declare on_schema_change="{OnSchemaChange.APPEND_NEW_COLUMNS}"'
SYNC = f'declare on_schema_change="{OnSchemaChange.SYNC_ALL_COLUMNS}"'
IGNORE = f'declare on_schema_change="{OnSchemaChange.IGNORE}"'


class PolicyAction(StrEnum):
    """The ways in which a run may treat a difference."""

    APPLY = "apply"
    """It changes the table as declared."""
    LEAVE = "leave"
    """It leaves the table as it is, and its rows are made to fit it."""
    REFUSE = "refuse"
    """It fails before a worker starts."""


@dataclass(frozen=True)
class PolicyVerdict:
    """The decision about one difference."""

    change: SchemaChange
    action: PolicyAction
    reason: str = ""
    """The reason of a refusal, with what to do."""

    def __str__(self) -> str:
        return f"{self.change}{f' ({self.reason})' if self.reason else ''}"


def verdicts(table: Table, found: TableMetadata) -> list[PolicyVerdict]:
    """Decides about every difference between the declaration and the table, in the order of schema_changes()."""
    return [_verdict(table, found, change) for change in schema_changes(table, found)]


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
        return PolicyVerdict(change, PolicyAction.LEAVE)  # Spark fails at a null in it
    if table.on_schema_change == OnSchemaChange.FAIL:
        return PolicyVerdict(change, PolicyAction.REFUSE, _how_to_allow(table, found, change))
    reason = next(_not_left(table, found, change), "")
    return PolicyVerdict(change, PolicyAction.REFUSE if reason else PolicyAction.LEAVE, reason)


def _twin(found: TableMetadata, change: SchemaChange) -> str:
    """Returns why no policy allows a column whose name differs only in case from one that is there; else empty."""
    twins = [name for name in found.schema().column_names if name.lower() == change.name.lower()]
    is_new = change.kind is ChangeKind.MISSING and twins
    return f"the table has {twins[0]}, which is the same for Spark: declare it so" if is_new else ""


def _how_to_allow(table: Table, found: TableMetadata, change: SchemaChange) -> str:
    cant = next(_not_applied(table, found, change), None)
    if change.kind is ChangeKind.UNDECLARED:
        kept = "" if next(_not_left(table, found, change), None) else f"to keep it, {APPEND} or {IGNORE}"
        return "; ".join(filter(None, (kept, cant or f"to drop it, {SYNC}")))
    if cant:
        left = change.kind is ChangeKind.TYPE and not next(_not_left(table, found, change), None)
        return f"{cant}; to leave it, {IGNORE}" if left else cant
    done = {ChangeKind.MISSING: "add", ChangeKind.TYPE: "widen"}.get(change.kind, "change")
    return f"to {done} it, {APPEND} or {SYNC}"


def _not_applied(table: Table, found: TableMetadata, change: SchemaChange) -> Iterator[str]:
    """Yields why the table can't be changed so, whatever is declared."""
    match change.kind:
        case _ if change.of_map_key:
            yield "the keys of a map stay as they are"
        case ChangeKind.MISSING if not change.is_nested:
            if table.schema.find_field(change.name).required and found.current_snapshot_id and not table.replaces_all:
                yield "the rows that are there have no value for a required column: declare it optional"
            if spec := next((s for s in found.partition_specs for f in s.fields if f.name == change.name), None):
                yield f"a field of the table's partitions (spec {spec.spec_id}) has its name: declare another"
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


def _not_left(table: Table, found: TableMetadata, change: SchemaChange) -> Iterator[str]:
    """Yields why a run's rows can't be made to fit the table as it is."""
    cant = next(_not_applied(table, found, change), None)
    if change.is_nested and change.kind is ChangeKind.UNDECLARED:
        yield f"new rows have no value for a part of a column: declare it; {cant or f'to drop it, {SYNC}'}"
    elif change.is_nested:
        how = cant or f"{APPEND} or {SYNC}"
        yield f"{OnSchemaChange.IGNORE} is of whole columns, so declare this one as it is; {how}"
    elif change.kind is ChangeKind.MISSING:
        if used := _declared_uses(table, change.name):
            yield f"it can't be left out, as it is declared {used}: {cant or APPEND}"
    elif change.kind is ChangeKind.TYPE:
        yield from _needed_types(table, found, change)
    elif change.kind is ChangeKind.UNDECLARED and found.schema().find_field(change.name).required:
        yield "new rows would have no value for a required column: declare it, and return it from the step"
    elif change.kind is ChangeKind.REQUIRED:
        yield f"nulls would come into it: {cant or f'declare it required, or {APPEND}'}"


def _needed_types(table: Table, found: TableMetadata, change: SchemaChange) -> Iterator[str]:
    """Yields why the column must have the declared type in the table too."""
    name = change.name
    ours = {table.schema.find_column_name(field.source_id) for field in table.spec.fields}
    theirs = {
        found.schema().find_column_name(field.source_id) for spec in found.partition_specs for field in spec.fields
    }
    if name in ours | theirs and {change.declared, change.found} != {"int", "long"}:
        yield f"files are found by it, as it is a source of partitions: declare {change.found}"
    elif name in table.write_mode.match_on and change.found == "uuid":
        yield "Iceberg may skip files that hold a uuid (apache/iceberg#14216), so it can't be a key: choose another"


def _declared_uses(table: Table, name: str) -> str:
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
    """Yields why a column of the table can't be dropped."""
    ids = index_by_id(Schema(found.schema().find_field(change.name))).keys()  # with those of its parts
    specs = [s.spec_id for s in found.partition_specs if ids & {field.source_id for field in s.fields}]
    if specs:
        yield f"the table is partitioned by it (spec {specs[-1]}), and such columns stay: declare it"
    elif ids & {field.source_id for field in found.sort_order().fields}:
        yield "the table is sorted by it: declare it, or drop the order first"
    elif ids & set(found.schema().identifier_field_ids):
        yield "it is an identifier field of the table: declare it"


def _is_wider(change: SchemaChange) -> bool:
    """Tells whether the type is widened by a promotion of Iceberg's format 2.

    PyIceberg's promote() tells what a reader can take, which is more.
    """
    if "<" in change.found + change.declared:
        return False
    match parse_type(change.found), parse_type(change.declared):
        case (IntegerType(), LongType()) | (FloatType(), DoubleType()):
            return True
        case DecimalType() as there, DecimalType() as declared:
            return there.scale == declared.scale and there.precision < declared.precision
    return False


def of_action(found: Sequence[PolicyVerdict], action: PolicyAction) -> list[SchemaChange]:
    """Returns the differences for which this action was decided."""
    return [verdict.change for verdict in found if verdict.action is action]
