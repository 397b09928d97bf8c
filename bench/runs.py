"""Eight Dagster runs of one table at once, each with partitions of its own, on one instance and a real REST catalog.
Each run is a process; their workers share the pool's two slots."""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from bench.context import Bench
from bench.report import Section, Spread, Verdict
from tests.support.tables import DAYS, numbers

RUNS = 8
DAYS_EACH = 4
ROWS_A_DAY = 3
WORKERS = 2
TABLE = "bench.eight_runs"


def measure(bench: Bench) -> list[Section]:
    """One section."""
    from pyiceberg.catalog import load_catalog

    from tests.support.servers import seaweedfs

    runs = bench.times(RUNS, quick=2)
    keys = DAYS.get_partition_keys()
    spans = [(keys[n * DAYS_EACH], keys[(n + 1) * DAYS_EACH - 1]) for n in range(runs)]
    with seaweedfs() as server:
        lake = {**server.environment(), "LAKEHOUSE_STAGING": f"{server.plain}/staging"}
        env = {**bench.environment("runs"), **lake, "LAKEHOUSE_MAX_WORKERS": str(WORKERS)}
        bench.python("-m", "bench.runs", env=env)
        started = time.monotonic()
        with ThreadPoolExecutor(runs) as pool:
            children = [pool.submit(bench.python, "-m", "bench.runs", *span, env=env) for span in spans]
        seconds = time.monotonic() - started
        table = load_catalog("lake", **server.properties()).load_table(TABLE)
        rows, snapshots = table.scan().count(), len(table.snapshots())
    failures = [str(child.exception()) for child in children if child.exception()]
    finished = [child.result().lines[0] for child in children if not child.exception()]
    expected = runs * DAYS_EACH * ROWS_A_DAY
    found = f"{len(failures)} failed, {snapshots} snapshots, {rows} of {expected} rows"
    return [
        Section(
            f"{runs} Dagster runs of one table at once, {DAYS_EACH} partitions each, a pool of {WORKERS} workers",
            ("runs", "failed", "snapshots", "rows", "commit attempts", "a run, s", "all, s"),
            [
                (
                    runs,
                    len(failures),
                    snapshots,
                    f"{rows} of {expected}",
                    sum(t["attempts"] for t in finished),
                    Spread.of([t["green"] for t in finished]) if finished else "",
                    f"{seconds:.1f}",
                )
            ],
            [
                Verdict(
                    "0 failed, one snapshot a run, all rows there",
                    found,
                    (len(failures), snapshots, rows) == (0, runs, expected),
                )
            ],
            ["All: from the start of the first process to the end of the last, Dagster's import included.", *failures],
        )
    ]


def prepare() -> None:
    from bench.one_run import prepare

    prepare(numbers(identifier=TABLE))


def run(first: str, last: str) -> None:
    """One run, in this process, on the home's instance."""
    from bench.one_run import materialize

    result, start, end = materialize(numbers(identifier=TABLE), first, last)
    (metadata, *_) = [event.materialization.metadata for event in result.get_asset_materialization_events()]
    print(json.dumps({"green": end - start, "attempts": metadata["commit_attempts"].value}))


if __name__ == "__main__":
    run(*sys.argv[1:]) if sys.argv[1:] else prepare()
