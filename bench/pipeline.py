"""`make run` after set-up, with the heap of a machine of 6 GiB: seconds, and the memory the whole tree took; then how
long `lakehouse trace` takes of a partition that was made from five tables, which were made from files.
What each table took is in the summary `make run` prints."""

from __future__ import annotations

import os
import sys

from bench.context import Bench
from bench.report import Section, Spread, at_most
from lakehouse_assets.environment.spark_setup import GIB, driver_memory

MEMORY = 6 * GIB
CORES = 2
MINUTES = 5
TRACE_SECONDS = 2


def measure(bench: Bench) -> list[Section]:
    """Two sections: a first run on an empty home, and a second one that replaces everything; the trace."""
    heap = driver_memory(MEMORY, bench.settings.max_workers)
    bounds = {"LAKEHOUSE_SPARK__spark__driver__memory": heap}
    env = bench.environment("pipeline") | bounds
    del env["LAKEHOUSE_LANDING"]  # filling the drop zone is the pipeline's first asset
    names = ("on an empty home", "a second time, everything replaced")[: bench.times(2)]
    answers = {name: bench.command(_bounded(["make", "run"]), env=env) for name in names}
    trace = [sys.executable, "-m", "lakehouse_assets.cli", "trace", "nyc.flights_enriched", "2013-02-03"]
    traced = Spread.of([bench.command(trace, env=env).seconds for _ in range(bench.times(5))])
    worst = max(a.seconds for a in answers.values())
    peak = max(a.peak for a in answers.values()) / GIB
    return [
        Section(
            "`make run` after set-up: the whole pipeline, all of 2013",
            ("", "seconds", "peak of the process tree's resident memory, GiB"),
            [(name, f"{a.seconds:.1f}", f"{a.peak / GIB:.2f}") for name, a in answers.items()],
            [
                at_most(f"under {MINUTES} minutes on {CORES} cores", worst, MINUTES * 60, " s"),
                at_most("within 6 GiB", peak, MEMORY / GIB, " GiB"),
            ],
            [
                f"Bounded to {CORES} cores by taskset. Memory: the heap is what a machine of 6 GiB gets ({heap}); the "
                "peak is sampled five times a second, pages shared by processes counted for each of them."
            ],
        ),
        Section(
            "`lakehouse trace nyc.flights_enriched 2013-02-03`, 5 times",
            ("", "seconds"),
            [("the whole command", traced)],
            [at_most("a tree of three levels", traced.median, TRACE_SECONDS, " s")],
        ),
    ]


def _bounded(command: list[str]) -> list[str]:
    cores = sorted(os.sched_getaffinity(0))[:CORES]
    return ["taskset", "-c", ",".join(map(str, cores)), *command]
