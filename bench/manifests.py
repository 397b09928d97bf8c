"""Rewriting the manifests of a large table without a JVM, and planning one day of it before and after.
No Spark: synthetic.py writes the table, each measurement is a process of its own (manifests_once.py)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.context import Bench, BenchError
from bench.report import Section, Spread, at_most

MANIFESTS, FILES_EACH, MOST = 1000, 100, 60


def manifests(bench: Bench) -> Section:
    """One section: 1,000 manifests that each list every day, into one for a few days each."""
    count, each = (50, 20) if bench.quick else (MANIFESTS, FILES_EACH)
    homes = [bench.home / f"manifests-{turn}" for turn in range(bench.times(3))]
    rewrites: list[dict[str, Any]] = []
    before: list[float] = []
    after: list[float] = []
    for home in homes:
        bench.python("-m", "bench.synthetic", "scattered", home, count, each, env=bench.environment("synthetic"))
        before.append(_plan(bench, home, count))
        rewrites.append(_once(bench, "rewrite", home))
        after.append(_plan(bench, home, count))
    first = rewrites[0]
    rows: list[tuple[str, Spread]] = [("all, s", _spread(rewrites, "seconds")), ("CPU, s", _spread(rewrites, "cpu"))]
    rows += [("more memory, MiB", _spread(rewrites, "memory"))]
    rows += [("planning one day before, s", Spread.of(before)), ("planning one day after, s", Spread.of(after))]
    return Section(
        f"{count:,} manifests of {count * each:,} files into {first['after']:,}, without a JVM",
        ("", "median (least to greatest)"),
        rows,
        [at_most(f"into {MOST} or fewer", max(run["after"] for run in rewrites), MOST)],
        [
            f"{first['size_before'] / 2**20:.1f} MiB of manifests to {first['size_after'] / 2**20:.1f} MiB. SQLite "
            "catalog, local files, 3 columns with metrics; each manifest lists every day. A fresh process for each.",
        ],
    )


def _plan(bench: Bench, home: Path, files: int) -> float:
    """Seconds to plan one day, which has a file in each of the manifests."""
    found = _once(bench, "plan", home)
    if found["files"] != files:
        raise BenchError(f"planning one day: expected {files} files, found {found['files']}")
    return float(found["seconds"])


def _once(bench: Bench, what: str, home: Path) -> dict[str, Any]:
    (found,) = bench.python("-m", "bench.manifests_once", what, home, env=bench.environment("synthetic")).lines
    return found


def _spread(runs: Iterable[dict[str, Any]], what: str) -> Spread:
    return Spread.of([run[what] for run in runs])
