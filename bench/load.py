"""Many workers for few runs: what driving them costs, and whether the pool holds. Workers are simulated (cloud.py).
One run of 200 chunks and ten runs of 20 at once on a pool of 8, long workers on it, and one run of 1,000 chunks."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.context import ROOT, Bench
from bench.report import Section, Verdict, at_least, at_most
from tests.support.servers import s3_requests

MIB = 2**20
TABLE = "bench.load"
# How often launchers ask the service, once for up to 100 tasks, and S3, once for each worker.
EVERY_SECONDS = 5.0
# Calls for one worker's start and receipt, and its share of its run's plan and commit, at most.
ONCE_CALLS = 28


@dataclass(frozen=True)
class Case:
    """chunks: of each run. slots: of the pool they share. seconds: a worker's work. full: whether all slots must be in
    use at once; short workers end while others start. steady: whether workers run long enough to count the calls of one
    that neither starts nor ends."""

    runs: int
    chunks: int
    slots: int
    seconds: float
    full: bool = False
    steady: bool = False

    @property
    def workers(self) -> int:
        return self.runs * self.chunks

    def __str__(self) -> str:
        return f"{self.runs} x {self.chunks:,} of {self.seconds:.0f} s"

    def allowed(self, slot_seconds: float) -> float:
        """Calls a minute of one that has its slot so long, at most."""
        polled = slot_seconds / EVERY_SECONDS * (1 + 1 / self.slots)
        return (ONCE_CALLS + polled) / slot_seconds * 60


CASES = (
    Case(1, 200, 8, 2.0),
    Case(10, 20, 8, 2.0),
    Case(1, 8, 8, 60.0, steady=True),
    # Longer than it takes to fill the slots, at about eight starts a second.
    Case(1, 1_000, 200, 30.0, full=True),
)
QUICK = (Case(1, 16, 8, 2.0), Case(2, 8, 8, 2.0), Case(1, 8, 8, 20.0, steady=True))


def measure(bench: Bench) -> list[Section]:
    """One section."""
    cases = QUICK if bench.quick else CASES
    measured = [_case(bench, case) for case in cases]
    rows, verdicts = [], []
    for case, (runs, seen) in zip(cases, measured, strict=True):
        workers = case.workers
        seconds = max(run["end"] for run in runs) - min(run["start"] for run in runs)
        calls = sum(seen["calls"].values())
        s3 = seen["s3"] - seen["own"] * workers
        slot_seconds = seconds * min(case.slots, seen["most"]) / workers  # of a worker, starting and ending included
        a_minute = (calls + s3) / workers / slot_seconds * 60
        rows.append(
            (
                case,
                case.slots,
                seen["most"],
                f"{seen['done']} of {workers}",
                f"{seconds:.0f}",
                f"{slot_seconds - case.seconds:.1f}",
                f"{calls / workers:.1f} + {s3 / workers:.1f} ({seen['own']})",
                f"{a_minute:.0f}",
                f"{sum(run['cpu'] for run in runs) / workers * 1000:.0f}",
                f"{max(run['peak'] for run in runs):.0f}",
            )
        )
        held = (seen["most"] <= case.slots, seen["done"], seen["tasks"]) == (True, workers, workers)
        verdicts.append(Verdict(f"{case}: never more than {case.slots}, all done, no twin", str(seen), held))
        if case.steady:
            allowed = case.allowed(slot_seconds)
            verdicts.append(
                at_most(f"{case}: at most {allowed:.0f} calls a running worker a minute", a_minute, allowed)
            )
        if case.full:
            verdicts.append(
                at_least(f"{case}: nine tenths of the slots in use at once", seen["most"], 0.9 * case.slots)
            )
    verdicts.append(
        at_most("driven in under 500 MB", max(run["peak"] for runs, _ in measured for run in runs), 500, " MiB")
    )
    return [
        Section(
            "Workers on ECS, simulated: what driving them takes",
            (
                "runs x workers of so many seconds",
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
                "ECS is polled every 5 s, S3 as often for each worker. A run is a process; plan, audit and commit are "
                "in its CPU, memory and calls.",
                "S3's are counted by the server: boto3's and PyArrow's. A worker's own, in brackets, are not in them; "
                "they are those of one worker that stages while no other runs.",
            ],
        )
    ]


def _case(bench: Bench, case: Case) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    name = f"{case.runs}-{case.chunks}-{case.seconds:.0f}"
    with _cloud(bench.home / f"cloud-{name}", case.seconds) as (cloud, seen):
        home = bench.environment(f"load-{name}")
        env = {**home, **cloud["environment"], "LAKEHOUSE_MAX_WORKERS": str(case.slots)}
        bench.python("-m", "bench.load", "prepare", env=env)
        before = s3_requests(cloud["metrics"])
        with ThreadPoolExecutor(case.runs) as pool:
            spans = [(n * case.chunks, (n + 1) * case.chunks - 1) for n in range(case.runs)]
            answers = list(pool.map(lambda span: bench.python("-m", "bench.load", "run", *span, env=env), spans))
        s3 = s3_requests(cloud["metrics"]) - before
    return [answer.lines[0] for answer in answers], {**seen, "s3": s3}


@contextmanager
def _cloud(folder: Path, seconds: float) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """How to reach it, and what it counted, filled in at the end."""
    command = [sys.executable, "-m", "bench.cloud", str(folder), str(seconds)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    seen: dict[str, Any] = {}
    try:
        yield json.loads(process.stdout.readline()), seen
        output, _ = process.communicate(timeout=60)
        seen.update(json.loads(output.splitlines()[-1]))
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

    from tests.support.tables import numbers

    days = dg.DailyPartitionsDefinition("2020-01-01", end_date="2024-01-01")
    return replace(numbers(identifier=TABLE, partitions_per_worker=1), partitions=days)


if __name__ == "__main__":
    prepare() if sys.argv[1] == "prepare" else run(int(sys.argv[2]), int(sys.argv[3]))
