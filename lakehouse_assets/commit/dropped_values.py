"""Counts the values of columns that a run would drop, and refuses to drop them where the declaration does not allow it.

Read is metadata alone: the counts in manifests. Every other decision is schema_policy.py's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from pyiceberg.manifest import ManifestContent, ManifestEntry
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import NestedField

from lakehouse_assets.commit.manifest_reader import current_manifests, has_live_files, read_manifests
from lakehouse_assets.commit.schema_policy import (
    ChangeKind,
    PolicyAction,
    PolicyVerdict,
    renamed,
    renames_of,
    verdicts,
)
from lakehouse_assets.declare.table import Table


@dataclass(frozen=True)
class Values:
    """How many values a column has."""

    count: int = 0
    is_most: bool = False
    """Whether it is an upper bound: some rows are deleted, or a file does not say how many of its values are null."""

    def __str__(self) -> str:
        return f"{'at most ' if self.is_most else ''}{self.count:,} value{'' if self.count == 1 else 's'}"


def decided(table: Table, found: IcebergTable) -> list[PolicyVerdict]:
    """Decides about every difference as verdicts() does, and refuses to drop values unless ``allow_drop`` names them.

    A table whose runs replace all rows is not asked: their values go with the rows. Raises what the storage raises.
    """
    said = verdicts(table, found.metadata)
    drops = [v.change.name for v in said if v.action is PolicyAction.APPLY and v.change.kind is ChangeKind.UNDECLARED]
    if not drops or table.replaces_all:
        return said
    schema = renamed(found.metadata, renames_of(table, found.metadata)).schema()
    counted = dict(zip(drops, values_of(found, [schema.find_field(name) for name in drops]), strict=True))
    return [
        _with_values(table, one, counted[one.change.name])
        if one.change.kind is ChangeKind.UNDECLARED and one.change.name in counted
        else one
        for one in said
    ]


def _with_values(table: Table, verdict: PolicyVerdict, values: Values) -> PolicyVerdict:
    name = verdict.change.name
    if not values.count or name in table.allow_drop:
        return replace(verdict, lost=f"{values} {'goes' if values.count == 1 else 'go'}")
    renames = "" if verdict.change.is_nested else f", or if it has another name now, that one with was={name!r}"
    reason = f"{values} would go: to drop it all the same, declare allow_drop=[{name!r}]; else declare it{renames}"
    return replace(verdict, action=PolicyAction.REFUSE, reason=reason)


def values_of(table: IcebergTable, columns: Collection[NestedField]) -> list[Values]:
    """Counts the values of each of these columns in the table's rows. Raises what the storage raises."""
    manifests = [one for one in current_manifests(table) if has_live_files(one)]
    data = [one for one in manifests if one.content is ManifestContent.DATA]
    entries = [entry for _, of_one in read_manifests(table.io, data) for entry in of_one]
    return [_values(table.metadata, entries, column, is_most=len(data) < len(manifests)) for column in columns]


def _values(metadata: TableMetadata, entries: Iterable[ManifestEntry], column: NestedField, *, is_most: bool) -> Values:
    parts = index_by_id(Schema(column))
    leaves = [field_id for field_id, part in parts.items() if part.field_type.is_primitive]
    without = {s.schema_id for s in metadata.schemas if s.find_column_name(column.field_id) is None}
    before = {s.snapshot_id for s in metadata.snapshots if s.schema_id in without}
    count = 0
    for entry in entries:
        if entry.snapshot_id in before:  # the column was not there when the file was written
            continue
        file = entry.data_file
        counts, nulls = file.value_counts or {}, file.null_value_counts or {}
        known = [counts[one] - nulls[one] for one in leaves if one in counts and one in nulls]
        if len(known) < len(leaves) or (any(known) and not column.field_type.is_primitive):
            count, is_most = count + file.record_count, True
        else:
            count += max(known, default=0)
    return Values(count, is_most and count > 0)
