"""One run of several tables, its steps in turn in one process, and in processes of their own by Dagster's multiprocess
executor. The jobs are executors_once.py's."""

from __future__ import annotations

from bench.context import Bench
from bench.executors_once import JOBS
from bench.report import Section, Spread


def measure(bench: Bench) -> list[Section]:
    """One section."""
    turns = bench.times(5)
    found: dict[str, list[float]] = {job: [] for job in JOBS}
    env = bench.environment("executors") | {"LAKEHOUSE_MAX_WORKERS": "2"}
    for job in JOBS:  # the workers start
        bench.python("-m", "bench.executors_once", job, env=env)
    for _ in range(turns):
        for job in JOBS:
            (answer,) = bench.python("-m", "bench.executors_once", job, env=env).lines
            found[job].append(answer["seconds"])
    spreads = {job: Spread.of(seconds) for job, seconds in found.items()}
    least = min(spread.median for spread in spreads.values())
    rows = [(JOBS[job], spread, f"{spread.median / least:.2f}") for job, spread in spreads.items()]
    title = f"Three tables in one run, by their executor, two warm workers; {turns} times, alternating"
    return [Section(title, ("", "seconds, RUN_START to RUN_SUCCESS", "of the fastest"), rows)]
