"""A step that reads the table which its run changes: no update of another run that lands meanwhile is lost.
The real run with a worker in this process that needs no Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable

from lakehouse_assets.commit.tokens import TOKEN
from lakehouse_assets.declare.modes import Append, FullRefresh, Overwrite, WriteMode
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.launchers.base import Launcher
from lakehouse_assets.environment.launchers.inline import InlineLauncher
from lakehouse_assets.protocol.assignment import Assignment
from lakehouse_assets.protocol.receipts import Receipt
from lakehouse_assets.rewrite.compact import compact
from lakehouse_assets.run.asset import table_asset
from lakehouse_assets.run.resource import Lakehouse
from tests.conftest import Lake, failure_text
from tests.support.light_stage import register
from tests.support.rewrites import token
from tests.support.tables import numbers, whole

FIRST, SECOND = "2024-01-01", "2024-01-02"


class Counting(Lakehouse):
    """Its workers add to what they find of each of their days, or of the whole table, a row with its number of rows."""

    meanwhile: list[Callable[[], object]]
    """What happens once a worker has read, each once."""
    staged = 0

    def launcher(self, compute: str | None = None) -> Launcher:
        return InlineLauncher(self.perform)

    def perform(self, payload: Mapping[str, Any], _: object) -> Mapping[str, Any]:
        self.staged += 1
        assignment = Assignment.from_json(payload)
        rows = [row for day in assignment.window.keys or (None,) for row in counted(assignment, day)]
        if self.meanwhile:
            self.meanwhile.pop()()
        fork = register(assignment.fork_base, {})
        written = pa.Table.from_pylist(rows, schema=fork.schema().as_arrow())
        fork.append(written, snapshot_properties={TOKEN: assignment.token})
        about = {"created_at": datetime.now(UTC).isoformat(), "worker": "test", "stage_seconds": 0.0}
        receipt = Receipt.of(assignment, metadata_location=fork.metadata_location, rows=len(rows), **about)
        return {"receipt": receipt.to_json()}


def counted(assignment: Assignment, day: str | None) -> list[dict[str, Any]]:
    (pin,) = assignment.inputs
    read = StaticTable.from_metadata(pin.metadata).scan(snapshot_id=pin.snapshot_id).to_arrow().to_pylist()
    found = [row for row in read if day is None or row["day"] == date.fromisoformat(day)]
    new = {"n": len(found), "text": "new"} | ({"day": date.fromisoformat(day)} if day else {})
    return [new] if "Append" in TABLE_OF[assignment.table] else [*found, new]


TABLE_OF: dict[str, str] = {}
"""The write mode of each table, by its identifier."""


class CountingLake:
    def __init__(self, lake: Lake, table: Table) -> None:
        self.lake, self.table, self.lakehouse = lake, table, Counting(lake.settings)
        self.lakehouse.meanwhile = []
        TABLE_OF[table.identifier] = repr(table.write_mode)

    def run(self, day: str | None = None) -> None:
        result = dg.materialize(
            [table_asset(self.table)],
            instance=self.lake.instance,
            resources={"lakehouse": self.lakehouse},
            partition_key=day,
            raise_on_error=False,
        )
        assert result.success, failure_text(result)

    def found(self, day: str | None = None) -> list[int]:
        rows = self.lake.rows(self.table).to_pylist()
        return sorted(row["n"] for row in rows if day is None or str(row["day"]) == day)


@pytest.mark.parametrize("mode", [FullRefresh(), Append()])
def test_what_another_run_has_added_meanwhile_stays(lake: Lake, mode: WriteMode) -> None:
    demo = CountingLake(lake, whole(write_mode=mode, reads=["demo.whole"]))
    demo.run()
    demo.lakehouse.meanwhile.append(demo.run)
    demo.run()
    assert demo.found() == [0, 1, 2]
    assert demo.lakehouse.staged == 4


def test_of_a_partition_it_stays_as_well_and_other_partitions_stage_nothing_again(lake: Lake) -> None:
    demo = CountingLake(lake, numbers(write_mode=Overwrite(), reads=["demo.numbers"]))
    demo.run(FIRST)
    demo.lakehouse.meanwhile.append(lambda: demo.run(FIRST))
    demo.run(FIRST)
    assert demo.found(FIRST) == [0, 1, 2]
    assert demo.lakehouse.staged == 4
    demo.lakehouse.meanwhile.append(lambda: demo.run(SECOND))
    demo.run(FIRST)
    assert (demo.found(FIRST), demo.found(SECOND)) == ([0, 1, 2, 3], [0])
    assert demo.lakehouse.staged == 6


def test_a_compaction_meanwhile_has_nothing_staged_again(lake: Lake) -> None:
    demo = CountingLake(lake, whole(write_mode=Append(), reads=["demo.whole"]))
    demo.run()
    demo.run()

    def act() -> None:
        assert compact(load_lake(lake.settings), "demo.whole", token(), min_input_files=2).landed

    demo.lakehouse.meanwhile.append(act)
    demo.run()
    assert demo.found() == [0, 1, 2]
    assert demo.lakehouse.staged == 3
