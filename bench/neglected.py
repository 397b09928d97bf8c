"""A neglected table mended by Spark in a private fork: how much faster it is read, and what the proof costs.
The measurement is a process of its own, with one Spark (neglected_once.py); stock rewrites run in the same one."""

from __future__ import annotations

from typing import Any

from bench.context import Bench, BenchError
from bench.report import Section, Spread, at_least, at_most

PARTITIONS, FILES_EACH = 30, 67
READERS = {"spark": "Spark", "polars": "Polars"}
SCANS = {"full": "the whole table", "one": "one partition"}


def neglected(bench: Bench) -> list[Section]:
    """2,010 small files in 30 partitions, of which Spark has deleted a tenth of the rows by position."""
    from lakehouse_assets.environment.spark_setup import environment

    partitions, each = (5, 8) if bench.quick else (PARTITIONS, FILES_EACH)
    home, turns = bench.home / "neglected", bench.times(3)
    env = {**bench.environment("neglected-home"), **environment()}
    bench.python("-m", "bench.neglected_once", "build", home, partitions, each, turns, env=env)
    (found,) = bench.python("-m", "bench.neglected_once", "mend", home, partitions, each, turns, env=env).lines
    if found["landed"] != partitions or found["rows_before"] != found["rows_after"]:
        raise BenchError(f"rewriting {partitions} partitions: {found}")
    return [_scans(found, partitions), _rewrites(found, partitions)]


def _scans(found: dict[str, Any], partitions: int) -> Section:
    rows, verdicts = [], []
    for reader, name in READERS.items():
        for scan, what in SCANS.items():
            before, after = (Spread.of(found[f"{reader} {scan} {when}"]) for when in ("before", "after"))
            gain = before.median / after.median
            rows.append((f"{name}, {what}", before, after, f"{gain:.1f}"))
            verdicts.append(at_least(f"{name} reads {what} at least 2 x faster", gain, 2, " x"))
    fewer = found["files_before"] / found["files_after"]
    verdicts.append(at_least("at least 5 x fewer data files", fewer, 5, " x"))
    return Section(
        f"A neglected table of {found['files_before']:,} data files in {partitions} partitions, read",
        ("seconds", "before", "after", "times faster"),
        rows,
        verdicts,
        [
            f"{found['rows_after']:,} rows of 12 columns, {found['mb']:.0f} MB; {found['deletes_before']:,} delete "
            f"files of a merge-on-read DELETE of a tenth of the rows; then {found['files_after']:,} data files, "
            f"{found['deletes_after']:,} delete files. SQLite catalog, local files; each scan sums up four columns.",
        ],
    )


def _rewrites(found: dict[str, Any], partitions: int) -> Section:
    stock, ours, call, alone, again, rest = (
        Spread.of(found[what]) for what in ("stock", "ours", "call", "alone", "again", "rest")
    )
    turns = list(zip(found["stock"], found["ours"], found["alone"], found["rest"], strict=True))
    proved = Spread.of([mine / theirs for theirs, mine, _, _ in turns])
    without = Spread.of([(procedure + left) / theirs for theirs, _, procedure, left in turns])
    share = found["third_bytes"] / found["all_bytes"]
    return Section(
        "The same files rewritten: by stock rewrite_data_files, and in a private fork, proved and landed",
        ("", "seconds"),
        [
            ("stock rewrite_data_files", stock),
            ("in a fork: all", ours),
            ("- counting the rows, and Iceberg's procedure", call),
            ("- counting the rows again", again),
            ("- fork, reading it, landing", rest),
            ("Iceberg's procedure on a fork, nothing counted beside it", alone),
        ],
        [
            at_most("with the proof at most 1.6 x", proved.median, 1.6, " x"),
            at_most("without the proof at most 1.1 x", without.median, 1.1, " x"),
            at_most(f"a third of {partitions} partitions: at most half of the bytes of a full rewrite", share, 0.5),
        ],
        [
            "Contestants take turns in one session, after one turn that is not counted; stock works on a copy of the "
            f"table's metadata. Ratios by turn: {proved} with, {without} without the proof.",
        ],
    )
