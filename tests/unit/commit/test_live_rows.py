"""The rows that readers get, counted by metadata and delete files, beside what a reader counts.
The tables are real, the deletes those of other engines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table

from lakehouse_assets.commit import deletes as counting
from lakehouse_assets.commit.deletes import LiveRows, live_rows
from lakehouse_assets.declare.columns import column, schema_of
from tests.support.outsiders import commit_deletes, equality_deletes, live, multiset, position_deletes


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Two files of five rows."""
    catalog = load_catalog("lake", type="sql", uri=f"sqlite:///{tmp_path}/c.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("demo")
    found = catalog.create_table("demo.t", schema_of([column("n", "long")]))
    for first in (0, 5):
        found.append(pa.table({"n": pa.array(range(first, first + 5), pa.int64())}))
    return found


def rows_of(table: Table) -> LiveRows | None:
    return live_rows(table.metadata, table.current_snapshot(), table.io)


def paths(table: Table) -> list[str]:
    return sorted(entry.data_file.file_path for entry in live(table))


def deleted(table: Table, **positions: list[int]) -> None:
    """Of the first file and of the second."""
    of = dict(zip(("first", "second"), paths(table), strict=False))
    commit_deletes(table, position_deletes(table, {of[name]: at for name, at in positions.items()}))


def nothing(table: Table) -> None: ...


def some_rows(table: Table) -> None:
    deleted(table, first=[0, 1, 2, 3])
    deleted(table, second=[4], first=[4])


def the_same_rows_twice(table: Table) -> None:
    deleted(table, first=[0, 1])
    deleted(table, first=[1, 2], second=[0])


def rows_of_files_that_are_gone(table: Table) -> None:
    deleted(table, first=[0, 1], second=[0])
    table.overwrite(pa.table({"n": pa.array([1, 2, 3], pa.int64())}))


def whole_files(table: Table) -> None:
    table.delete(EqualTo("n", 3))


def all_rows(table: Table) -> None:
    deleted(table, first=[*range(5)], second=[*range(5)])


ACTS = (nothing, some_rows, the_same_rows_twice, rows_of_files_that_are_gone, whole_files, all_rows)


@pytest.mark.parametrize("act", ACTS)
def test_it_counts_what_a_reader_counts(table: Table, act: Callable[[Table], None]) -> None:
    act(table)
    table.refresh()
    assert rows_of(table) == LiveRows(multiset(table).total())


def test_it_says_where_it_is_an_upper_bound(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    deleted(table, first=[0, 1])
    monkeypatch.setattr(counting, "MOST_DELETE_FILES", 0)
    assert str(rows_of(table)) == "at most 10"
    monkeypatch.undo()
    assert str(rows_of(table)) == "8"
    commit_deletes(table, equality_deletes(table, "n", [7], live(table)[0].data_file.partition))
    assert str(rows_of(table)) == "at most 10"


def test_what_can_not_be_read_is_an_upper_bound(table: Table) -> None:
    deleted(table, first=[0, 1])
    Path(table.current_snapshot().manifest_list.removeprefix("file://")).unlink()
    rows = rows_of(table)
    assert rows is not None
    assert (str(rows), rows.exactly) == ("at most 10", None)


@pytest.mark.parametrize(("total", "rows"), [("10", LiveRows(10, is_exact=False)), ("many", None)])
def test_a_torn_manifest_list_leaves_what_the_summary_says(table: Table, total: str, rows: LiveRows | None) -> None:
    snapshot = table.current_snapshot()
    assert snapshot
    assert snapshot.summary
    Path(snapshot.manifest_list.removeprefix("file://")).write_bytes(b"torn")
    snapshot.summary["total-records"] = total
    assert live_rows(table.metadata, snapshot, table.io) == rows
