"""What a step gains that reads on where its table's last commit was, and whether deaths lose or repeat a change.
The processes that do it are changes_once.py."""

from __future__ import annotations

from bench.context import Bench
from bench.report import Section, Spread, Verdict, at_least

ROWS, SHARE = 10_000_000, 0.01
LEAST_GAIN = 10.0
LAKES, DEATHS = 10, 50


def measure(bench: Bench) -> list[Section]:
    """Two sections."""
    return [_gain(bench), _deaths(bench)]


def _gain(bench: Bench) -> Section:
    rows = bench.times(ROWS, quick=1_000)
    home = bench.environment("gain") | {"LAKEHOUSE_COMPUTE": "inline"}
    found = bench.python("-m", "bench.changes_once", "gain", rows, bench.times(5), env=home).lines
    alls, changes = Spread.of([one["all"] for one in found]), Spread.of([one["changes"] for one in found])
    gain = alls.median / changes.median
    return Section(
        f"A run that reads {SHARE:.0%} new rows of {rows:,}, and one that reads all; 5 of each in turn, one warm JVM",
        ("seconds of a run that reads all", "that reads the changes", "ratio"),
        [(alls, changes, f"{gain:.1f}")],
        [at_least("reading all takes, of reading the changes, at least", gain, LEAST_GAIN, " x")],
        ["Both append what they read to their table. A worker's start, the same for both, is left out."],
    )


def _deaths(bench: Bench) -> Section:
    """Deaths are exceptions in one process; tests/integration/test_input_changes.py kills processes at each stage."""
    lakes, deaths = bench.times(LAKES), bench.times(DEATHS, quick=3)
    total: dict[str, int] = {}
    for lake in range(lakes):
        home = bench.environment(f"deaths-{lake}") | {"LAKEHOUSE_COMPUTE": "inline"}
        (found,) = bench.python("-m", "bench.changes_once", "deaths", deaths, lake, env=home).lines
        total = {name: total.get(name, 0) + number for name, number in found.items()}
    wrong = total["wrong"]
    return Section(
        f"Runs that read changes and die at a random step, {lakes} lakes with {deaths} each",
        ("deaths", "runs that ended well", "rollbacks and rewrites between", "changes of the input", "rows in error"),
        [(total["deaths"], total["runs"], total["others"], total["changes"], wrong)],
        [Verdict("no change is lost, none is read twice", f"{wrong} rows", wrong == 0)],
        ["The input gains and loses rows meanwhile. What is read must be a replay of its history, once."],
    )
