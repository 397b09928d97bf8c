"""What keeping tables well costs: health of many files, small files and manifests rewritten, snapshots expired, files
collected. synthetic.py writes tables, each measurement is a process of its own; Spark is what we are compared with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench.beside import beside
from bench.collection import collection
from bench.compaction import compaction
from bench.context import Bench, BenchError
from bench.expiry import expiry
from bench.manifests import manifests
from bench.neglected import neglected
from bench.report import Section, Spread, at_least, at_most
from bench.simulated_month import simulated_month
from bench.trash import trash

MANIFESTS, FILES_EACH, NEW_MANIFESTS = 1000, 100, 10


def measure(bench: Bench) -> Iterator[Section]:
    """The sections of every kind of maintenance, each as it is measured."""
    yield _health(bench)
    yield compaction(bench)
    yield expiry(bench)
    yield from neglected(bench)
    yield simulated_month(bench)
    yield manifests(bench)
    yield beside(bench)
    yield from collection(bench)
    yield trash(bench)


def _health(bench: Bench) -> Section:
    manifests, each = (50, 20) if bench.quick else (MANIFESTS, FILES_EACH)
    home = bench.home / "health"
    bench.python("-m", "bench.synthetic", "large", home, manifests, each, env=bench.environment("synthetic"))
    looks: dict[str, list[dict[str, float]]] = {}
    for turn in range(bench.times(3)):
        cache = bench.home / f"cache-{turn}"
        looks.setdefault("the first look", []).append(_look(bench, home, "look", cache))
        looks.setdefault("a look with nothing new", []).append(_look(bench, home, "look", cache))
        looks.setdefault("PyIceberg's own reader, manifest by manifest", []).append(_look(bench, home, "own", cache))
    bench.python("-m", "bench.synthetic", "more", home, NEW_MANIFESTS, each, env=bench.environment("synthetic"))
    for turn in range(bench.times(3)):
        again = f"a look with {NEW_MANIFESTS} new manifests"
        looks.setdefault(again, []).append(_look(bench, home, "look", bench.home / f"cache-{turn}"))
    _compare(looks, manifests * each, each)
    rows = [
        (what, _spread(found, "cpu"), _spread(found, "wall"), f"{_spread(found, 'memory').median:.0f}")
        for what, found in looks.items()
    ]
    first, second = (_spread(looks[what], "cpu").median for what in ("the first look", again))
    return Section(
        f"The health of a table of {manifests * each:,} files in {manifests:,} manifests",
        ("", "CPU, s", "wall, s", "more memory, MiB"),
        rows,
        [
            at_most("the first look takes at most 3 s of CPU", first, 3, " s"),
            at_least(f"{NEW_MANIFESTS} new manifests: at least 20 x faster", first / second, 20, " x"),
        ],
        ["SQLite catalog, local files, 3 columns with metrics, a partition a manifest. A fresh process for each look."],
    )


def _look(bench: Bench, home: Path, how: str, cache: Path) -> dict[str, float]:
    (found,) = bench.python("-m", "bench.health_once", how, home, cache, env=bench.environment("synthetic")).lines
    return found


def _compare(looks: dict[str, list[dict[str, float]]], files: int, each: int) -> None:
    """Raises BenchError if a look has not counted all files."""
    for what, found in looks.items():
        expected = files + (NEW_MANIFESTS * each if "new manifests" in what else 0)
        if any(look["files"] != expected for look in found):
            raise BenchError(f"{what}: expected {expected} files, found {[look['files'] for look in found]}")


def _spread(found: list[dict[str, float]], what: str) -> Spread:
    return Spread.of([look[what] for look in found])
