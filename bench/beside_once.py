"""One writer, or one kind of maintenance, beside others, in a process of its own until its time is over.
Prints one line of JSON at its end; what is compared is in beside.py."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import uuid4

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError

from lakehouse_assets.commit.tokens import RunToken
from lakehouse_assets.environment.catalog import catalog_properties, load_lake
from lakehouse_assets.environment.settings import read_settings
from tests.support.forks import SCHEMA, SPEC, Daily, daily_rows

EVERY = 10.0
PAUSE = 20.0
DAYS = [(date(2013, 1, 1) + timedelta(days=n)).isoformat() for n in range(10)]
FILLED = 6


def main(role: str, tables: list[str], start: float, seconds: float) -> None:
    """role: ``writer``, ``ours``, ``stock``. start: epoch seconds."""
    catalog = load_lake(read_settings())
    if role == "writer":
        daily = _create(catalog, *tables)
        rows = dict.fromkeys(DAYS, FILLED)
        _publish(daily, DAYS[0], rows)  # imports all that it needs
        answer = _write(daily, rows, start, seconds)
    else:
        os.nice(10)
        work = _ours(catalog) if role == "ours" else _stock()
        _sleep_until(start)
        answer = _maintain(work, tables, start + seconds)
    print(json.dumps({"error": None, **answer}))


def _create(catalog: Catalog, identifier: str) -> Daily:
    """A table with small files in each day. Writers try again themselves, so that retries are counted."""
    catalog.create_namespace_if_not_exists("bench")
    catalog.create_table(identifier, SCHEMA, partition_spec=SPEC, properties={"commit.retry.num-retries": "0"})
    daily = Daily(catalog, identifier)
    for n in range(FILLED):
        daily.append(daily_rows(*DAYS, carrier=f"A{n}"))
    return daily


def _write(daily: Daily, rows: dict[str, int], start: float, seconds: float) -> dict[str, Any]:
    taken: list[float] = []
    counts: Counter[str] = Counter()
    error = None
    for n in range(int(seconds / EVERY)):
        _sleep_until(start + n * EVERY)
        began = time.monotonic()
        try:
            counts["retries"] += _publish(daily, DAYS[n % len(DAYS)], rows) if n % 2 else _append(daily, rows)
            taken.append(time.monotonic() - began)
        except Exception as failure:
            counts["failed"] += 1
            error = repr(failure)[:200]
    found = daily.counts()
    wrong = sum(abs(found.get(day, 0) - expected) for day, expected in rows.items())
    return {**counts, "commits": len(taken), "seconds": taken, "wrong": wrong, "error": error}


def _append(daily: Daily, rows: dict[str, int]) -> int:
    """Append a row to each day as an outsider does; how often it was tried again."""
    for retries in range(5):
        try:
            daily.append(daily_rows(*DAYS, carrier="BB"))
        except CommitFailedException:
            continue
        rows |= {day: count + 1 for day, count in rows.items()}
        return retries
    raise TimeoutError("five appends in a row conflicted")


def _publish(daily: Daily, day: str, rows: dict[str, int]) -> int:
    token = uuid4().hex
    published = daily.publish(token, [day], daily.stage(token, 0, [day], daily_rows(day, each=3)))
    rows[day] = 3
    return published.attempts - 1


def _maintain(work: list[Callable[[str], tuple[int, int]]], tables: list[str], end: float) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    error = None
    while time.time() < end:
        for table in tables:
            for each in work:
                try:
                    done, dropped = each(table)
                    counts.update(done=done, dropped=dropped)
                except NoSuchTableError:
                    pass
                except Exception as failure:
                    counts["undone"] += 1
                    error = repr(failure).replace("\n", " ")[:300]
        _sleep_until(min(time.time() + PAUSE, end))
    return {**counts, "error": error}


def _ours(catalog: Catalog) -> list[Callable[[str], tuple[int, int]]]:
    """Each: the commits that it made, and what it dropped as writers had changed it."""
    from lakehouse_assets.commit.expire import ExpiryPolicy, expire, plan_expiry
    from lakehouse_assets.maintenance.rewrite.compact import Outcome, compact
    from lakehouse_assets.maintenance.rewrite.manifests import remove_dangling_deletes, rewrite_manifests

    def token() -> RunToken:
        return RunToken(f"maintenance-{uuid4().hex}", datetime.now(UTC))

    def compaction(table: str) -> tuple[int, int]:
        report = compact(catalog, table, token())
        if report.faults:
            raise RuntimeError(str(report.faults[0]))
        return int(bool(report.landed)), sum(p.outcome is Outcome.DROPPED for p in report.partitions)

    def dangling(table: str) -> tuple[int, int]:
        return int(remove_dangling_deletes(catalog, table, token(), {})[0] is not None), 0

    def manifests(table: str) -> tuple[int, int]:
        report = rewrite_manifests(catalog, table, token())
        return int(report.snapshot_id is not None), report.dropped

    def expiry(table: str) -> tuple[int, int]:
        policy = ExpiryPolicy(minimum=3, age=timedelta(seconds=60))
        now = int(time.time() * 1000)
        expired = expire(catalog, table, lambda metadata: plan_expiry(table, metadata, policy, now).expiry)
        return int(not expired.expiry.is_empty), 0

    return [compaction, dangling, manifests, expiry]


def _stock() -> list[Callable[[str], tuple[int, int]]]:
    from lakehouse_assets.environment.catalog_in_spark import spark_catalogs
    from lakehouse_assets.environment.spark_setup import spark_conf
    from lakehouse_assets.worker.session import build_session, configure

    settings = read_settings()
    properties = catalog_properties(settings)
    spark = configure(build_session(spark_conf(settings, {})), spark_catalogs(properties, live=True))

    def call(text: str) -> Callable[[str], tuple[int, int]]:
        def run(table: str) -> tuple[int, int]:
            before = datetime.now(UTC) - timedelta(seconds=60)
            spark.sql(text.format(table=table, before=f"{before:%Y-%m-%d %H:%M:%S}")).collect()
            return 1, 0

        return run

    return list(map(call, _CALLS))


_CALLS = (
    "CALL lake.system.rewrite_data_files(table => '{table}', options => map('min-input-files', '5'))",
    "CALL lake.system.rewrite_manifests(table => '{table}', use_caching => false)",
    "CALL lake.system.expire_snapshots(table => '{table}', older_than => TIMESTAMP '{before}', retain_last => 3)",
)


def _sleep_until(at: float) -> None:
    time.sleep(max(0.0, at - time.time()))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2].split(","), float(sys.argv[3]), float(sys.argv[4]))
