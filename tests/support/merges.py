"""A small table that changes are merged into, the rows its step returns, and what a run tells of its merge.
The steps are in change_steps.py; what a merge must do is the tests'."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import dagster as dg

from lakehouse_assets.commit.target import open_target
from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.modes import Merge, Rewrites
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import load_lake
from tests.conftest import Lake
from tests.support.change_steps import OTHERS, ROWS, append
from tests.support.twins import twins

PLAIN = ("id", "day", "n", "text")
"""The table's own columns."""
REWRITES = twins(Rewrites, "Which rows change is decided alike; test_merge.py writes in either way once.")
"""The kinds of rewrite, for tests in which the kind makes no difference but to Iceberg."""
CHANGES = (*PLAIN, "op", "at")
"""And those that the merge itself reads."""


def table(mode: Any = None, **options: Any) -> Table:
    """``demo.rows``, by day. mode: its write mode; by default a merge by ``id``."""
    return Table(
        **{
            "identifier": "demo.rows",
            "columns": [
                column("id", "long", required=True),
                column("day", "date"),
                column("n", "long"),
                column("text", "string"),
            ],
            "partitioned_by": ["day"],
            "step": "tests.support.change_steps:rows",
            "write_mode": mode or Merge(["id"], delete_when="op = 'D'", order_by="at"),
        }
        | options
    )


def give(lake: Lake, *rows: dict[str, Any], columns: Sequence[str] = CHANGES) -> None:
    """Let the step return these rows."""
    _write(lake, ROWS, [columns, *rows])


def seed(lake: Lake, of: Table, *rows: dict[str, Any]) -> None:
    """Has the table hold these rows, appended as by another engine: without a run, which takes Spark."""
    lake.settings.home.mkdir(exist_ok=True)
    open_target(load_lake(lake.settings), of)
    append(lake.settings, *rows)


def others(lake: Lake, *rows: dict[str, Any]) -> None:
    """Let somebody append these rows, one each time that the step runs."""
    _write(lake, OTHERS, rows)


def _write(lake: Lake, name: str, lines: Sequence[object]) -> None:
    lake.settings.home.mkdir(exist_ok=True)
    (lake.settings.home / name).write_text("\n".join(map(json.dumps, lines)))


def row(id: int | None, n: int | None = None, day: str = "2024-01-01", op: str = "U", at: int = 1) -> dict[str, Any]:
    return {"id": id, "day": day, "n": n, "text": f"t{n}", "op": op, "at": at}


def found(lake: Lake, of: Table) -> dict[int, tuple[str, int]]:
    rows = lake.rows(of).to_pylist()
    by_id = {r["id"]: (str(r["day"]), r["n"]) for r in rows}
    assert len(by_id) == len(rows), "a key is there twice"
    return by_id


def merged(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    """What the run's materialization tells of its merge."""
    (event,) = result.get_asset_materialization_events()
    metadata = event.materialization.metadata
    return {k.removeprefix("merge_"): v.value for k, v in metadata.items() if k.startswith("merge_")}


def logged(lake: Lake, result: dg.ExecuteInProcessResult) -> str:
    return "\n".join(entry.user_message for entry in lake.instance.all_logs(result.run_id))
