"""A table of many small files, and one compaction of it without a JVM, each in a process of its own.
``build`` prints nothing, ``compact`` one line of JSON: seconds, files, bytes, peak memory."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, DoubleType, IntegerType, LongType, NestedField, StringType, TimestampType

from bench.synthetic import properties
from lakehouse_assets.commit.tokens import RunToken
from lakehouse_assets.maintenance.rewrite.compact import compact

TABLE = "nyc.small_files"
DAYS = 10
ROWS = 2_670
"""Of one file, which makes it 110 kB."""
SCHEMA = Schema(
    NestedField(1, "day", DateType(), required=True),
    NestedField(2, "carrier", StringType()),
    NestedField(3, "tail", StringType()),
    NestedField(4, "origin", StringType()),
    NestedField(5, "flight", IntegerType()),
    NestedField(6, "departed", TimestampType()),
    NestedField(7, "arrived", TimestampType()),
    NestedField(8, "delay", DoubleType()),
    NestedField(9, "distance", DoubleType()),
    NestedField(10, "fuel", DoubleType()),
    NestedField(11, "passengers", LongType()),
    NestedField(12, "note", StringType()),
)
ORDER = SortOrder(SortField(2, IdentityTransform()), SortField(6, IdentityTransform()))


def main(action: str, home: Path, files: int) -> None:
    if action == "build":
        build(home, files)
    else:
        print(json.dumps(measured(home)))


def build(home: Path, files: int) -> None:
    """``files`` small files in DAYS partitions, by one append for each file of a partition."""
    (home / "warehouse").mkdir(parents=True)
    catalog = load_catalog("lake", **properties(home))
    catalog.create_namespace("nyc")
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "day"))
    table = catalog.create_table(TABLE, SCHEMA, partition_spec=spec, sort_order=ORDER)
    random = np.random.default_rng(7)
    days = [date(2013, 1, 1) + timedelta(days=n) for n in range(DAYS)]
    for _ in range(files // DAYS):
        table.append(pa.concat_tables(rows_of_day(random, day, ROWS) for day in days))


def rows_of_day(random: np.random.Generator, day: date, rows: int) -> pa.Table:
    """Rows of one day."""
    start = np.datetime64(day, "us")
    departed = start + random.integers(0, 86_400_000_000, rows)
    columns = {
        "day": pa.array([day] * rows),
        "carrier": random.choice(["AA", "B6", "DL", "EV", "MQ", "UA", "US", "WN"], rows),
        "tail": [f"N{n}" for n in random.integers(100, 4_000, rows)],
        "origin": random.choice(["EWR", "JFK", "LGA"], rows),
        "flight": random.integers(1, 9_000, rows, dtype=np.int32),
        "departed": departed,
        "arrived": departed + random.integers(3_600_000_000, 20_000_000_000, rows),
        "delay": pa.array(random.normal(12, 40, rows).round(1), mask=random.random(rows) < 0.03),
        "distance": random.integers(80, 5_000, rows).astype(float),
        "fuel": random.random(rows),
        "passengers": random.integers(0, 300, rows),
        "note": pa.array([f"gate {n}" for n in random.integers(1, 90, rows)], mask=random.random(rows) < 0.5),
    }
    return pa.table(columns).cast(SCHEMA.as_arrow())


def measured(home: Path) -> dict[str, float]:
    """One compaction of the whole table."""
    catalog: Catalog = load_catalog("lake", **properties(home))
    os.sync()  # this machine wrote the files a moment ago: writing them to disk must not count
    before, started, cpu = _peak(), time.perf_counter(), time.process_time()
    report = compact(catalog, TABLE, RunToken("bench", datetime.now(UTC)))
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    reports = report.partitions
    return {
        "seconds": seconds,
        "cpu": cpu,
        "landed": sum(p.outcome == "landed" for p in reports),
        "rows": sum(p.proof.after.rows for p in reports if p.proof),
        "files_before": sum(p.files_before for p in reports),
        "files_after": sum(p.files_after for p in reports),
        "mb_before": sum(p.bytes_before for p in reports) / 1e6,
        "mb_after": sum(p.bytes_after for p in reports) / 1e6,
        "before": before,
        "peak": _peak(),
    }


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
