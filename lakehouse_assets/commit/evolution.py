"""Evolution of a table to its declaration: columns, partition spec, sort order, properties.

schema_policy.py decides what a run may change; the commit of the run's rows changes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pyiceberg.manifest import ManifestContent, ManifestEntry
from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table import Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortField
from pyiceberg.table.update import (
    AddSortOrderUpdate,
    AssertDefaultSortOrderId,
    AssertLastAssignedFieldId,
    SetDefaultSortOrderUpdate,
    TableUpdate,
    UpdatesAndRequirements,
    UpdateTableMetadata,
)
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.types import NestedField

from lakehouse_assets.commit.commit_part import CommitPart
from lakehouse_assets.commit.fork import shape_text
from lakehouse_assets.commit.manifests import current_manifests, has_live_files, read_manifests
from lakehouse_assets.commit.schema_policy import (
    LAYOUT,
    OF_COLUMNS,
    ChangeKind,
    PolicyAction,
    PolicyVerdict,
    SchemaChange,
    of_action,
    renamed,
    renamed_properties,
    renames_of,
    verdicts,
)
from lakehouse_assets.declare.table import Table
from lakehouse_assets.errors import PublishRefused, StageAgain
from lakehouse_assets.type_text import parse_type

CHANGES = {"schema_change": "lakehouse.schema-change", "layout_change": "lakehouse.layout-change"}
"""Summary entries for changes besides rows, by their names in the materialization."""


@dataclass(frozen=True)
class Values:
    """The number of values in a column."""

    count: int = 0
    is_most: bool = False
    """Whether it is an upper bound: rows are deleted, or a file lacks null counts."""

    def __str__(self) -> str:
        return f"{'at most ' if self.is_most else ''}{self.count:,} value{'' if self.count == 1 else 's'}"


def decided(table: Table, found: IcebergTable) -> list[PolicyVerdict]:
    """Decides as verdicts() does, but refuses to drop values unless ``allow_drop`` names them.

    Tables whose runs replace all rows are exempt. Raises storage errors.
    """
    said = verdicts(table, found.metadata)
    drops = [v.change.name for v in said if v.action is PolicyAction.APPLY and v.change.kind is ChangeKind.UNDECLARED]
    if not drops or table.replaces_all:
        return said
    # Verdicts name columns as declared, not as before a rename.
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
        return replace(verdict, lost=f"loses {values}")
    renames = "" if verdict.change.is_nested else f", or if it was renamed, declare the new name with was={name!r}"
    reason = (
        f"dropping it loses {values}: to drop it anyway, declare allow_drop=[{name!r}]; otherwise declare it{renames}"
    )
    return replace(verdict, action=PolicyAction.REFUSE, reason=reason)


def values_of(table: IcebergTable, columns: Collection[NestedField]) -> list[Values]:
    """Counts the values of each column. Raises storage errors."""
    manifests = [one for one in current_manifests(table) if has_live_files(one)]
    data = [one for one in manifests if one.content is ManifestContent.DATA]
    # If there are manifests of delete files, too, some of the counted values are deleted.
    entries = [entry for _, of_one in read_manifests(table.io, data) for entry in of_one]
    return [_values(table.metadata, entries, column, is_most=len(data) < len(manifests)) for column in columns]


def _values(metadata: TableMetadata, entries: Iterable[ManifestEntry], column: NestedField, *, is_most: bool) -> Values:
    parts = index_by_id(Schema(column))
    leaves = [field_id for field_id, part in parts.items() if part.field_type.is_primitive]
    schemas_without = {s.schema_id for s in metadata.schemas if s.find_column_name(column.field_id) is None}
    snapshots_without = {s.snapshot_id for s in metadata.snapshots if s.schema_id in schemas_without}
    count = 0
    for entry in entries:
        if entry.snapshot_id in snapshots_without:  # written before the column existed
            continue
        file = entry.data_file
        counts, nulls = file.value_counts or {}, file.null_value_counts or {}
        known = [counts[one] - nulls[one] for one in leaves if one in counts and one in nulls]
        # The number of rows is the bound if counts are missing, or if one value has several leaves or elements.
        if len(known) < len(leaves) or (any(known) and not column.field_type.is_primitive):
            count, is_most = count + file.record_count, True
        else:
            # A primitive column is its only leaf. For a nested one, only files without a value get here.
            count += max(known, default=0)
    return Values(count, is_most and count > 0)


@dataclass(frozen=True)
class Evolution(CommitPart):
    """The differences between a declaration and its table."""

    table: Table
    found: IcebergTable
    """The table before the changes."""
    applied: Sequence[SchemaChange]
    """Differences that change the table."""
    left: Sequence[SchemaChange]
    """Differences that stay: the run's rows are made to fit the table."""
    target: IcebergTable
    """The table with the uncommitted changes."""

    @classmethod
    def of(cls, table: Table, target: IcebergTable) -> Evolution:
        """Decides about each difference. target: the table before the changes. Raises as allowed()."""
        found = allowed(table, target)
        applied = of_action(found, PolicyAction.APPLY)
        transaction = Transaction(target)
        _apply(transaction, table, applied)
        name, metadata = target.name(), transaction.table_metadata
        evolved = IcebergTable(name, metadata, target.metadata_location, target.io, target.catalog)
        return cls(table, target, applied, of_action(found, PolicyAction.LEAVE), evolved)

    @property
    def may_stage_again(self) -> bool:
        """Whether it changes the table."""
        return bool(self.applied)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Declared columns that the table does not get."""
        return tuple(change.name for change in self.left if change.kind is ChangeKind.MISSING)

    @property
    def undeclared(self) -> tuple[str, ...]:
        """Undeclared columns that stay; the step returns no values for them."""
        return tuple(change.name for change in self.left if change.kind is ChangeKind.UNDECLARED)

    def change(self, transaction: Transaction) -> None:
        """Evolves the current table, so that the staged files fit it; does nothing if another run already has.

        Raises StageAgain if somebody changed it otherwise, PublishRefused if the policies refuse a difference.
        """
        if not self.applied:
            return
        table, here = self.table, self.found
        there = IcebergTable(here.name(), transaction.table_metadata, here.metadata_location, here.io, here.catalog)
        found = allowed(table, there)
        now = of_action(found, PolicyAction.APPLY)
        # Another run may have made some of these changes. The result must be the very table for which workers wrote
        # files, with the same field ids.
        if set(now) <= set(self.applied):
            _apply(transaction, table, now)
            if shape_text(transaction.table_metadata) == shape_text(self.target.metadata):
                return
        raise StageAgain(
            f"table {table.identifier}: another writer changed its columns, partitions or sort order after this run "
            f"began ({'; '.join(map(str, self.applied))})"
        )

    def summary(self, now: TableMetadata) -> Mapping[str, str]:
        """Returns the entries that describe the changes."""
        return {CHANGES[name]: text for name, text in evolution_texts(self.applied).items()}

    def refuse_to_drop_others(self, columns: Collection[str]) -> None:
        """Raises PublishRefused if the run would drop a column that was not there when it began.

        A run of a newer declaration may have added it. columns: those that were there, nested ones with dots.
        """
        dropped = {
            ".".join(path): change.name
            for change, path in _of_columns(self.applied)
            if change.kind is ChangeKind.UNDECLARED
        }
        if new := sorted(dropped[path] for path in dropped.keys() - {*columns}):
            raise PublishRefused(
                f"table {self.table.identifier}: {', '.join(new)} is not declared, and may have been added while this "
                "run was working. Nothing was published or dropped; to drop it, materialize the partitions again in a "
                "new run"
            )


class _Unsorting(UpdateTableMetadata["_Unsorting"]):
    """Makes a table unsorted.

    PyIceberg's update_sort_order() fails on a table that was never unsorted: it takes the order with the highest id for
    the one that it added.
    """

    def _commit(self) -> UpdatesAndRequirements:
        metadata = self._transaction.table_metadata
        updates: tuple[TableUpdate, ...] = (SetDefaultSortOrderUpdate.model_validate({"sort-order-id": 0}),)
        if metadata.sort_order_by_id(0) is None:
            updates = (AddSortOrderUpdate.model_validate({"sort-order": UNSORTED_SORT_ORDER}), *updates)
        same = {"default-sort-order-id": metadata.default_sort_order_id}
        return updates, (AssertDefaultSortOrderId.model_validate(same),)


class _SameIds(UpdateTableMetadata["_SameIds"]):
    """Requires that nobody has used up a field id.

    PyIceberg's update_schema() requires only the schema id, which is as before if others have added a column and
    dropped it again.
    """

    def _commit(self) -> UpdatesAndRequirements:
        last = {"last-assigned-field-id": self._transaction.table_metadata.last_column_id}
        return (), (AssertLastAssignedFieldId.model_validate(last),)


def allowed(table: Table, target: IcebergTable) -> Sequence[PolicyVerdict]:
    """Decides about each difference. Raises PublishRefused if the policies refuse one."""
    found = decided(table, target)
    if refused := [str(verdict) for verdict in found if verdict.action is PolicyAction.REFUSE]:
        raise PublishRefused(
            f"table {table.identifier}: the declaration and the table in the catalog differ: {'; '.join(refused)}. Or "
            "evolve the table yourself (ALTER TABLE in any engine), then materialize again"
        )
    return found


def _apply(transaction: Transaction, table: Table, changes: Sequence[SchemaChange]) -> None:
    kinds = {change.kind for change in changes}
    if of_columns := [*_of_columns(changes)]:
        _SameIds(transaction).commit()
        # PyIceberg calls required columns incompatible; the schema policy allows them only without old rows.
        with transaction.update_schema(allow_incompatible_changes=True) as update:
            for change, path in of_columns:
                _change_column(update, table.schema, change, path)
    if ChangeKind.SPEC in kinds:
        _change_spec(transaction, table)
    if ChangeKind.ORDER in kinds:
        _change_order(transaction, table)
    if properties := {change.name: change.declared for change in changes if change.kind is ChangeKind.PROPERTY}:
        transaction.set_properties(properties)
    if dropped := [change.name for change in changes if change.kind is ChangeKind.UNDECLARED]:
        _forget_properties(transaction, dropped)
    if renames := {change.found: change.declared for change in changes if change.kind is ChangeKind.RENAMED}:
        _rename_properties(transaction, renames)


def _of_columns(changes: Sequence[SchemaChange]) -> Iterator[tuple[SchemaChange, tuple[str, ...]]]:
    """Yields the changes of columns, with the paths before renames, by which PyIceberg's update finds columns."""
    before = {change.declared: change.found for change in changes if change.kind is ChangeKind.RENAMED}
    for change in changes:
        if change.kind in OF_COLUMNS:
            first, *rest = change.subject
            yield change, (before.get(first, first), *rest)


