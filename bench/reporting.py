"""One run of thousands of partitions: the seconds that Dagster takes before the worker starts and after the commit.
Dynamic partitions and daily ones; each run is a process, on a home of its own. Its worker needs no Spark."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from datetime import date, timedelta

import dagster as dg

from bench.context import Bench, BenchError
from bench.report import Section, Spread, at_most
from lakehouse_assets.declare.table import Table

FIRST = date(2004, 1, 1)
NAMED = "bench"
SIZES = {"dynamic": (500, 5_000), "daily": (731, 7_305)}  # of daily ones two years, and twenty
QUICK = (20, 60)
GROWTH = 1.5
"""How much longer a partition's report may take in the larger run: what is quadratic takes ten times as long."""


def measure(bench: Bench) -> list[Section]:
    """One section."""
    cases = [(kind, size) for kind, sizes in SIZES.items() for size in (QUICK if bench.quick else sizes)]
    measured: dict[tuple[str, int], list[dict[str, float]]] = {case: [] for case in cases}
    for turn in range(bench.times(2)):
        for kind, size in cases:
            env = bench.environment(f"reporting-{kind}-{size}-{turn}")
            measured[kind, size] += bench.python("-m", "bench.reporting", kind, size, env=env).lines
    reports = {
        (kind, size): Spread.of([t["report"] * 1000 / size for t in runs]) for (kind, size), runs in measured.items()
    }
    rows = [
        (
            f"{size:,} {kind}",
            *(Spread.of([t[part] for t in runs]) for part in ("ask", "plan", "publish", "report")),
            reports[kind, size],
        )
        for (kind, size), runs in measured.items()
    ]
    verdicts = []
    for kind, ((_, few), (_, many)) in ((kind, [c for c in cases if c[0] == kind]) for kind in SIZES):
        growth = reports[kind, many].median / reports[kind, few].median
        claim = f"of {many:,} {kind} partitions one is reported in at most {GROWTH} x the time of one of {few:,}"
        verdicts.append(at_most(claim, growth, GROWTH, " x"))
    header = ("partitions of one run", "ask, s", "plan, s", "publish, s", "report, s", "report, ms a partition")
    notes = [
        "Ask: until Dagster has noted what is to be materialized. Plan: from there to the worker's start. Report: from "
        "the commit to the run's end. One worker and one commit a run, three rows a partition; SQLite, local files."
    ]
    return [Section("One run of many partitions", header, rows, verdicts, notes)]


def _table(kind: str, size: int) -> Table:
    from tests.support.faults import many, tiny

    if kind == "dynamic":
        return replace(many(NAMED), identifier="bench.many")
    days = dg.DailyPartitionsDefinition(FIRST.isoformat(), end_date=(FIRST + timedelta(days=size)).isoformat())
    return tiny(identifier="bench.many", partitions=days, partitions_per_worker=None)


def run(kind: str, size: int) -> dict[str, float]:
    """The seconds of one run's parts, in this process and a new home, by the run's own events."""
    from bench.one_run import materialize, prepare
    from tests.support.faults import FaultyLakehouse

    table = _table(kind, size)
    keys = [(FIRST + timedelta(days=n)).isoformat() for n in range(size)]
    prepare(table)
    with dg.DagsterInstance.get() as instance:
        instance.add_dynamic_partitions(NAMED, keys)
    requested = time.time()
    result, start, end = materialize(table, keys[0], keys[-1], FaultyLakehouse)
    with dg.DagsterInstance.get() as instance:
        log = instance.all_logs(result.run_id)
        reported = instance.get_materialized_partitions(table.key)
    if not result.success or reported != set(keys):
        raise BenchError(f"{size} {kind} partitions: {len(reported)} reported, see {result.run_id}")
    worker = next(entry.timestamp for entry in log if entry.user_message.endswith(" started"))
    published = next(entry for entry in log if ": published snapshot " in entry.user_message)
    seconds = float(published.user_message.rpartition(" in ")[2].split()[0])
    return {"ask": start - requested, "plan": worker - start, "publish": seconds, "report": end - published.timestamp}


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], int(sys.argv[2]))))
