"""Customs trade statistics at their real size, all generated: the load, the report, merges, a schema change.
Each contestant is a process of its own (trade_once.py, trade_merge.py); what is compared is said in each section."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.context import Bench, BenchError
from bench.report import Section, Spread, at_least, at_most
from bench.trade_at_once import at_once
from bench.trade_schema import schema_change
from bench.trade_steps import CHANGES, MEANWHILE
from bench.trade_steps import MONTHS as MONTHS_OF
from lakehouse_assets.declare.modes import Rewrites
from lakehouse_assets.domains.trade import generated
from lakehouse_assets.domains.trade.landing import fill
from lakehouse_assets.domains.trade.tables import MONTHS, customs

Environment = Mapping[str, str]
# The variables of a contestant's process.

ROWS_A_MONTH, QUICK_ROWS = 323_853, 2_000
"""14.9 million in 46 months, as many as the statistics of 2017 to 2020 have."""
ALL = MONTHS.get_partition_keys()
HOME = "trade"


def measure(bench: Bench) -> Iterator[Section]:
    """The sections, each as it is measured."""
    rows = QUICK_ROWS if bench.quick else ROWS_A_MONTH
    env = {**bench.environment(HOME), "LAKEHOUSE_LANDING": str(bench.home / "drop")}
    for _ in fill(bench.home / "drop" / "trade", rows):
        pass
    yield _load(bench, env, rows)
    yield _report(bench, env)
    yield _predicates(bench, env, rows)
    yield _modes(bench, env, rows)
    yield _million(bench, env, rows)
    yield _head_moved(bench, env, rows)
    yield at_once(bench, env, rows)
    yield schema_change(bench)


def once(bench: Bench, env: Environment, *arguments: object) -> dict[str, Any]:
    """What a process of trade_once.py or trade_merge.py answered, and its seconds as ``process``."""
    answer = bench.python("-m", *arguments, env=env)
    return {**answer.lines[-1], "process": answer.seconds}


def changes(bench: Bench, name: str, months: Sequence[str], each: int, of: int, revision: int = 1) -> Path:
    """A Parquet file of revisions: ``each`` of every month, whose figures are ``of`` rows."""
    import polars as pl

    revised = pl.concat(generated.revisions(ym, each, of, revision) for ym in months)
    derived = revised.with_columns(
        hs2=pl.col("hs9").str.head(2),
        hs4=pl.col("hs9").str.head(4),
        hs6=pl.col("hs9").str.head(6),
        Year=pl.col("ym").str.head(4).cast(pl.Int32),
        month=pl.col("ym").str.tail(2).cast(pl.Int32),
    )
    derived.write_parquet(bench.home / f"{name}.parquet")
    return bench.home / f"{name}.parquet"


def _load(bench: Bench, env: Environment, rows: int) -> Section:
    ours, bare = [], []
    total = 0
    for turn in range(bench.times(3)):
        run = bench.python("-m", "bench.dagster_run", customs.identifier, f"{ALL[0]}..{ALL[-1]}", env=env).lines[0]
        if run["failure"]:
            raise BenchError(f"the load failed: {run['failure']}")
        ours.append(run["green"])
        written = once(bench, env, "bench.trade_once", "parquet", bench.home / f"parquet-{turn}")
        bare.append(written["process"])
        total = written["rows"]
    us, them = Spread.of(ours), Spread.of(bare)
    return Section(
        f"Loading {total:,} generated rows of 46 months from CSV in one run",
        ("", "seconds: median (least to greatest)", "rows a second"),
        [
            ("Dagster and Iceberg: RUN_START to RUN_SUCCESS", us, f"{total / us.median:,.0f}"),
            ("bare Spark, the same rows to Parquet by month: the process", them, f"{total / them.median:,.0f}"),
        ],
        [at_most("at most 1.3 x bare Spark", us.median / them.median, 1.3, " x")],
        [
            "Ours audits: required columns, unique keys in each month, no negative value, no row outside its month. "
            "One worker and one commit."
        ],
    )


def _report(bench: Bench, env: Environment) -> Section:
    contestants = {
        "Polars on the Iceberg table": "report",
        "Polars on its Parquet files": "polars",
        "DuckDB on its Parquet files": "duckdb",
    }
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in contestants}
    for _ in range(bench.times(15)):
        for name, action in contestants.items():
            found[name].append(once(bench, env, "bench.trade_once", action))
    answers = [each[0]["answer"] for each in found.values()]
    if answers.count(answers[0]) != len(answers):
        raise BenchError(f"the engines disagree: {[answer[:3] for answer in answers]}")
    seconds, process = (
        [Spread.of([turn[what] for turn in each]) for each in found.values()] for what in ("seconds", "process")
    )
    return Section(
        "The report query, exports by month, in a fresh process each",
        ("", "seconds of the query", "of the process, imports included"),
        list(zip(found, seconds, process, strict=True)),
        [at_most("at most 1.5 x DuckDB on the files", seconds[0].median / seconds[-1].median, 1.5, " x")],
        [
            "Files are in the page cache; engines are imported before, as are the catalog or the files' names. Loading "
            "and planning the table counts."
        ],
    )


def _predicates(bench: Bench, env: Environment, rows: int) -> Section:
    months = ALL[-3:]
    file = changes(bench, "few", months, rows * len(ALL) // 1000 // len(months), rows)
    table, verdicts, files = [], [], 0
    for rewrites in Rewrites:
        arguments = (customs.identifier, file, bench.times(3), rewrites)
        found = once(bench, env, "bench.trade_merge", "predicates", *arguments)
        seconds = {name: Spread.of(of) for name, of in found["seconds"].items()}
        scanned, files = found["files_scanned"], found["files"]
        table += [(rewrites, name, seconds[name], scanned[name]) for name in ("with", "without")]
        faster = seconds["without"].median / seconds["with"].median
        verdicts += [
            at_least(f"{rewrites}: at least 5 x faster", faster, 5, " x"),
            at_most(f"{rewrites}: at most 10 % of the files scanned", 100 * scanned["with"] / files, 10, " %"),
        ]
    return Section(
        f"MERGE of 0.1 % of the rows into {len(months)} of {len(ALL)} months, in one warm JVM, taking turns",
        ("", "what is computed from the changes", "seconds: median (least to greatest)", "files scanned"),
        table,
        verdicts,
        [
            f"In forks of one head; {files} data files. With: bounds of the keys, and a filter of them. Without: the "
            "keys alone, with Spark's own settings. To compute them is in the seconds of both."
        ],
    )


def _modes(bench: Bench, env: Environment, rows: int) -> Section:
    file = changes(bench, "few", ALL[-3:], rows * len(ALL) // 1000 // 3, rows)
    table = []
    for rewrites in Rewrites:
        identifier = f"trade.{rewrites.replace('-', '_')}"
        once(bench, {**env, MONTHS_OF: ",".join(ALL)}, "bench.trade_merge", "fill", identifier)
        before = once(bench, env, "bench.trade_merge", "scan", identifier, 3)
        merged = once(bench, {**env, CHANGES: str(file)}, "bench.trade_merge", "merge", identifier, rewrites)
        after = once(bench, env, "bench.trade_merge", "scan", identifier, 3)
        mended = once(bench, env, "bench.trade_merge", "compact", identifier)
        last = once(bench, env, "bench.trade_merge", "scan", identifier, 3)
        if mended["faults"]:
            raise BenchError(f"{identifier}: the compaction failed: {mended}")
        written, scans = merged["bytes_written"] / 2**20, (before, after, last)
        reads = [f"{found['seconds']:.2f}" for found in scans]
        maintained = f"{mended['seconds']:.1f} ({mended['landed']} partitions)" if mended["landed"] else "nothing to do"
        table.append((rewrites, f"{written:.2f}", f"{merged['seconds']:.1f}", *reads[:2], maintained, reads[2]))
    header = ("", "MiB written", "run, s", "read before, s", "read after, s", "maintenance, s", "read after it, s")
    return Section(
        "Copy-on-write against merge-on-read: the same merge, reads of the whole table by Spark",
        header,
        table,
        (),
        ["Reads: the best of three in a warm session. Maintenance: deletes applied without a JVM, proved and landed."],
    )


def _million(bench: Bench, env: Environment, rows: int) -> Section:
    months = ALL[:31]
    file = changes(bench, "million", months, rows // 10, rows)
    table, verdicts = [], []
    for rewrites in Rewrites:
        identifier = f"trade.ten_million_{rewrites.replace('-', '_')}"
        once(bench, {**env, MONTHS_OF: ",".join(months)}, "bench.trade_merge", "fill", identifier)
        found = once(bench, {**env, CHANGES: str(file)}, "bench.trade_merge", "merge", identifier, rewrites)
        counted = [f"{found[f'merge_{name}']:,.0f}" for name in ("changes", "inserted", "updated", "deleted")]
        table.append((rewrites, *counted, f"{found['seconds']:.1f}", f"{found['stage_seconds']:.1f}"))
        verdicts.append(at_most(f"{rewrites}: in 60 s, the start of the JVM included", found["seconds"], 60, " s"))
    return Section(
        f"Merging changes into {rows * len(months):,} rows, of all their {len(months)} months",
        ("", "changes", "inserted", "updated", "deleted", "run, s", "of it the worker, s"),
        table,
        verdicts,
        ["PyIceberg's own upsert took its users 1,065 s for as many."],
    )


def _head_moved(bench: Bench, env: Environment, rows: int) -> Section:
    """After _modes(), whose table it merges into again."""
    file = changes(bench, "few-again", ALL[-3:], rows * len(ALL) // 1000 // 3, rows, revision=2)
    identifier = "trade.copy_on_write"
    moved = {**env, CHANGES: str(file), MEANWHILE: identifier}
    found = once(bench, moved, "bench.trade_merge", "merge", identifier)
    landing, again = found["publish_seconds"], found["stage_seconds"]
    return Section(
        "Landing a merge whose head has moved, since others appended elsewhere",
        ("landing it, s", "staging it again would take, s"),
        [(f"{landing:.2f}", f"{again:.1f}")],
        [at_least("landing is faster than staging again", again / landing, 1, " x")],
        [f"{found['commit_attempts']} attempt to commit, {found['merge_changes']:,.0f} changes."],
    )
