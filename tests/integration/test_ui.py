"""What the UI's buttons ask of the daemon, asked by GraphQL; the browser itself is in tests/browser.
Pools are in test_pools.py."""

from __future__ import annotations

import pytest

from resources.catalog import load_lake
from resources.settings import read_settings
from tests.dagster_server import DagsterServer, until

pytestmark = pytest.mark.server


def test_a_backfill_of_scattered_keys_is_one_run_and_one_commit_for_each_contiguous_range(
    pool_server: DagsterServer,
) -> None:
    keys = ["2024-02-01", "2024-02-02", "2024-02-05", "2024-02-07", "2024-02-08", "2024-02-09"]
    backfill = pool_server.backfill(("demo", "light"), keys)
    runs = until(lambda: pool_server.backfilled(backfill), seconds=180)
    ranges = {
        (run["tags"]["dagster/asset_partition_range_start"], run["tags"]["dagster/asset_partition_range_end"]): run
        for run in runs
    }
    assert set(ranges) == {(keys[0], keys[1]), (keys[2], keys[2]), (keys[3], keys[5])}

    table = load_lake(read_settings({"LAKEHOUSE_HOME": str(pool_server.home)})).load_table("demo.light")
    told = [snapshot.summary.additional_properties for snapshot in table.snapshots()]
    of_backfill = {t["lakehouse.run-id"]: t["lakehouse.partitions"] for t in told}
    assert {run["runId"]: of_backfill[run["runId"]] for run in runs} == {
        ranges[keys[0], keys[1]]["runId"]: "2024-02-01..2024-02-02 (2)",
        ranges[keys[2], keys[2]]["runId"]: "2024-02-05",
        ranges[keys[3], keys[5]]["runId"]: "2024-02-07..2024-02-09 (3)",
    }
    assert len([t for t in told if t["lakehouse.run-id"] in {run["runId"] for run in runs}]) == 3
    landed = table.scan(row_filter="day >= '2024-02-01'", selected_fields=("day",)).to_arrow()["day"].to_pylist()
    assert sorted(map(str, landed)) == sorted(keys * 3)
