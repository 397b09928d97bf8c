"""Runs whose steps read the table that they change, by a worker in this process that needs no Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from typing import Any

import dagster as dg
import pyarrow as pa
from pyiceberg.table import StaticTable

from lakehouse_assets.commit.tokens import TOKEN
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.launchers.base import Launcher
from lakehouse_assets.environment.launchers.inline import InlineLauncher
from lakehouse_assets.extensions.builtin import EXTENSIONS
from lakehouse_assets.inputs.hook import Pins
from lakehouse_assets.run.asset import table_asset
from lakehouse_assets.run.resource import Lakehouse
from lakehouse_assets.wire.receipts import Receipt
from lakehouse_assets.wire.work import Assignment, decode
from tests.conftest import Lake, failure_text
from tests.support.light_stage import register


class Counting(Lakehouse):
    """Its workers add to what they find of each of their days, or of the whole table, a row with its number of rows."""

    def __init__(self, lake: Lake, table: Table) -> None:
        super().__init__(lake.settings)
        self.replaces = table.write_mode.replaces
        self.meanwhile = list[Callable[[], object]]()
        """What happens once a worker has read, each once."""
        self.staged = 0

    def launcher(self, compute: str | None = None) -> Launcher:
        return InlineLauncher(self.perform)

    def perform(self, payload: Mapping[str, Any], _: object) -> Mapping[str, Any]:
        self.staged += 1
        assignment = Assignment.from_json(payload)
        rows = [row for day in assignment.window.keys or (None,) for row in self._counted(assignment, day)]
        if self.meanwhile:
            self.meanwhile.pop()()
        fork = register(assignment.fork_base, {})
        written = pa.Table.from_pylist(rows, schema=fork.schema().as_arrow())
        fork.append(written, snapshot_properties={TOKEN: assignment.token})
        about = {"created_at": datetime.now(UTC).isoformat(), "worker": "test", "stage_seconds": 0.0}
        receipt = Receipt.of(assignment, metadata_location=fork.metadata_location, rows=len(rows), **about)
        return {"receipt": receipt.to_json()}

    def _counted(self, assignment: Assignment, day: str | None) -> list[dict[str, Any]]:
        (pin,) = decode(Pins, assignment.extensions["inputs"].told["pins"])
        read = StaticTable.from_metadata(pin.metadata).scan(snapshot_id=pin.snapshot_id).to_arrow().to_pylist()
        found = [row for row in read if day is None or row["day"] == date.fromisoformat(day)]
        new = {"n": len(found), "text": "new"} | ({"day": date.fromisoformat(day)} if day else {})
        return [*found, new] if self.replaces else [new]


class CountingLake:
    """One such table."""

    def __init__(self, lake: Lake, table: Table) -> None:
        self.lake, self.table, self.lakehouse = lake, table, Counting(lake, table)

    def run(self, day: str | None = None) -> dict[str, Any]:
        """The metadata of its materialization."""
        result = dg.materialize(
            [table_asset(self.table, EXTENSIONS)],
            instance=self.lake.instance,
            resources={"lakehouse": self.lakehouse},
            partition_key=day,
            raise_on_error=False,
        )
        assert result.success, failure_text(result)
        (event,) = result.get_asset_materialization_events()
        return {name: value.value for name, value in event.materialization.metadata.items()}

    def found(self, day: str | None = None) -> list[int]:
        rows = self.lake.rows(self.table).to_pylist()
        return sorted(row["n"] for row in rows if day is None or str(row["day"]) == day)
