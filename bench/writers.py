"""32 writers at once on a real REST catalog and S3: staged and published as one, against each committing by itself.
Threads of one JVM serve as writers; SeaweedFS is the server (tests/support/servers.py)."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from bench.context import Bench
from bench.report import Section, Spread, Verdict
from tests.support.tables import DAYS, numbers

WRITERS = 32
ROWS_EACH = 3
STAGED, ALONE = "stage, then one publish", "each commits by itself (Iceberg's defaults)"


def measure(bench: Bench) -> list[Section]:
    """One section; the contestants take turns in one session, so that both find it warm."""
    from lakehouse_assets.environment.spark_setup import environment
    from tests.support.servers import seaweedfs

    turns = bench.times(3)
    with seaweedfs() as server:
        lake = {**server.environment(), "LAKEHOUSE_STAGING": f"{server.plain}/staging"}
        env = {**bench.environment("writers"), **lake, **environment()}
        lines = bench.python("-m", "bench.writers", turns, env=env).lines
    runs_of = {name: [line for line in lines if line["contestant"] == name] for name in (STAGED, ALONE)}
    rows = [
        (name, *(_total(runs, what) for what in ("committed", "failed", "snapshots", "missing")), _seconds(runs))
        for name, runs in runs_of.items()
    ]
    failed, snapshots = _total(runs_of[STAGED], "failed"), _total(runs_of[STAGED], "snapshots")
    whole = (
        f"{failed} failed, {_total(runs_of[STAGED], 'missing')} rows missing, {snapshots} snapshots in {turns} turns"
    )
    holds = (failed, _total(runs_of[STAGED], "missing"), snapshots) == (0, 0, turns)
    example = next((line["error"] for line in runs_of[ALONE] if line["error"]), None)
    return [
        Section(
            f"{WRITERS} writers of different partitions at once, {turns} turns on SeaweedFS's REST catalog and S3",
            ("", "committed", "failed", "snapshots", "rows missing", "seconds a turn: median (least to greatest)"),
            rows,
            [Verdict("0 failed, one snapshot a run, all rows there", whole, holds)],
            [f"Counts are sums over the {turns} turns."]
            + ([f"An error of the second kind: `{example}`"] if example else []),
        )
    ]


def _total(runs: list[dict[str, Any]], what: str) -> int:
    return sum(run[what] for run in runs)


def _seconds(runs: list[dict[str, Any]]) -> Spread:
    return Spread.of([run["seconds"] for run in runs])


def main(turns: int) -> None:
    """The writers' process: a line of JSON for each contestant and turn. Beside Spark: no Dagster run here."""
    from lakehouse_assets.environment.catalog import catalog_properties, load_lake
    from lakehouse_assets.environment.catalog_in_spark import spark_catalogs
    from lakehouse_assets.environment.settings import read_settings
    from lakehouse_assets.environment.spark_setup import spark_conf
    from lakehouse_assets.worker.session import build_session, configure

    settings = read_settings()
    properties = catalog_properties(settings)
    spark = configure(build_session(spark_conf(settings, {})), spark_catalogs(properties, live=True))
    catalog = load_lake(settings)
    contestants = {STAGED: _staged, ALONE: _alone}
    for turn in range(-1, turns):  # the first turn warms up and is not reported
        for name in sorted(contestants, reverse=bool(turn % 2)):
            table = numbers(
                identifier=f"bench.turn_{turn + 1}_{'staged' if name == STAGED else 'alone'}", partitions_per_worker=1
            )
            writers = WRITERS if turn >= 0 else 2
            keys = DAYS.get_partition_keys()[:writers]
            outcome = contestants[name](spark, settings, catalog, properties, table, keys)
            rows = catalog.load_table(table.identifier).scan().count()
            snapshots = len(catalog.load_table(table.identifier).snapshots())
            if turn >= 0:
                found = {"snapshots": snapshots, "missing": ROWS_EACH * writers - rows}
                print(json.dumps({"contestant": name, **found, **outcome}), flush=True)
    spark.stop()


def _staged(
    spark: Any, settings: Any, catalog: Any, properties: Mapping[str, str], table: Any, keys: Sequence[str]
) -> dict[str, Any]:
    from lakehouse_assets.commit.change import Change
    from lakehouse_assets.commit.fork import write_fork_base
    from lakehouse_assets.commit.publish import publish
    from lakehouse_assets.commit.staged import read_all
    from lakehouse_assets.commit.target import open_target
    from lakehouse_assets.commit.tokens import RunToken
    from lakehouse_assets.run.attempts import window_of
    from lakehouse_assets.run.plan import plan_chunks
    from lakehouse_assets.wire.code import worker_code
    from lakehouse_assets.wire.work import Assignment
    from lakehouse_assets.worker.session import TableCredentials
    from lakehouse_assets.worker.stage import stage

    target, token = open_target(catalog, table), str(uuid4())
    started = time.monotonic()
    base = write_fork_base(target, token).location

    def write(chunk: Any) -> Any:
        assignment = Assignment(
            table=table.identifier,
            step=table.step,
            token=token,
            chunk=chunk.ordinal,
            window=window_of(table, chunk, ""),
            fork_base=base,
            receipt=f"{settings.staging}/{table.identifier}/{token}/{chunk.ordinal}.json",
            code_version=table.code_version,
            code=worker_code(table.step),
            unique=tuple(table.unique),
        )
        return stage(spark, assignment, TableCredentials(properties, table.identifier), time.monotonic())

    receipts, errors = _at_once(write, plan_chunks(table, keys))
    if errors and not receipts:
        raise errors[0]
    chunks = read_all(target.io.properties, receipts)
    published = [key for receipt in receipts for key in receipt.keys]
    run = RunToken(token, datetime.now(UTC))
    change = Change(table.alignment.region(published), chunks)
    publish(catalog, table.identifier, change, run)
    return _outcome(started, receipts, errors)


def _alone(
    spark: Any, settings: Any, catalog: Any, properties: Mapping[str, str], table: Any, keys: Sequence[str]
) -> dict[str, Any]:
    from lakehouse_assets.commit.target import open_target
    from lakehouse_assets.run.attempts import window_of
    from lakehouse_assets.run.plan import plan_chunks
    from lakehouse_assets.wire.code import step_of

    open_target(catalog, table)
    started = time.monotonic()

    def write(chunk: Any) -> bool:
        rows = step_of(table.step).load()(spark, window_of(table, chunk, ""))
        rows.writeTo(f"lake.{table.identifier}").overwritePartitions()
        return True

    return _outcome(started, *_at_once(write, plan_chunks(table, keys)))


def _at_once(write: Callable[[Any], Any], chunks: Sequence[Any]) -> tuple[list[Any], list[Exception]]:
    with ThreadPoolExecutor(len(chunks)) as pool:
        futures = [pool.submit(write, chunk) for chunk in chunks]
    errors = [error for future in futures if isinstance(error := future.exception(), Exception)]
    return [future.result() for future in futures if future.exception() not in errors], errors


def _outcome(started: float, done: Sequence[Any], errors: Sequence[Exception]) -> dict[str, Any]:
    """error: of the first; Py4J puts the cause on its second line."""
    return {
        "seconds": time.monotonic() - started,
        "committed": len(done),
        "failed": len(errors),
        "error": " ".join(str(errors[0]).split("\n")[:2])[:200] if errors else None,
    }


if __name__ == "__main__":
    main(int(sys.argv[1]))