def _forget_properties(transaction: Transaction, columns: Sequence[str]) -> None:
    """Removes the properties of dropped columns and their parts.

    If they stay, Iceberg's Java refuses to change any property (MetricsConfig.validateReferencedColumns).
    """
    of_columns = [f".column.{name}" for name in columns]
    there = transaction.table_metadata.properties
    if old := [name for name in there if any(name.endswith(part) or f"{part}." in name for part in of_columns)]:
        transaction.remove_properties(*old)


def _rename_properties(transaction: Transaction, renames: Mapping[str, str]) -> None:
    """Renames the properties of renamed columns, as Iceberg's Java does.

    A new name that is already there was declared, and keeps its value.
    """
    there = transaction.table_metadata.properties
    if moved := renamed_properties(there, renames):
        if new := {name: there[old] for old, name in moved.items() if name not in there}:
            transaction.set_properties(new)
        transaction.remove_properties(*moved)


def _change_column(update: UpdateSchema, declared: Schema, change: SchemaChange, path: tuple[str, ...]) -> None:
    column = None if change.kind is ChangeKind.UNDECLARED else declared.find_field(change.name)
    match change.kind, column:
        case ChangeKind.MISSING, NestedField() as new:
            update.add_column(path, new.field_type, new.doc, required=new.required)
        case ChangeKind.RENAMED, NestedField():
            update.rename_column(path, change.declared)
        case ChangeKind.UNDECLARED, None:
            update.delete_column(path)
        case ChangeKind.TYPE, NestedField():
            update.update_column(path, field_type=parse_type(change.declared))
        case ChangeKind.REQUIRED, NestedField():
            update.make_column_optional(path)
        case ChangeKind.DOC, NestedField() as documented:
            update.update_column(path, doc=documented.doc)


def _change_spec(transaction: Transaction, table: Table) -> None:
    """Removes all fields and adds the declared ones, because their order decides where files go.

    A field that is added again keeps its id.
    """
    with transaction.update_spec() as update:
        for field in transaction.table_metadata.spec().fields:
            update.remove_field(field.name)
        for field in table.spec.fields:
            update.add_field(_source(table, field), field.transform)


def _change_order(transaction: Transaction, table: Table) -> None:
    if table.order.is_unsorted:
        _Unsorting(transaction).commit()
        return
    with transaction.update_sort_order() as update:
        for field in table.order.fields:
            update.asc(_source(table, field), field.transform, field.null_order)


def _source(table: Table, field: PartitionField | SortField) -> str:
    return table.schema.find_field(field.source_id).name


def evolution_texts(changes: Sequence[SchemaChange]) -> dict[str, str]:
    """Describes the changes for people, one line each, by the names of CHANGES."""
    lines: dict[str, list[str]] = {}
    for change in changes:
        name = "layout_change" if change.kind in LAYOUT else "schema_change"
        lines.setdefault(name, []).append(f"- {change.what}: {change.found} → {change.declared}")
    return {name: "\n".join(of_name) for name, of_name in lines.items()}
