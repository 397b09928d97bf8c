"""Sixteen merges of different months at once, while small files are compacted and an outsider appends.
Each merge is a run in a process of its own (trade_merge.py); nothing may fail, and no row may be lost."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import polars as pl

from bench.context import ROOT, Bench, BenchError
from bench.report import Section, Verdict
from bench.trade_steps import CHANGES
from bench.trade_steps import MONTHS as MONTHS_OF
from lakehouse_assets.domains.trade import generated
from lakehouse_assets.domains.trade.shape import KEY
from lakehouse_assets.domains.trade.tables import MONTHS

MERGES = 16
IDENTIFIER = "trade.at_once"
OUTSIDE = "190001"
EVERY_S = 2.0


def at_once(bench: Bench, env: Mapping[str, str], rows: int) -> Section:
    """rows: of a month."""
    from bench.trade import changes

    months = MONTHS.get_partition_keys()[: 4 if bench.quick else MERGES]
    each = max(20, rows // 100)
    file = changes(bench, "at-once", months, each, rows)
    bench.python("-m", "bench.trade_merge", "fill", IDENTIFIER, env={**env, MONTHS_OF: ",".join(months)})
    ended = Event()
    started = time.perf_counter()
    with ThreadPoolExecutor(len(months) + 1) as pool:
        others = pool.submit(_others, {**env}, ended)
        own = {**env, CHANGES: str(file)}
        command = ("-m", "bench.trade_merge", "merge", IDENTIFIER, "copy-on-write")
        runs = [pool.submit(bench.python, *command, month, env=own) for month in months]
        answers = [run.result().lines[-1] for run in runs]
        seconds = time.perf_counter() - started
        ended.set()
        appended, compacted = others.result()
    wrong = _wrong(bench, env, file, months, rows, appended)
    attempts = sum(int(answer["commit_attempts"]) for answer in answers)
    return Section(
        f"{len(months)} merges of different months at once, beside compaction and an outsider who appends",
        ("merges", "seconds of all", "commits tried", "rows of the outsider", "compactions landed", "months wrong"),
        [(len(answers), f"{seconds:.0f}", attempts, appended, compacted, len(wrong))],
        [Verdict("0 failed, 0 lost", f"0 failed, {', '.join(wrong) or 'no month wrong'}", not wrong)],
        [f"{each:,} changes of {rows:,} rows in each month; the pool lets one worker at a time run on two cores."],
    )


def _others(env: Mapping[str, str], ended: Event) -> tuple[int, int]:
    """Appends and compactions of others until the merges are done: how many of each."""
    code = f"import bench.trade_at_once as it; it.beside('{IDENTIFIER}')"
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, env=dict(env), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    ended.wait()
    output, _ = process.communicate("end\n")
    if process.returncode:
        raise BenchError(f"who writes beside the merges failed: {output}")
    appended, compacted = map(int, output.split())
    return appended, compacted


def beside(identifier: str) -> None:
    """Append a row to a month of its own, and compact that month, until a line comes in; prints how often."""
    from datetime import UTC, datetime
    from threading import Thread

    from lakehouse_assets.commit.tokens import RunToken
    from lakehouse_assets.environment.catalog import load_lake
    from lakehouse_assets.environment.settings import read_settings
    from lakehouse_assets.maintenance.rewrite.compact import compact

    catalog = load_lake(read_settings())
    reader = Thread(target=sys.stdin.readline)
    reader.start()
    appended = compacted = 0
    while reader.is_alive():
        table = catalog.load_table(identifier)
        row = table.scan(limit=1).to_arrow()
        at = row.column_names.index("ym")
        table.append(row.set_column(at, row.schema.field(at), [[OUTSIDE]]))
        appended += 1
        report = compact(catalog, identifier, RunToken(f"beside-{appended}", datetime.now(UTC)), min_input_files=2)
        compacted += len(report.landed)
        time.sleep(EVERY_S)
    print(appended, compacted)


def _wrong(
    bench: Bench, env: Mapping[str, str], file: object, months: Sequence[str], rows: int, appended: int
) -> list[str]:
    """Months whose rows and sum are not what the changes make of the figures."""
    revised = pl.read_parquet(str(file)).unique()
    found = bench.python("-c", SUMS.format(identifier=IDENTIFIER), env=env).lines[0]
    wrong = [] if found.pop(OUTSIDE)[0] == appended else [OUTSIDE]
    for ym in months:
        figures = generated.figures(ym, rows).select(*KEY, "Value")
        changed = revised.filter(pl.col("ym") == ym)
        kept = figures.join(changed, on=KEY, how="anti")
        now = pl.concat([kept, changed.filter(pl.col("op") == "U").select(*KEY, "Value")])
        if found[ym] != [now.height, now["Value"].sum()]:
            wrong.append(ym)
    return wrong


SUMS = """
import json
import polars as pl
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.settings import read_settings
table = load_lake(read_settings()).load_table("{identifier}")
rows = pl.DataFrame(table.scan(selected_fields=("ym", "Value")).to_arrow())
of = rows.group_by("ym").agg(pl.len().alias("rows"), pl.col("Value").sum())
print(json.dumps({{row["ym"]: [row["rows"], row["Value"]] for row in of.iter_rows(named=True)}}))
"""
