"""Publishing what is large: 1,000 chunks with 10,000 files in one commit, and one partition into 100,000 files.
No Spark: synthetic.py writes the forks, each publish is a process of its own (publish_once.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.context import Bench, BenchError
from bench.report import Section, Spread, at_most

FILES_EACH = 10
LARGE_MANIFESTS, LARGE_FILES_EACH = 1000, 100
Measured = dict[str, Any]


def measure(bench: Bench) -> list[Section]:
    """Two sections: many chunks, and a large table."""
    return [_chunks(bench), _large(bench)]


def _chunks(bench: Bench) -> Section:
    sizes = (10, 100) if bench.quick else (100, 1000)
    measured: dict[tuple[int, str], list[Measured]] = {(size, token): [] for size in sizes for token in "ab"}
    for turn in range(bench.times(3)):
        for size in sizes:
            home = bench.home / f"chunks-{size}-{turn}"
            _build(bench, "chunks", home, size, FILES_EACH)
            for token in "ab":
                measured[size, token].append(_publish(bench, home, token, added=size * FILES_EACH))
    rows = [
        (
            f"{size:,} chunks, {size * FILES_EACH:,} files",
            what,
            _spread(runs, "read"),
            _spread(runs, "publish"),
            _memory(runs),
        )
        for token, what in (("a", "into an empty table"), ("b", "a second time: as many replaced"))
        for size, runs in ((size, measured[size, token]) for size in sizes)
    ]
    growth = {
        what: _total(measured[sizes[1], token]) / _total(measured[sizes[0], token])
        for token, what in (("a", "into an empty table"), ("b", "replacing"))
    }
    factor = sizes[1] / sizes[0]
    verdicts = [
        at_most(f"{factor:.0f} x the files take at most {factor:.0f} x the seconds, {what}", grown, factor, " x")
        for what, grown in growth.items()
    ]
    header = ("", "", "read the forks, s", "publish, s", "peak memory, MiB (of it there before)")
    notes = [
        "SQLite catalog, local files. The staged files are hard links to one small Parquet file: publish checks that "
        "each is there. A fresh process for each publish."
    ]
    return Section("Publishing many chunks in one commit", header, rows, verdicts, notes)


def _large(bench: Bench) -> Section:
    manifests, each = (50, 20) if bench.quick else (LARGE_MANIFESTS, LARGE_FILES_EACH)
    runs = []
    for turn in range(bench.times(3)):
        home = bench.home / f"large-{turn}"
        _build(bench, "large", home, manifests, each)
        runs.append(_publish(bench, home, "a", added=1, removed=each))
    read = max(measured["manifests_read"] for measured in runs)
    return Section(
        f"Publishing one partition into a table of {manifests * each:,} files in {manifests:,} manifests",
        (
            "publish, s",
            "manifests that can hold the partition",
            "manifests read",
            "peak memory, MiB (of it there before)",
        ),
        [(_spread(runs, "publish"), 1, read, _memory(runs))],
        [
            at_most("under 3 s", Spread.of([measured["publish"] for measured in runs]).median, 3, " s"),
            at_most("only manifests that can hold the partition are read, and a hundred that are merged", read, 101),
        ],
        [f"Each manifest holds the {each} files of one day; the files of the large table do not exist."],
    )


def _build(bench: Bench, kind: str, home: Path, count: int, each: int) -> None:
    bench.python("-m", "bench.synthetic", kind, home, count, each, env=bench.environment("synthetic"))


def _publish(bench: Bench, home: Path, token: str, **expected: int) -> Measured:
    (measured,) = bench.python("-m", "bench.publish_once", home, token, env=bench.environment("synthetic")).lines
    if found := {name: measured[name] for name, value in expected.items() if measured[name] != value}:
        raise BenchError(f"publishing {home.name}, run {token}: expected {expected}, found {found}")
    return measured


def _spread(runs: list[Measured], what: str) -> Spread:
    return Spread.of([measured[what] for measured in runs])


def _memory(runs: list[Measured]) -> str:
    return f"{_spread(runs, 'peak').median:.0f} ({_spread(runs, 'before').median:.0f})"


def _total(runs: list[Measured]) -> float:
    return Spread.of([measured["read"] + measured["publish"] for measured in runs]).median
