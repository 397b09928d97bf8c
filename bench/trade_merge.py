"""Merges of the trade measurements: through Dagster in a process of their own, or side by side in one JVM.
Prints a line of JSON. Their steps are in trade_steps.py; what is compared is said in trade.py."""

from __future__ import annotations

import json
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from lakehouse_assets.declare.modes import Merge, Overwrite, Rewrites
from lakehouse_assets.declare.table import Table
from lakehouse_assets.domains.trade.shape import KEY
from lakehouse_assets.domains.trade.tables import FIGURES, MONTHS

PLAIN = Table(
    identifier="trade.plain",
    columns=FIGURES,
    step="bench.trade_steps:copied",
    partitioned_by=["ym"],
    sorted_by=["exp_imp", "hs9"],
    reads=["trade.customs"],
)


def merged(identifier: str, rewrites: Rewrites = Rewrites.COPY_ON_WRITE, *, by_partition: bool = False) -> Table:
    """Changes merged into it."""
    mode = Merge(KEY, delete_when="op = 'D'", order_by="revision", rewrites=rewrites, by_partition=by_partition)
    partitions = MONTHS if by_partition else None
    steps = "bench.trade_steps:changes"
    return replace(PLAIN, identifier=identifier, step=steps, write_mode=mode, partitions=partitions)


def fill(identifier: str) -> dict[str, Any]:
    """The table with copied rows, in one run."""
    return run(replace(PLAIN, identifier=identifier, write_mode=Overwrite()))


def run(table: Table, key: str = "") -> dict[str, Any]:
    """One run: its seconds, and what its materialization tells of numbers."""
    from bench.one_run import materialize, prepare

    prepare(table)
    result, start, end = materialize(table, key, key)
    metadata = result.asset_materializations_for_node(table.key.to_python_identifier())[0].metadata
    numbers = {name: value.value for name, value in metadata.items() if isinstance(value.value, int | float)}
    return {**numbers, "seconds": end - start}


def merge(identifier: str, rewrites: str = "copy-on-write", key: str = "") -> dict[str, Any]:
    """One run of changes. key: the month, where runs of different months are to go on at once."""
    table = merged(identifier, Rewrites(rewrites), by_partition=bool(key))
    before = _bytes(identifier)
    found = run(table, key)
    return {**found, "bytes_written": _bytes(identifier) - before}


def _bytes(identifier: str) -> int:
    """Of all data and delete files that any snapshot has."""
    from lakehouse_assets.environment.catalog import load_lake
    from lakehouse_assets.environment.settings import read_settings

    files = load_lake(read_settings()).load_table(identifier).inspect.all_files()  # once for each snapshot
    sizes = dict(zip(files["file_path"].to_pylist(), files["file_size_in_bytes"].to_pylist(), strict=True))
    return sum(sizes.values())


def compact(identifier: str) -> dict[str, Any]:
    """What maintenance does to files with deleted rows, without a JVM."""
    from lakehouse_assets.commit.tokens import RunToken
    from lakehouse_assets.environment.catalog import load_lake
    from lakehouse_assets.environment.settings import read_settings
    from lakehouse_assets.maintenance.rewrite.compact import compact

    started = time.perf_counter()
    token = RunToken(f"bench-{time.time_ns()}", datetime.now(UTC))
    report = compact(load_lake(read_settings()), identifier, token)
    return {"seconds": time.perf_counter() - started, "landed": len(report.landed), "faults": len(report.faults)}


def scan(identifier: str, times: int) -> dict[str, Any]:
    """Seconds of a query over all rows in a warm session: the least of some."""
    spark = _session()
    query = f"SELECT ym, sum(Value), count(DISTINCT hs9) FROM lake.{identifier} GROUP BY ym"
    found = []
    for _ in range(times + 1):
        started = time.perf_counter()
        rows = len(spark.sql(query).collect())
        found.append(time.perf_counter() - started)
    spark.stop()
    return {"seconds": min(found[1:]), "months": rows}


def predicates(identifier: str, changes: str, times: int, rewrites: str) -> dict[str, Any]:
    """The same changes merged into forks of one head, with and without what is computed from them, taking turns."""
    from lakehouse_assets.environment.catalog import load_lake
    from lakehouse_assets.environment.settings import read_settings
    from lakehouse_assets.worker.session import register

    spark = _session()
    target = load_lake(read_settings()).load_table(identifier)
    found: dict[str, list[float]] = {"with": [], "without": []}
    files: dict[str, int] = {}
    for turn in range(times + 1):
        for name in ("with", "without") if turn % 2 else ("without", "with"):
            base = _fork_base(target, f"{name}-{turn}-{rewrites}", rewrites)
            fork = register(spark, base, f"{name}-{turn}-{rewrites}", turn)
            seconds, files[name] = _merge_into(spark, fork, changes, target, computed=name == "with")
            if turn:
                found[name].append(seconds)
    spark.stop()
    return {"seconds": found, "files_scanned": files, "files": len(list(target.scan().plan_files()))}


def _merge_into(spark: Any, fork: str, changes: str, target: Any, *, computed: bool) -> tuple[float, int]:
    """Seconds, and the data files that its larger scan of the target planned."""
    from unittest.mock import patch

    from lakehouse_assets.wire.work import MergeWork
    from lakehouse_assets.worker.merge import Fork, merge
    from tests.support.spark_plans import scans_of_last_write

    work = MergeWork(KEY, "op = 'D'", "revision")
    private = Fork(fork, target.metadata, "bench", target.name()[-1])
    as_written: dict[str, Any] = {"condition": lambda *_: "true", "moving_little": lambda *_: ([], {})}
    started = time.perf_counter()
    with nullcontext() if computed else patch.multiple("lakehouse_assets.worker.merge", **as_written):
        merge(spark, private, spark.read.parquet(changes), work, {})
    seconds = time.perf_counter() - started
    return seconds, max(scan.files for scan in scans_of_last_write(spark, fork))


def _fork_base(target: Any, token: str, rewrites: str) -> str:
    from lakehouse_assets.commit.fork import write_fork_base

    properties = {"write.merge.mode": rewrites}
    return write_fork_base(target, f"bench-{token}", target.current_snapshot(), properties=properties).location


def _session() -> Any:
    from lakehouse_assets.environment.settings import read_settings
    from tests.support.live_lake import live_session

    return live_session(read_settings())


def main(action: str, *arguments: str) -> None:
    numbers = [int(argument) if argument.isdecimal() and len(argument) < 4 else argument for argument in arguments]
    print(json.dumps(globals()[action](*numbers)))


if __name__ == "__main__":
    main(*sys.argv[1:])
