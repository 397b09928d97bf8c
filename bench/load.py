"""Many workers for few runs: what driving them costs, and that the pool holds; the workers are simulated (cloud.py).
One run of 200 chunks and ten runs of 20 at once on a pool of 8, and one run of 1,000 chunks."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.context import ROOT, Bench
from bench.report import Section, Verdict, at_most
from tests.servers import s3_requests

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
        s3 = seen["s3"] - seen["own"] * workers
        slot_seconds = seconds * min(slots, seen["most"]) / workers  # of a worker, starting and ending included
        rows.append(
            (
                f"{runs} x {chunks:,}",
                slots,
                seen["most"],
                f"{seen['done']} of {workers}",
                f"{seconds:.0f}",
                f"{slot_seconds - WORKER_SECONDS:.1f}",
                f"{calls / workers:.1f} + {s3 / workers:.1f} ({seen['own']})",
                f"{(calls + s3) / workers / slot_seconds * 60:.0f}",
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
                "calls a worker: ECS + S3 (its own)",
                "calls a running worker a minute",
                "CPU a worker, ms",
                "peak of a run's process, MiB",
            ),
            rows,
            verdicts,
            [
                "ECS is polled every 5 s. Each run is a process; plan, audit and commit are in its CPU, memory, calls.",
                "S3's are counted by the server: boto3's and PyArrow's. A worker's own, in brackets, are not in them; "
                "they are those of one worker that stages when nobody else is there.",
            ],
        )
    ]


def _case(bench: Bench, runs: int, chunks: int, slots: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    home = f"load-{runs}-{chunks}"
    with _cloud(bench.home / f"cloud-{runs}-{chunks}") as (cloud, seen):
        env = {**bench.environment(home), **cloud["environment"], "LAKEHOUSE_MAX_WORKERS": str(slots)}
        bench.python("-m", "bench.load", "prepare", env=env)
        before = s3_requests(cloud["metrics"])
        with ThreadPoolExecutor(runs) as pool:
            spans = [(n * chunks, (n + 1) * chunks - 1) for n in range(runs)]
            answers = list(pool.map(lambda span: bench.python("-m", "bench.load", "run", *span, env=env), spans))
        s3 = s3_requests(cloud["metrics"]) - before
    return [answer.lines[0] for answer in answers], {**seen, "s3": s3}


@contextmanager
def _cloud(folder: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """How to use it, and what it saw once it is over."""
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


def run(first: int, last: int) -> None:
    """One run of as many chunks, in this process."""
    from bench.one_run import materialize

    table = _table()
    keys = table.partitions.get_partition_keys()
    before = resource.getrusage(resource.RUSAGE_SELF)
    _, start, end = materialize(table, keys[first], keys[last])
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"start": start, "end": end, "cpu": cpu, "peak": after.ru_maxrss * 1024 / MIB}))


def prepare() -> None:
    from bench.one_run import prepare

    prepare(_table())


def _table() -> Any:
    import dagster as dg

    from tests.tables import numbers

    days = dg.DailyPartitionsDefinition("2020-01-01", end_date="2024-01-01")
    return replace(numbers(identifier=TABLE, partitions_per_worker=1), partitions=days)


if __name__ == "__main__":
    prepare() if sys.argv[1] == "prepare" else run(int(sys.argv[2]), int(sys.argv[3]))
