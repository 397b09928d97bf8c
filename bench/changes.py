"""What a run gains that reads on where its table's last commit was, against one that reads all.
The process that does it is changes_once.py."""

from __future__ import annotations

from bench.context import Bench
from bench.report import Section, Spread, at_least

ROWS, SHARE = 10_000_000, 0.01
LEAST_GAIN = 10.0


def measure(bench: Bench) -> list[Section]:
    """One section."""
    rows = bench.times(ROWS, quick=1_000)
    home = bench.environment("gain") | {"LAKEHOUSE_COMPUTE": "inline"}
    found = bench.python("-m", "bench.changes_once", "gain", rows, bench.times(5), env=home).lines
    alls, changes = Spread.of([one["all"] for one in found]), Spread.of([one["changes"] for one in found])
    gain = alls.median / changes.median
    return [
        Section(
            f"A run that reads {SHARE:.0%} new rows of {rows:,}, 20 columns, and one that reads all; 5 of each in turn",
            ("seconds of a run that reads all", "that reads the changes", "ratio"),
            [(alls, changes, f"{gain:.1f}")],
            [at_least("reading all takes, of reading the changes, at least", gain, LEAST_GAIN, " x")],
            ["Both append what they read. The JVM is warm: a worker's start, the same for both, is left out."],
        ),
    ]
