"""Many workers for few runs: what driving them costs, and that the pool holds; the workers are simulated (cloud.py).
One run of 200 chunks and ten runs of 20 at once on a pool of 8, and one run of 1,000 chunks."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.context import ROOT, Bench
from bench.report import Section, Verdict, at_most
from resources.settings import read_settings

WORKER_SECONDS = 2.0
MIB = 2**20
TABLE = "bench.load"


def measure(bench: Bench) -> list[Section]:
    """One section."""
    cases = [(1, 200, 8), (10, 20, 8), (1, 1_000, 200)] if not bench.quick else [(1, 16, 8), (2, 8, 8)]
    measured = [_case(bench, *case) for case in cases]
    rows, verdicts = [], []
    for (runs, chunks, slots), (told, seen) in zip(cases, measured, strict=True):
        workers = runs * chunks
        seconds = max(t["end"] for t in told) - min(t["start"] for t in told)
        calls = sum(seen["calls"].values())
        s3 = sum((Counter(t["s3"]) for t in told), Counter()).total()
        rows.append(
            (
                f"{runs} x {chunks:,}",
                slots,
                seen["most"],
                f"{seen['done']} of {workers}",
                f"{seconds:.0f}",
                f"{seconds * slots / workers - WORKER_SECONDS:.1f}",
                f"{calls / workers:.1f} + {s3 / workers:.1f}",
                f"{(calls + s3) / workers / (seconds * slots / workers) * 60:.0f}",
                f"{sum(t['cpu'] for t in told) / workers * 1000:.0f}",
                f"{max(t['peak'] for t in told):.0f}",
            )
        )
        held = (seen["most"] <= slots, seen["done"], seen["tasks"]) == (True, workers, workers)
        verdicts.append(Verdict(f"{runs} x {chunks}: never more than {slots}, all done, no twin", str(seen), held))
    verdicts.append(
        at_most("driven in under 500 MB", max(t["peak"] for told, _ in measured for t in told), 500, " MiB")
    )
    return [
        Section(
            f"Workers of {WORKER_SECONDS:.0f} s on ECS, simulated: what driving them takes",
            (
                "runs x workers",
                "slots",
                "most at once",
                "done",
                "all, s",
                "overhead a worker in its slot, s",
                "calls a worker: ECS + S3",
                "calls a running worker a minute",
                "CPU a worker, ms",
                "peak of a run's process, MiB",
            ),
            rows,
            verdicts,
            ["ECS is polled every 5 s. Each run is a process; plan, audit and commit are in its CPU and memory."],
        )
    ]


def _case(bench: Bench, runs: int, chunks: int, slots: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    home = f"load-{runs}-{chunks}"
    with _cloud(bench.home / f"cloud-{runs}-{chunks}") as (environment, seen):
        env = {**bench.environment(home), **environment, "LAKEHOUSE_MAX_WORKERS": str(slots)}
        bench.python("-m", "bench.load", "prepare", env=env)
        with ThreadPoolExecutor(runs) as pool:
            spans = [(n * chunks, (n + 1) * chunks - 1) for n in range(runs)]
            answers = list(pool.map(lambda span: bench.python("-m", "bench.load", "run", *span, env=env), spans))
    return [answer.lines[0] for answer in answers], seen


@contextmanager
def _cloud(folder: Path) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    command = [sys.executable, "-m", "bench.cloud", str(folder), str(WORKER_SECONDS)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    seen: dict[str, Any] = {}
    try:
        yield json.loads(process.stdout.readline()), seen
        said, _ = process.communicate(timeout=60)
        seen.update(json.loads(said.splitlines()[-1]))
    finally:
        process.kill()
        process.wait()


def prepare() -> None:
    """Make the home, its instance and the table ready once."""
    import dagster as dg

    from lakehouse_assets.cli import home
    from lakehouse_assets.cli.instance import tidy
    from lakehouse_assets.lakehouse.target import open_target
    from resources.catalog import load_lake

    settings = read_settings()
    home.prepare(settings)
    open_target(load_lake(settings), _table())
    with dg.DagsterInstance.get() as instance:
        tidy(instance, settings)


def run(first: int, last: int) -> None:
    """One run of as many chunks, in this process."""
    import dagster as dg

    from lakehouse_assets.cli import home
    from lakehouse_assets.lakehouse.asset import RESOURCE, table_asset
    from lakehouse_assets.lakehouse.resource import Lakehouse

    settings = read_settings()
    home.prepare(settings)
    lakehouse, table, calls = Lakehouse(settings), _table(), Counter()
    lakehouse.launcher()._s3.meta.events.register("before-call", lambda model, **_: calls.update([model.name]))
    keys = table.partitions.get_partition_keys()
    span = {"dagster/asset_partition_range_start": keys[first], "dagster/asset_partition_range_end": keys[last]}
    before = resource.getrusage(resource.RUSAGE_SELF)
    with dg.DagsterInstance.get() as instance:
        result = dg.materialize([table_asset(table)], instance=instance, resources={RESOURCE: lakehouse}, tags=span)
        stats = instance.get_run_stats(result.run_id)
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    told = {"start": stats.start_time, "end": stats.end_time, "cpu": cpu, "peak": after.ru_maxrss * 1024 / MIB}
    print(json.dumps({**told, "s3": calls}))


def _table() -> Any:
    import dagster as dg

    from tests.tables import numbers

    days = dg.DailyPartitionsDefinition("2020-01-01", end_date="2024-01-01")
    return replace(numbers(identifier=TABLE, partitions_per_worker=1), partitions=days)


if __name__ == "__main__":
    prepare() if sys.argv[1] == "prepare" else run(int(sys.argv[2]), int(sys.argv[3]))
