"""Rows that are staged, or merged, by PyIceberg in place of Spark: what all workers without a JVM share.
No Dagster here, as in the real worker; how a worker lives and ends is its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table, Transaction
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier

from lakehouse_assets.commit.tokens import TOKEN
from lakehouse_assets.wire.receipts import Receipt
from lakehouse_assets.wire.work import Assignment


class ForkCatalog(NoopCatalog, MetastoreCatalog):
    """A catalog of one fork, which nobody else commits to. One of SQLite would take most of a small worker's time."""

    head: str

    def load_table(self, identifier: str | Identifier) -> Table:
        io = load_file_io(self.properties, self.head)
        metadata = FromInputFile.table_metadata(io.new_input(self.head))
        return Table(("forks", "fork"), metadata, self.head, io, self)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        staged = self._update_and_stage_table(table, table.name(), requirements, updates)
        if staged.metadata != table.metadata:
            self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
            self.head = staged.metadata_location
        return CommitTableResponse(metadata=staged.metadata, metadata_location=self.head)


def register(fork_base: str, properties: Mapping[str, str]) -> Table:
    """The fork, in a private catalog of its own. properties: of its FileIO; others are left out."""
    files = {name: value for name, value in properties.items() if name.startswith(("s3.", "client."))}
    private = ForkCatalog("stage", **files)
    private.head = fork_base
    return private.load_table("forks.fork")


def receipt(table: str, token: str, keys: Sequence[str], base: str, fork: Table, rows: int, chunk: int = 0) -> Receipt:
    """Of a fork that a test has written to by itself, without an assignment."""
    return Receipt(
        table=table,
        token=token,
        chunk=chunk,
        keys=tuple(keys),
        work="1",
        fork_base=base,
        metadata_location=fork.metadata_location,
        rows=rows,
        stage_seconds=0.0,
        created_at=datetime.now(UTC).isoformat(),
        worker="test",
    )


def stage(assignment: Assignment, properties: Mapping[str, str], *, each: int, **fields: Any) -> Receipt:
    """Append ``each`` rows for every day, as steps:numbers has them. fields: of the receipt, those that are not found
    here."""
    fork = register(assignment.fork_base, properties)
    days = [date.fromisoformat(key) for key in assignment.window.keys]
    rows = [{"day": day, "n": n, "text": f"n{n}"} for day in days for n in range(each)]
    fork.append(
        pa.Table.from_pylist(rows, schema=fork.schema().as_arrow()),
        snapshot_properties={TOKEN: assignment.token},
    )
    return Receipt.of(
        assignment,
        metadata_location=fork.metadata_location,
        rows=len(rows),
        **fields,
    )


def merge_by_copy(
    fork: Table, keys: Sequence[str], changes: Mapping[tuple[Any, ...], Mapping[str, Any] | None], token: str
) -> None:
    """Rows of a key get these columns, or go where it has None; a key without rows gets one. In one snapshot; in none
    if no row changes."""
    left = dict(changes)
    replaced = []
    for task in fork.scan().plan_files():
        # File by file, as PyIceberg applies all deletes of a scan to each of its files.
        rows = ArrowScan(fork.metadata, fork.io, fork.schema(), AlwaysTrue()).to_table([task]).to_pylist()
        of = [tuple(row[name] for name in keys) for row in rows]
        found = [changes.get(key, {}) for key in of]
        changed = [{**row, **change} for row, change in zip(rows, found, strict=True) if change is not None]
        for key in of:
            left.pop(key, None)
        if changed != rows:
            replaced.append((task.file, changed))
    inserted = [{**dict(zip(keys, key, strict=True)), **new} for key, new in left.items() if new is not None]
    if not replaced and not inserted:
        return
    with (
        fork.transaction() as transaction,
        transaction.update_snapshot(snapshot_properties={TOKEN: token}).overwrite() as overwrite,
    ):
        for file, _ in replaced:
            overwrite.delete_data_file(file)
        for rows in (inserted, *(changed for _, changed in replaced)):
            for added in _files(transaction, fork, rows):
                overwrite.append_data_file(added)


def _files(transaction: Transaction, fork: Table, rows: list[dict[str, Any]]) -> list[Any]:
    if not rows:
        return []
    found = pa.Table.from_pylist(rows, schema=fork.schema().as_arrow())
    return list(_dataframe_to_data_files(transaction.table_metadata, found, fork.io))


def added_rows(fork: Table, base_id: int | None) -> int:
    """How many rows lie in the files that were staged. base_id: the snapshot that the fork began with."""
    snapshot = fork.current_snapshot()
    if snapshot is None or snapshot.snapshot_id == base_id:
        return 0
    return int(snapshot.summary["added-records"] or 0)
