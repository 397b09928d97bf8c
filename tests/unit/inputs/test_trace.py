"""What a trace and a plan say of pins and rollbacks, by real runs with workers that need no Spark.
The tree down to the drop zone, with Spark: integration/test_trace.py."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime

import dagster as dg
import pytest

from lakehouse_assets.declare.modes import Append
from lakehouse_assets.declare.table import Table
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.extensions.builtin import EXTENSIONS
from lakehouse_assets.inputs.hook import pinned_in
from lakehouse_assets.inputs.trace import Made, Trace, tree_lines
from lakehouse_assets.run.asset import table_asset
from lakehouse_assets.run.jobs import PINNED
from lakehouse_assets.run.what_if import all_differences, metadata_of
from lakehouse_assets.time_text import parse_time, shown_time
from tests.conftest import failure_text
from tests.support.faults import FaultyLake, tiny

FIRST, SECOND = "2024-01-01", "2024-01-02"
UP = tiny(identifier="demo.up")
DOWN = tiny(identifier="demo.down", deps=[UP.key])
DIMENSION = tiny(identifier="demo.dimension", write_mode=Append(), unique=[], partitions_per_worker=None)
OF_LAST = tiny(
    identifier="demo.of_last", deps=[dg.AssetDep(DIMENSION.key, partition_mapping=dg.LastPartitionMapping())]
)


def graph():
    tables = (UP, DOWN, DIMENSION, OF_LAST)
    return dg.Definitions(
        [*(table_asset(table, EXTENSIONS) for table in tables)], resources={"lakehouse": None}
    ).resolve_asset_graph()


def fill(lake: FaultyLake, table: Table, day: str) -> str:
    """Returns the snapshot."""
    result = lake.run(table, day)
    assert result.success, failure_text(result)
    return str(lake.table(table).current_snapshot().snapshot_id)


def traced(lake: FaultyLake, table: Table, day: str, at: datetime | None = None) -> tuple[Made, ...]:
    return Trace(lake.instance, graph(), metadata_of(load_lake(lake.settings))).of(table.key, day, at)


def planned(lake: FaultyLake, table: Table) -> list[tuple[str, str]]:
    rows = all_differences(lake.instance, load_lake(lake.settings), [table], graph())
    return [(row[1], row[3]) for row in rows]


def test_the_pin_decides_what_was_read_not_the_partition_mapping(lake: FaultyLake) -> None:
    fill(lake, DIMENSION, FIRST)
    pinned = fill(lake, DIMENSION, SECOND)
    fill(lake, OF_LAST, FIRST)
    fill(lake, DIMENSION, FIRST)
    (made,) = traced(lake, OF_LAST, FIRST)
    summary = lake.table(OF_LAST).current_snapshot().summary
    assert json.loads(summary["lakehouse.inputs"])["demo.dimension"].startswith(f"{pinned}@")
    (of,) = made.inputs
    assert (of.asset, of.partitions, of.snapshot) == ("demo.dimension", (SECOND,), pinned)
    assert "not materialized" not in "\n".join(tree_lines([made]))
    (event,) = lake.instance.fetch_materializations(OF_LAST.key, limit=1).records
    materialization = event.asset_materialization
    of_old = {name: value for name, value in materialization.metadata.items() if name != PINNED}
    old = dg.AssetMaterialization(OF_LAST.key, metadata=of_old)
    assert (
        pinned_in(old, lake.table(OF_LAST).metadata)
        == pinned_in(materialization, None)
        == {DIMENSION.identifier: pinned}
    )


def test_what_was_rolled_back_is_neither_current_nor_the_newest_input(lake: FaultyLake) -> None:
    before = fill(lake, UP, FIRST)
    fill(lake, DOWN, FIRST)
    after = fill(lake, UP, FIRST)
    fill(lake, DOWN, SECOND)
    assert planned(lake, DOWN) == [("input demo.up of 1 of 2 partitions: 2024-01-01", planned(lake, DOWN)[0][1])]
    assert after in planned(lake, DOWN)[0][1]
    moment = datetime.now(UTC)
    time.sleep(0.01)
    lake.table(UP).manage_snapshots().set_current_snapshot(int(before)).commit()
    assert planned(lake, DOWN) == [
        ("input demo.up of 1 of 2 partitions: 2024-01-02", f"rolled back: snapshot {after} is not in its history")
    ]
    (now,) = traced(lake, UP, FIRST)
    assert now.snapshot == before
    assert re.search(rf"; snapshot {after} of run \w+ was rolled back$", str(now))
    (then,) = traced(lake, UP, FIRST, moment)
    assert then.snapshot == after
    (day,) = traced(lake, DOWN, FIRST)
    assert [one.snapshot for one in day.inputs] == [before]
    (of_printed,) = traced(lake, UP, FIRST, parse_time(shown_time(then.at)))
    assert of_printed.snapshot == after, "the time that was printed is that of this version"


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("2026-01-31T08:00", "2026-01-31T08:00:00.999999+00:00"),
        ("2026-01-31 08:00:05 UTC", "2026-01-31T08:00:05.999999+00:00"),
        ("2026-01-31 08:00:05.12 UTC", "2026-01-31T08:00:05.129999+00:00"),
        ("2026-01-31T08:00:05.123456+01:00", "2026-01-31T08:00:05.123456+01:00"),
    ],
)
def test_a_time_stands_for_all_of_its_last_digit(text: str, last: str) -> None:
    assert parse_time(text).isoformat() == last
