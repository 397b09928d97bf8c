"""A chunk of days staged by PyIceberg in place of Spark: what all workers without a JVM share.
No Dagster here, as in the real worker; how a worker lives and ends is its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from lakehouse_assets.commit.tokens import TOKEN
from lakehouse_assets.protocol.assignment import Assignment
from lakehouse_assets.protocol.receipts import Receipt


def register(fork_base: str, properties: Mapping[str, str]) -> Table:
    """The fork, in a private catalog of its own. properties: of its FileIO; others are left out."""
    files = {name: value for name, value in properties.items() if name.startswith(("s3.", "client."))}
    private = load_catalog("stage", type="sql", uri="sqlite:///:memory:", warehouse="file:///nonexistent", **files)
    private.create_namespace("forks")
    return private.register_table("forks.fork", fork_base)


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
        created_at=datetime.now(UTC).isoformat(),
        **fields,
    )
