"""Expiring most of a long history: ours beside PyIceberg's own ways.
No Spark; each expiry is a process of its own (expire_once.py), and the time is that of the call."""

from __future__ import annotations

from typing import Any

from bench.context import Bench, BenchError
from bench.report import Section, Spread, at_most

SNAPSHOTS, GONE = 2000, 1800
# By id, PyIceberg takes minutes: it computes the table's metadata again for each.
SAMPLE = 20


def expiry(bench: Bench) -> Section:
    """One section: seconds to expire 1,800 of 2,000 snapshots."""
    snapshots, gone = (200, 180) if bench.quick else (SNAPSHOTS, GONE)
    ours, by_time = _runs(bench, "ours", snapshots, gone), _runs(bench, "older_than", snapshots, gone)
    by_id = _runs(bench, "by_ids", snapshots, SAMPLE, times=1)
    rows = [
        ("ours: plan, one commit, look afterwards", gone, ours),
        ("PyIceberg, `expire_snapshots().older_than()`", gone, by_time),
        (f"PyIceberg, `expire_snapshots().by_ids()`, {SAMPLE} as a sample", SAMPLE, by_id),
    ]
    return Section(
        f"Expiring {gone:,} of {snapshots:,} snapshots",
        ("", "snapshots", "seconds"),
        rows,
        [at_most("under 2 s", ours.median, 2, " s")],
        [
            "SQLite catalog, local files, 750 run tokens. PyIceberg's have no minimum, no requirements, and keep "
            "neither time travel nor rolled-back runs right.",
            f"By ids the time grows with their number: all {gone:,} would take about "
            f"{by_id.median * gone / SAMPLE / 60:.0f} minutes.",
        ],
    )


def _runs(bench: Bench, way: str, snapshots: int, gone: int, times: int = 5) -> Spread:
    return Spread.of([_run(bench, way, snapshots, gone, turn)["seconds"] for turn in range(bench.times(times))])


def _run(bench: Bench, way: str, snapshots: int, gone: int, turn: int) -> dict[str, Any]:
    home = bench.home / f"expiry-{way}-{turn}"
    arguments = ("-m", "bench.expire_once", home, way, snapshots, gone)
    (measured,) = bench.python(*arguments, env=bench.environment("synthetic")).lines
    if measured["gone"] != gone:
        raise BenchError(f"{way}: {measured['gone']} snapshots expired, expected {gone}")
    return dict(measured)
