"""`lakehouse trace`: from a partition down to the files it was made from, as it is and as it was.
What is pinned and recorded is in test_inputs.py."""

from __future__ import annotations

import gzip
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.table import Table
from lakehouse_assets.extensions.builtin import EXTENSIONS
from lakehouse_assets.inputs.trace import Trace, tree_lines
from lakehouse_assets.run.asset import plan_job, table_asset
from lakehouse_assets.run.resource import Lakehouse
from tests.conftest import Lake, failure_text
from tests.support.tables import DAYS

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("inline")]
MONTHS = dg.MonthlyPartitionsDefinition("2024-01-01", end_date="2024-03-01")
LEFT_OUT = re.compile(r"snapshot \d+, |\d\d\d\d-\d\d-\d\d [\d:.]+ UTC|, run \w+|, code [\w-]+")
COLUMNS = [column("day", "date"), column("n", "long")]

RAW = Table("demo.raw", COLUMNS, "tests.support.input_steps:dropped", partitions=DAYS, partitioned_by=["day"])
DOUBLED = replace(RAW, identifier="demo.doubled", step="tests.support.input_steps:doubled", deps=[RAW.key])
MONTHLY = Table(
    "demo.monthly",
    [column("month", "date"), column("n", "long")],
    "tests.support.input_steps:summed",
    partitions=MONTHS,
    partitioned_by=["month"],
    deps=[DOUBLED.key],
)
TABLES = (RAW, DOUBLED, MONTHLY)


def drop_file(lake: Lake, day: str, *numbers: int) -> None:
    folder = Path(lake.settings.landing, "demo", "raw")
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n".join(["n", *map(str, numbers)])
    (folder / f"{day}.csv.gz").write_bytes(gzip.compress(f"{text}\n".encode()))


def fill(lake: Lake, table: Table, first: str, last: str) -> None:
    result = lake.run(table, first, last)
    assert result.success, failure_text(result)


def traced(lake: Lake, table: Table, partition: str | None, at: datetime | None = None) -> list[str]:
    """The lines, with snapshots, runs, code and times left out."""
    graph = dg.Definitions(
        [*(table_asset(table, EXTENSIONS) for table in TABLES)], resources={"lakehouse": None}
    ).resolve_asset_graph()
    lines = tree_lines(Trace(lake.instance, graph).of(table.key, partition, at))
    return [LEFT_OUT.sub("", line) for line in lines]


def snapshots(lake: Lake, table: Table, partition: str) -> Sequence[str]:
    graph = dg.Definitions(
        [*(table_asset(table, EXTENSIONS) for table in TABLES)], resources={"lakehouse": None}
    ).resolve_asset_graph()
    return re.findall(r"snapshot (\d+)", "\n".join(tree_lines(Trace(lake.instance, graph).of(table.key, partition))))


def test_it_leads_from_a_partition_to_the_files_it_was_made_from(lake: Lake) -> None:
    days = ("2024-01-01", "2024-01-02", "2024-01-03")
    for day in days:
        drop_file(lake, day, 1, 2)
    fill(lake, RAW, days[0], days[1])
    fill(lake, RAW, days[2], days[2])
    fill(lake, DOUBLED, days[0], days[2])
    fill(lake, MONTHLY, "2024-01-01", "2024-01-01")
    landing = f"{lake.settings.landing}/demo/raw"
    size = Path(lake.settings.landing, "demo", "raw", f"{days[0]}.csv.gz").stat().st_size
    assert traced(lake, MONTHLY, "2024-01-01") == [
        "demo.monthly 2024-01-01: ",
        "├─ demo.doubled 2024-01-01..2024-01-03 (3): ",
        "│  ├─ demo.raw 2024-01-03: ",
        f"│  │  └─ {landing}/2024-01-03.csv.gz: {size} bytes of ",
        "│  └─ demo.raw 2024-01-01..2024-01-02 (2): ",
        f"│     ├─ {landing}/2024-01-01.csv.gz: {size} bytes of ",
        f"│     └─ {landing}/2024-01-02.csv.gz: {size} bytes of ",
        "└─ demo.doubled 2024-01-04..2024-01-31 (28): not materialized",
    ]


def test_what_was_there_at_a_time_is_told_and_what_changed_since_is_not_named(lake: Lake) -> None:
    day = "2024-01-01"
    drop_file(lake, day, 1)
    fill(lake, RAW, day, day)
    fill(lake, DOUBLED, day, day)
    before, moment = snapshots(lake, DOUBLED, day), datetime.now(UTC)
    time.sleep(0.01)
    drop_file(lake, day, 1, 2, 3)
    fill(lake, RAW, day, day)
    assert snapshots(lake, DOUBLED, day) == before, "it was made from the older version"
    fill(lake, DOUBLED, day, day)
    after = snapshots(lake, DOUBLED, day)
    assert not {*after} & {*before}
    graph = dg.Definitions(
        [*(table_asset(table, EXTENSIONS) for table in TABLES)], resources={"lakehouse": None}
    ).resolve_asset_graph()
    then = "\n".join(tree_lines(Trace(lake.instance, graph).of(DOUBLED.key, day, moment)))
    assert re.findall(r"snapshot (\d+)", then) == before
    assert traced(lake, DOUBLED, day, moment - timedelta(days=1)) == ["demo.doubled 2024-01-01: not materialized"]


def test_the_plan_names_partitions_whose_input_was_made_anew_and_by_which_run(lake: Lake) -> None:
    days = ("2024-01-01", "2024-01-02", "2024-01-03")
    for day in days:
        drop_file(lake, day, 1)
    fill(lake, RAW, days[0], days[2])
    fill(lake, DOUBLED, days[0], days[2])
    assert planned(lake) == []
    again = lake.run(RAW, days[1], days[1])
    (row,) = planned(lake)
    assert row[:2] == ("demo.doubled", "input demo.raw of 1 of 3 partitions: 2024-01-02")
    assert again.run_id[:8] in row[3]
    assert str(lake.table(RAW).current_snapshot().snapshot_id) in row[3]
    fill(lake, DOUBLED, days[1], days[1])
    assert planned(lake) == []


def planned(lake: Lake) -> list[tuple[str, ...]]:
    """What `lakehouse plan` shows of the tables that are there."""
    location = dg.Definitions(
        [*(table_asset(table, EXTENSIONS) for table in TABLES)],
        jobs=[plan_job(TABLES)],
        resources={"lakehouse": Lakehouse(lake.settings)},
    )
    done = location.resolve_job_def("lakehouse_plan").execute_in_process(instance=lake.instance)
    (event,) = (one for one in done.all_events if one.is_successful_output)
    records = event.step_output_data.metadata["plan"].records
    return [tuple(record.data.values()) for record in records if record.data["on the lake"] != "not there"]
