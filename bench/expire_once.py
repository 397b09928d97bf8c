"""One expiry of a table that is all history, in a process of its own: ours, or one of PyIceberg's own ways.
Prints one line of JSON. No data files and no manifests exist: an expiry reads none."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table.snapshots import Summary

from bench.synthetic import TABLE, properties
from lakehouse_assets.commit.expire import ExpiryPolicy, expire, plan_expiry
from lakehouse_assets.commit.tokens import NEWEST
from tests.support.histories import DAY, NOW, History

# As many entries as a publish leaves.
SUMMARY = {
    "added-data-files": "24",
    "added-files-size": "73400320",
    "added-records": "1000000",
    "changed-partition-count": "1",
    "deleted-data-files": "24",
    "deleted-records": "1000000",
    "removed-files-size": "73400320",
    "total-data-files": "8760",
    "total-delete-files": "0",
    "total-equality-deletes": "0",
    "total-files-size": "26843545600",
    "total-position-deletes": "0",
    "total-records": "365000000",
    "lakehouse.token": "0b6f3f0e-7d0c-4d0e-9f57-2f1f5f0c9a11",
}


def create(home: Path, snapshots: int) -> Catalog:
    """A table with an hourly snapshot each, and the run tokens of the newest."""
    (home / "warehouse").mkdir(parents=True)
    history = History((home / "warehouse" / "t").as_uri())
    for n in range(snapshots):
        token = f"{n:08x}-7d0c-4d0e-9f57-2f1f5f0c9a11"
        history.commit((snapshots - n) / 24, run=token if snapshots - n <= NEWEST else None)
        summary = Summary(history.snapshots[-1].summary.operation, **SUMMARY)  # type: ignore[union-attr]
        history.snapshots[-1] = history.snapshots[-1].model_copy(update={"summary": summary})
    location = home / "t.metadata.json"
    location.write_text(history.metadata.model_dump_json())
    catalog = load_catalog("lake", **properties(home))
    catalog.create_namespace("nyc")
    catalog.register_table(TABLE, location.as_uri())
    return catalog


def main(home: Path, way: str, snapshots: int, gone: int) -> None:
    """way: ``ours``; ``older_than``, PyIceberg's own by time; ``by_ids``, PyIceberg's own by id."""
    catalog = create(home, snapshots)
    os.sync()
    started = time.perf_counter()
    if way == "ours":
        policy = ExpiryPolicy(minimum=1, age=timedelta(days=(snapshots - gone) / 24))
        expire(catalog, TABLE, lambda metadata: plan_expiry(TABLE, metadata, policy, NOW).expiry)
    elif way == "older_than":
        youngest = NOW - (snapshots - gone) * DAY // 24
        catalog.load_table(TABLE).maintenance.expire_snapshots().older_than(
            datetime.fromtimestamp(youngest / 1000, UTC)
        ).commit()
    else:
        table = catalog.load_table(TABLE)
        ids = [snapshot.snapshot_id for snapshot in table.snapshots()[:gone]]
        table.maintenance.expire_snapshots().by_ids(ids).commit()
    seconds = time.perf_counter() - started
    after = catalog.load_table(TABLE)
    print(json.dumps({"seconds": seconds, "gone": snapshots - len(after.snapshots()), "log": len(after.history())}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
