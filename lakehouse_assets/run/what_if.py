"""The differences between a table and its declaration, and what the next run would do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import dagster as dg
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph
from dagster._core.definitions.data_version import CODE_VERSION_TAG
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata

from lakehouse_assets.commit.evolution import decided
from lakehouse_assets.commit.fork import FORMAT_VERSION
from lakehouse_assets.commit.schema_policy import ChangeKind, PolicyAction, PolicyVerdict
from lakehouse_assets.declare.columns import order_text, spec_text
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import find_table
from lakehouse_assets.errors import PublishRefused
from lakehouse_assets.keys_text import keys_text
from lakehouse_assets.run.outdated import Metadata, latest_made, stale_inputs

COLUMNS = ("table", "difference", "declared", "on the lake", "the next run")
# In the last column, for a difference that alone would not fail the run.
FAILS = "fails because of another difference"


class Row(NamedTuple):
    """One difference, and what the table's next run does about it."""

    table: str
    difference: str
    declared: str
    on_the_lake: str
    next_run: str
    fails: bool = False
    """Whether the table's next run fails, because of this difference or another one from the declaration. False for a
    changed input."""

    @property
    def cells(self) -> tuple[str, ...]:
        """The row's texts, in the order of COLUMNS."""
        return self.table, self.difference, self.declared, self.on_the_lake, self.next_run


def all_differences(
    instance: dg.DagsterInstance, catalog: Catalog, tables: Sequence[Table], graph: AssetGraph
) -> Iterator[Row]:
    """Yields the tables' differences from their declarations, and changed inputs; what can't be read is one, too."""
    metadata = metadata_of(catalog)
    for table in tables:
        try:
            found = _found(catalog, table)
        except Exception as error:  # one broken table must not hide the others
            yield Row(table.identifier, "table", "can be read", f"{error}", "fails", fails=True)
            continue
        made = latest_made(instance, graph, table.key)
        tags = {partition: materialization.tags or {} for partition, materialization in made.items()}
        made_by = {partition: of[CODE_VERSION_TAG] for partition, of in tags.items() if CODE_VERSION_TAG in of}
        try:
            yield from differences(table, found, made_by)
        except Exception as error:  # manifests are read to count the values of a column to drop
            yield Row(table.identifier, "table", "can be read", f"{error}", "fails", fails=True)
            continue
        try:
            if found is not None:
                yield from _changed_inputs(instance, graph, table, made, metadata)
        except Exception as error:  # a broken input must not hide the next tables either
            yield Row(table.identifier, "inputs", "can be read", f"{error}", "fails", fails=True)


def failing_tables(rows: Iterable[Row]) -> list[str]:
    """Returns the tables whose next run fails, sorted."""
    return sorted({row.table for row in rows if row.fails})


def metadata_of(catalog: Catalog) -> Metadata:
    """Returns a function that loads each table's metadata once. It raises the catalog's errors."""

    @cache
    def found(key: dg.AssetKey) -> TableMetadata | None:
        # A key of one part has no namespace, so it is no table's.
        table = find_table(catalog, ".".join(key.path)) if len(key.path) > 1 else None
        return table.metadata if table else None

    return found


def _found(catalog: Catalog, table: Table) -> IcebergTable | None:
    """Returns the table; None if a run would create it. Raises PublishRefused if the catalog has lost it."""
    if found := find_table(catalog, table.identifier):
        return found
    from lakehouse_assets.commit.target import refusal  # imports PyArrow: half a second

    if refused := refusal(catalog, table):
        raise PublishRefused(refused)
    return None


