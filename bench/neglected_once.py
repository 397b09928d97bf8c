"""A table of many small files and deletes, mended by Spark, each in a process of its own.
``build`` prints nothing, ``mend`` one line of JSON: seconds of each scan and of each rewrite, files, rows, bytes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

from bench.compact_once import SCHEMA, rows_of_day
from bench.synthetic import properties
from lakehouse_assets.commit.head_fork import rewritten_units, write_head_fork
from lakehouse_assets.commit.landing import ReadSnapshot, land
from lakehouse_assets.commit.manifests import Entries
from lakehouse_assets.commit.tokens import RunToken
from lakehouse_assets.maintenance.rewrite.plan import RewriteTask, listed, plan_rewrites, planned
from lakehouse_assets.wire.work import RewriteAssignment

TABLE = "nyc.neglected"
FIRST = date(2013, 1, 1)
ROWS = 1_500
"""Of one file: 3 million in all."""
SCANS = 3
FILES_AGAIN = 6


def main(action: str, home: Path, partitions: int, files_each: int, turns: int) -> None:
    if action == "build":
        build(home, partitions, files_each)
    else:
        print(json.dumps(Mending(home, partitions, turns).measured()))


def build(home: Path, partitions: int, files_each: int) -> None:
    """``files_each`` appends of a file to each partition."""
    (home / "warehouse").mkdir(parents=True)
    catalog = load_catalog("lake", **properties(home))
    catalog.create_namespace("nyc")
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "day"))
    merge_on_read = {"write.delete.mode": "merge-on-read"}
    table = catalog.create_table(TABLE, SCHEMA, partition_spec=spec, properties=merge_on_read)
    random = np.random.default_rng(7)
    for _ in range(files_each):
        table.append(_rows(random, partitions))


def _rows(random: np.random.Generator, partitions: int) -> pa.Table:
    return pa.concat_tables(rows_of_day(random, FIRST + timedelta(days=n), ROWS) for n in range(partitions))


class Mending:
    """One Spark, for deleting, scanning and rewriting."""

    def __init__(self, home: Path, partitions: int, turns: int) -> None:
        from lakehouse_assets.environment.settings import read_settings
        from lakehouse_assets.environment.spark_setup import spark_conf
        from lakehouse_assets.worker.session import build_session, configure
        from tests.support.live_lake import live_catalogs

        self.home, self.partitions, self.turns = home, partitions, turns
        self.properties = properties(home)
        self.catalog: Catalog = load_catalog("lake", **self.properties)
        session = build_session(spark_conf(read_settings(), {}))
        self.spark = configure(session, live_catalogs(self.properties))
        self.found: dict[str, Any] = {}

    @property
    def table(self) -> Table:
        return self.catalog.load_table(TABLE)

    def measured(self) -> dict[str, Any]:
        self.spark.sql(f"DELETE FROM lake.{TABLE} WHERE flight % 10 = 0")
        self._count("before")
        self._scans("before")
        head = self.table.current_snapshot()
        assert head
        for turn in range(-1, self.turns):  # the first turn warms up and is not reported
            for contestant in (*(self._stock, self._alone)[:: 1 if turn % 2 else -1], self._ours):
                if self.table.metadata.current_snapshot_id != head.snapshot_id:
                    self.table.manage_snapshots().rollback_to_snapshot(head.snapshot_id).commit()
                for what, seconds in contestant().items():
                    if turn >= 0:
                        self.found.setdefault(what, []).append(seconds)
        self._count("after")
        self._scans("after")
        self._third()
        return self.found

    def _base(self) -> ReadSnapshot:
        table = self.table
        snapshot = table.current_snapshot()
        assert snapshot
        return ReadSnapshot(table.metadata, snapshot)

    def _tasks(self) -> list[RewriteTask]:
        return plan_rewrites(self._base(), self.table.io, Entries(), None, everything=False)

    def _stock(self) -> dict[str, float]:
        """On a copy of the table's metadata, of the same files."""
        name = f"forks.stock_{uuid4().hex}"
        base = write_head_fork(self.table, self._base(), uuid4().hex, listed(self._tasks()))
        self._call("register_table", f"table => '{name}', metadata_file => '{base.location}'")
        arguments = f"table => '{name}', options => map('rewrite-all', 'true')"
        return {"stock": _timed(lambda: self._call("rewrite_data_files", arguments))}

    def _call(self, procedure: str, arguments: str) -> None:
        self.spark.sql(f"CALL stage.system.{procedure}({arguments})").collect()

    def _ours(self) -> dict[str, float]:
        from lakehouse_assets.worker import fork_rewrite
        from lakehouse_assets.worker.session import TableCredentials

        spent: dict[str, list[float]] = {"row_sums": [], "_call": []}

        def timed(name: str) -> Any:
            function = getattr(fork_rewrite, name)

            def call(*arguments: Any, **options: Any) -> Any:
                begun = time.perf_counter()
                result = function(*arguments, **options)
                spent[name].append(time.perf_counter() - begun)
                return result

            return patch.object(fork_rewrite, name, call)

        started = time.perf_counter()
        assignment = self._assigned()
        with timed("row_sums"), timed("_call"):
            done = fork_rewrite.rewrite(self.spark, assignment, TableCredentials(self.properties, TABLE))
        units = rewritten_units(self.table.io, done)
        landing = land(self.catalog, TABLE, units, RunToken(assignment.token, datetime.now(UTC)), {})
        seconds = time.perf_counter() - started
        self.found["landed"] = sum(dropped is None for _, dropped in landing.units)
        counted, again = spent["row_sums"]
        call = counted + sum(spent["_call"])
        return {"ours": seconds, "call": call, "again": again, "rest": seconds - call - again}

    def _alone(self) -> dict[str, float]:
        """Iceberg's procedure on a fork, without anything counted beside it."""
        from lakehouse_assets.worker.fork_rewrite import OPTIONS
        from lakehouse_assets.worker.session import register

        assignment = self._assigned()
        fork = register(self.spark, assignment.fork_base, assignment.token, 0).removeprefix("stage.")
        options = ", ".join(f"'{name}', '{value}'" for name, value in OPTIONS.items())
        arguments = f"table => '{fork}', options => map({options})"
        return {"alone": _timed(lambda: self._call("rewrite_data_files", arguments))}

    def _assigned(self) -> RewriteAssignment:
        token = uuid4().hex
        fork = write_head_fork(self.table, self._base(), token, listed(self._tasks()))
        return RewriteAssignment(TABLE, token, 0, fork.location, (self.home / f"{token}.json").as_uri())

    def _count(self, when: str) -> None:
        summary = self.table.inspect.snapshots().to_pylist()[-1]["summary"]
        totals = {name: int(value) for name, value in summary if name.startswith("total-")}
        self.found[f"files_{when}"] = totals["total-data-files"]
        self.found[f"deletes_{when}"] = totals["total-delete-files"]
        self.found["mb"] = totals["total-files-size"] / 1e6
        self.spark.sql(f"REFRESH TABLE lake.{TABLE}")
        self.found[f"rows_{when}"] = self.spark.sql(f"SELECT count(note IS NULL) AS n FROM lake.{TABLE}").collect()[0].n

    def _scans(self, when: str) -> None:
        day = FIRST + timedelta(days=self.partitions // 2)
        for reader, scan in (("spark", self._by_spark), ("polars", self._by_polars)):
            for what, only in (("full", None), ("one", day)):
                scan(only)  # the first warms up
                self.found[f"{reader} {what} {when}"] = [_timed(lambda: scan(only)) for _ in range(SCANS)]  # noqa: B023

    def _by_spark(self, day: date | None) -> None:
        where = f"WHERE day = DATE'{day}'" if day else ""
        self.spark.sql(
            f"SELECT sum(delay), sum(distance), sum(passengers), max(note) FROM lake.{TABLE} {where}"
        ).collect()

    def _by_polars(self, day: date | None) -> None:
        import polars as pl

        rows = pl.scan_iceberg(self.table)
        rows = rows.filter(pl.col("day") == day) if day else rows
        rows.select(pl.sum("delay"), pl.sum("distance"), pl.sum("passengers"), pl.max("note")).collect()

    def _third(self) -> None:
        """What a rewrite would read if a third of the partitions had small files again, of all that there is."""
        random = np.random.default_rng(8)
        for _ in range(FILES_AGAIN):
            self.table.append(_rows(random, self.partitions // 3))
        base = self._base()
        self.found["third_bytes"] = sum(planned(task).size for task in self._tasks())
        everything = plan_rewrites(base, self.table.io, Entries(), None, everything=True)
        self.found["all_bytes"] = sum(planned(task).size for task in everything)


def _timed(do: Callable[[], object]) -> float:
    started = time.perf_counter()
    do()
    return time.perf_counter() - started


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))
