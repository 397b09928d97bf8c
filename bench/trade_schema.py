"""A column added and one widened on a table of 1,000 data files, in the commit of one partition's rows.
The table is made by PyIceberg; the change is made as a run makes it, without the worker."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from bench.context import Bench
from bench.report import Section, Spread, Verdict, at_most

FILES = 1_000


def schema_change(bench: Bench) -> Section:
    """One section."""
    files = 50 if bench.quick else FILES
    found: list[dict[str, Any]] = []
    for turn in range(bench.times(3)):
        env = bench.environment(f"schema-{turn}")
        found.append(bench.python("-m", "bench.trade_schema", files, env=env).lines[0])
    seconds = Spread.of([one["seconds"] for one in found])
    rewritten = max(one["rewritten"] for one in found)
    return Section(
        f"A column added and one widened on a table of {files:,} data files, with the rows of one partition",
        ("plan, fork base, publish: seconds", "data files rewritten", "commits"),
        [(seconds, rewritten, found[0]["commits"])],
        [
            at_most("under 3 s", seconds.median, 3, " s"),
            Verdict("0 data files of other partitions rewritten", str(rewritten), not rewritten),
        ],
    )


def change(files: int) -> dict[str, Any]:
    """The change once, on a new table in this process's home."""
    from lakehouse_assets.commit.change import Change
    from lakehouse_assets.commit.evolution import Evolution
    from lakehouse_assets.commit.fork import write_fork_base
    from lakehouse_assets.commit.publish import publish
    from lakehouse_assets.commit.target import open_target
    from lakehouse_assets.commit.tokens import RunToken
    from lakehouse_assets.environment.catalog import load_lake
    from lakehouse_assets.environment.settings import read_settings

    settings = read_settings()
    settings.home.mkdir(parents=True, exist_ok=True)
    catalog = load_lake(settings)
    table = open_target(catalog, declared("int"))
    rows = pa.table({"part": [f"p{n}" for n in range(files)], "n": pa.array(range(files), pa.int32())})
    table.append(rows)
    before = _paths(table.refresh())
    history = len(table.metadata.metadata_log)
    new = declared("long", "extra")
    started = time.perf_counter()
    evolution = Evolution.of(new, catalog.load_table(new.identifier))
    base = write_fork_base(evolution.target, "bench").location
    planned = time.perf_counter() - started
    staged = _stage(base, evolution.target.io.properties)
    started = time.perf_counter()
    region = new.alignment.region(["p1"])
    token = RunToken("bench", datetime.now(UTC))
    publish(catalog, new.identifier, Change(region, [staged]), token, [evolution])
    seconds = planned + time.perf_counter() - started
    after = catalog.load_table(new.identifier)
    gone = before - _paths(after)
    return {
        "seconds": seconds,
        "rewritten": len(gone) - 1,  # that of the partition itself
        "commits": len(after.metadata.metadata_log) - history,
    }


def declared(type_: str, *more: str) -> Any:
    import dagster as dg

    from lakehouse_assets.declare.columns import column
    from lakehouse_assets.declare.table import OnSchemaChange, Table

    return Table(
        identifier="bench.parts",
        columns=[column("part", "string"), column("n", type_), *(column(name, "string") for name in more)],
        step="bench.trade_steps:copied",
        partitions=dg.DynamicPartitionsDefinition(name="parts"),
        partitioned_by=["part"],
        on_schema_change=OnSchemaChange.APPEND_NEW_COLUMNS,
    )


def _stage(base: str, io: Any) -> Any:
    """A row of one partition, by PyIceberg in place of a worker."""
    from lakehouse_assets.commit.staged import read_all
    from lakehouse_assets.commit.tokens import TOKEN
    from tests.support import light_stage

    fork = light_stage.register(base, io)
    row = pa.Table.from_pylist([{"part": "p1", "n": 2**40, "extra": "x"}], schema=fork.schema().as_arrow())
    fork.append(row, snapshot_properties={TOKEN: "bench"})
    receipt = light_stage.receipt("bench.parts", "bench", ["p1"], base, fork, rows=1)
    return read_all(io, [receipt])[0]


def _paths(table: Any) -> set[str]:
    return {task.file.file_path for task in table.scan().plan_files()}


if __name__ == "__main__":
    print(json.dumps(change(int(sys.argv[1]))))