def _changed_inputs(
    instance: dg.DagsterInstance,
    graph: AssetGraph,
    table: Table,
    made: Mapping[str | None, dg.AssetMaterialization],
    metadata: Metadata,
) -> Iterator[Row]:
    """Yields a row for each input that changed after partitions of the table had read it."""
    for found in stale_inputs(
        instance, graph, table.key, made, graph.get(table.key).parent_keys - {table.key}, metadata
    ):
        keys = sorted(key for key in found.partitions if key is not None)
        of = f" of {len(keys)} of {len(made)} partitions: {keys_text(keys)}" if keys else ""
        # by: None after a rollback, empty for what a person reported without a run.
        if found.by is None:
            now = f"rolled back: snapshot {found.snapshot} is not in its history"
        else:
            now = f"materialized again by run {found.by[:8]}" if found.by else "reported again, without a run"
            now += f": snapshot {found.snapshot}" if found.snapshot else ""
        told = "reads it again for the partitions that it makes" if table.write_mode.replaces else "reads it again"
        yield Row(table.identifier, f"input {found.input}{of}", "as it was read", now, told)


def differences(table: Table, found: IcebergTable | None, made_by: Mapping[str | None, str]) -> Iterator[Row]:
    """Yields a row for each difference.

    made_by: the code version that made each partition, if known. Raises the storage's errors when it counts the values
    of columns to drop.
    """
    if found is None:
        yield Row(table.identifier, "table", _summary(table), "not there", "creates it")
        return
    changes, is_old = decided(table, found), found.metadata.format_version != FORMAT_VERSION
    if is_old:
        told = f"fails: only format version {FORMAT_VERSION} can be written; a table of version 1 can be upgraded to it"
        found_version = str(found.metadata.format_version)
        yield Row(table.identifier, "format version", str(FORMAT_VERSION), found_version, told, fails=True)
    fails = is_old or any(verdict.action is PolicyAction.REFUSE for verdict in changes)
    yield from (_row(table, verdict, fails=fails) for verdict in changes)
    # The partitions that were made with another code version, by the halves that differ.
    made_otherwise: dict[str, list[str | None]] = defaultdict(list)
    for key, version in made_by.items():
        if version != table.code_version:
            made_otherwise[_changed(version, table.code_version)].append(key)
    for what, old in sorted(made_otherwise.items()):
        keys = sorted(key for key in old if key is not None)
        named = f"{what} of {len(keys)} of {len(made_by)} partitions: {keys_text(keys)}" if keys else what
        versions = ", ".join(sorted({made_by[key] for key in old}))
        told = "makes only its own partitions again" if table.write_mode.replaces else "leaves their rows"
        yield Row(table.identifier, named, table.code_version, versions, FAILS if fails else told, fails)


def _changed(made_by: str, now: str) -> str:
    """Returns which halves of Table.code_version differ: a hash of the code, a dash, a hash of the declaration."""
    halves = zip(("code", "declaration"), made_by.split("-"), now.split("-"), strict=False)
    return " and ".join(half for half, then, today in halves if then != today)


def _row(table: Table, verdict: PolicyVerdict, *, fails: bool) -> Row:
    """Returns the row of a difference. fails: whether any difference of the table fails the next run."""
    change = verdict.change
    next_run = {
        PolicyAction.APPLY: FAILS if fails else f"{_done(verdict)}, in the commit of its rows",
        PolicyAction.LEAVE: FAILS if fails else "leaves it and adapts its new rows",
        PolicyAction.REFUSE: f"fails: {verdict.reason}",
    }
    return Row(table.identifier, change.what, change.declared, change.found, next_run[verdict.action], fails)


def _done(verdict: PolicyVerdict) -> str:
    match verdict.change.kind:
        case ChangeKind.MISSING:
            return "adds it"
        case ChangeKind.TYPE:
            return "widens it"
        case ChangeKind.REQUIRED:
            return "makes it optional"
        case ChangeKind.RENAMED:
            return "renames it, with its values"
        case ChangeKind.UNDECLARED:
            return f"drops it ({verdict.lost or 'each run replaces all rows'})"
    return "changes it"


def _summary(table: Table) -> str:
    partitions, order = spec_text(table.spec, table.schema), order_text(table.order, table.schema)
    return f"{len(table.schema.columns)} columns, partitioned by {partitions}, sorted by {order}"
