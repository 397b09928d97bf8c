"""Runs of many partitions: what they ask for each, and what is told of each, also by a run that died half-way.
Deaths are real, and so is the instance, as `make run` has it; workers are tests/support/tiny_worker.py's."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from lakehouse_assets.cli.home import INSTANCE
from lakehouse_assets.declare.table import Table
from lakehouse_assets.drive.liveness import reap
from lakehouse_assets.environment.settings import Settings
from tests.support.faults import FaultyLake, Signs, from_failure, many, rows_by_day, tiny
from tests.support.twins import twins

pytestmark = pytest.mark.spark
NAMED = "named"
DYNAMIC = many(NAMED)
DAILY = tiny(partitions=dg.DailyPartitionsDefinition("2020-01-01", end_date="2021-01-01"), partitions_per_worker=None)
KEYS = [(date(2020, 1, 1) + timedelta(days=n)).isoformat() for n in range(250)]
BATCH = 100


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    """As `make run` opens it, with batches of BATCH events."""
    (tmp_path / "dagster").mkdir()
    (tmp_path / "dagster" / "dagster.yaml").symlink_to(INSTANCE)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))
    monkeypatch.setenv("DAGSTER_EVENT_BATCH_SIZE", str(BATCH))
    with dg.DagsterInstance.get() as instance:
        instance.add_dynamic_partitions(NAMED, KEYS)
        yield instance


@pytest.fixture
def lake(settings: Settings, instance: dg.DagsterInstance) -> FaultyLake:
    settings.home.mkdir(exist_ok=True)
    return FaultyLake(settings, instance)


def told(lake: FaultyLake, run_id: str) -> list[tuple[str, Any, Any]]:
    """Of each materialization of the run: partition, its rows, the run's snapshot; in the order of the partitions."""
    events = [
        e.asset_materialization for e in lake.instance.all_logs(run_id, dg.DagsterEventType.ASSET_MATERIALIZATION)
    ]
    return sorted(
        (m.partition, m.metadata["dagster/partition_row_count"].value, m.metadata["snapshot_id"].value) for m in events
    )


def all_of(lake: FaultyLake, keys: list[str]) -> list[tuple[str, Any, Any]]:
    """What is to be told of the keys: three rows in each, and the table's one snapshot."""
    assert lake.snapshots(DYNAMIC) == 1
    snapshot = lake.table(DYNAMIC).current_snapshot()
    return [(key, 3, str(snapshot.snapshot_id)) for key in keys]


@pytest.mark.parametrize("table", [DYNAMIC, DAILY], ids=["dynamic", "daily"])
def test_nothing_is_asked_for_each_partition(lake: FaultyLake, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[str] = Counter()
    window_keys = dg.TimeWindowPartitionsDefinition.get_partition_keys_in_time_window

    def keys_in_window(self: Any, *arguments: Any, **named: Any) -> Any:
        asked["windows"] += 1
        return window_keys(self, *arguments, **named)

    def statement(_connection: Any, _cursor: Any, text: str, *_: object) -> None:
        asked["dynamic"] += "dynamic_partitions" in text

    monkeypatch.setattr(dg.TimeWindowPartitionsDefinition, "get_partition_keys_in_time_window", keys_in_window)

    def count(keys: int) -> Counter[str]:
        asked.clear()
        assert lake.run(table, KEYS[0], KEYS[keys - 1]).success
        return asked.copy()

    count(2)  # the table is there from here on
    event.listen(Engine, "before_cursor_execute", statement)
    try:
        few, several = count(5), count(40)
    finally:
        event.remove(Engine, "before_cursor_execute", statement)
    assert few["dynamic"] + few["windows"] > 0
    for kind in ("dynamic", "windows"):
        assert several[kind] == few[kind], f"{kind}: {few} for 5 partitions, {several} for 40"


@pytest.mark.slow("Thousands of partitions at once, which no other test has.")
@pytest.mark.parametrize(
    ("death", "stored"),
    twins(
        [("killed_reporting", BATCH), ("killed_behind_commit", 0)], "To die before the first is told is to die telling."
    ),
    ids=["telling", "before it tells"],
)
def test_a_run_killed_behind_its_commit_tells_of_all_its_partitions_when_it_goes_on(
    lake: FaultyLake, death: str, stored: int
) -> None:
    child = lake.start(KEYS[0], KEYS[-1], named=NAMED, **{death: True})
    assert child.wait(120) == -signal.SIGKILL
    (killed,) = reap(lake.instance)
    assert rows_by_day(lake, DYNAMIC) == dict.fromkeys(KEYS, 3)
    assert len(told(lake, killed)) == stored

    resumed = lake.run(DYNAMIC, KEYS[0], KEYS[-1], tags=from_failure(killed))
    assert resumed.success
    assert told(lake, resumed.run_id) == all_of(lake, KEYS)
    assert lake.instance.get_materialized_partitions(DYNAMIC.key) == set(KEYS)
    assert len(Signs(lake).workers()) == 1, "nothing is staged again"
    said = [entry.user_message for entry in lake.instance.all_logs(resumed.run_id)]
    assert "demo.numbers: reporting 250 materialized partitions to Dagster" in said
