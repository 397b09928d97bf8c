"""What the collector costs and what it leaves alone: the memory of a large pass, and lakes that stock removal breaks.
Each measurement is a process of its own: collect_once.py, orphans_once.py."""

from __future__ import annotations

from collections.abc import Iterator

from bench.context import Bench, BenchError
from bench.report import Section, at_least, at_most

MANIFESTS, FILES_EACH, LITTER = 1000, 100, 900_000
LAKES = 100


def collection(bench: Bench) -> Iterator[Section]:
    """The sections of the collector."""
    yield _memory(bench)
    yield _lakes(bench)


def _memory(bench: Bench) -> Section:
    manifests, each, litter = (20, 20, 9_000) if bench.quick else (MANIFESTS, FILES_EACH, LITTER)
    home, env = bench.home / "collect", bench.environment("synthetic")
    bench.python("-m", "bench.synthetic", "large", home, manifests, each, env=env)
    (found,) = bench.python("-m", "bench.collect_once", home, litter, env=env).lines
    first, second = found["passes"]
    if (first["unneeded"], second["trashed"]) != (litter, 0):
        raise BenchError(f"expected {litter} files that nobody needs and none moved, found {found}")
    rows = [
        (what, f"{row['wall']:.0f}", f"{row['cpu']:.0f}", f"{row['peak']:.0f}", f"{row['due']:,}")
        for what, row in (("the first pass: lists, reads, marks", first), ("the second: sees marks again", second))
    ]
    return Section(
        f"A pass over {litter + manifests * each:,} files, {manifests * each:,} of them live",
        ("", "wall, s", "CPU, s", "peak of the process, MiB", "files due"),
        rows,
        [at_most("at most 300 MiB", second["peak"], 300, " MiB")],
        [
            "SQLite catalog; the listing is made up, the rest is real. Before it begins, the process has "
            f"{found['before']:.0f} MiB. What is due is more than 20 % of the table, so nothing is moved.",
        ],
    )


def _lakes(bench: Bench) -> Section:
    lakes, env = 5 if bench.quick else LAKES, bench.environment("orphans")
    home = bench.home / "lakes"
    by_way = {
        way: bench.python("-m", "bench.orphans_once", home, way, lakes, env=env).lines[0] for way in ("ours", "spark")
    }
    names = {"ours": "the collector", "spark": "Spark's `remove_orphan_files`, older than 3 days"}
    columns = ("tables", "refused", "broken", "live files lost", "held files lost", "orphans", "orphans found")
    rows = [(names[way], *(f"{found.get(column, 0):,}" for column in columns)) for way, found in by_way.items()]
    ours = by_way["ours"]
    return Section(
        f"{lakes} generated lakes",
        ("", *columns),
        rows,
        [
            at_most("no live file lost", ours.get("live files lost", 0), 0, ""),
            at_least("99 % of the orphans found", 100 * ours["orphans found"] / ours["orphans"], 99, " %"),
        ],
        [
            "Refused: a pass, or a CALL, that ended with an error and moved nothing. Held: staged by runs that are "
            "alive or may be resumed, young, or of a dropped table whose folder a new one has.",
        ],
    )
