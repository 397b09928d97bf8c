"""Compacting small files without a JVM: planned, rewritten, proved and landed.
Each compaction is a process of its own on a table of its own (compact_once.py)."""

from __future__ import annotations

from typing import Any

from bench.context import Bench, BenchError
from bench.report import Section, Spread, at_most

FILES = 200


def compaction(bench: Bench) -> Section:
    """22 MB in 200 files of 10 partitions, sorted by two columns, into one file a partition."""
    files = 50 if bench.quick else FILES  # five a partition are the fewest that are compacted
    runs = [_run(bench, turn, files) for turn in range(bench.times(5))]
    first = runs[0]
    title = f"Compacting {first['mb_before']:.0f} MB in {files} files without a JVM"
    header = ("", "seconds")
    shown = {"the compaction": "seconds", "CPU of all threads": "cpu", "with the start of the process": "process"}
    rows = [(name, _spread(runs, what)) for name, what in shown.items()]
    verdict = at_most("compacted, proved and landed in 3 s", _spread(runs, "seconds").median, 3, " s")
    notes = [
        f"{first['rows']:,.0f} rows of 12 columns in 10 partitions, {files} files to {first['files_after']:.0f} "
        f"({first['mb_after']:.1f} MB). SQLite catalog, local files; a fresh process for each.",
        f"peak memory {_spread(runs, 'peak').median:.0f} MiB, of it {_spread(runs, 'before').median:.0f} there before",
    ]
    return Section(title, header, rows, [verdict], notes)


def _run(bench: Bench, turn: int, files: int) -> dict[str, Any]:
    home, env = bench.home / f"compaction-{turn}", bench.environment("synthetic")
    bench.python("-m", "bench.compact_once", "build", home, files, env=env)
    answer = bench.python("-m", "bench.compact_once", "compact", home, files, env=env)
    (found,) = answer.lines
    if (found["landed"], found["files_before"]) != (10, files):
        raise BenchError(f"compacting {files} files in 10 partitions: {found}")
    return {**found, "process": answer.seconds}


def _spread(runs: list[dict[str, Any]], what: str) -> Spread:
    return Spread.of([run[what] for run in runs])
