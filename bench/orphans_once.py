"""Generated lakes through Spark's own remove_orphan_files, or through the collector: what each broke, lost and left.
A process of its own, with one JVM; prints one line of JSON. The lakes are tests/support/lakes.py's."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.collected import TestSite, local_site
from tests.support.forks import Daily
from tests.support.lakes import GeneratedLake, generate, live_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# remove_orphan_files' default.
OLDER_THAN_MS = 3 * 24 * 3600 * 1000
Sweep = Callable[[TestSite, GeneratedLake, Counter[str]], None]


def main(home: Path, way: str, lakes: int) -> None:
    """way: ``spark`` or ``ours``."""
    sweep = _by_spark(home) if way == "spark" else _by_us
    found: Counter[str] = Counter(lakes=lakes)
    for seed in range(lakes):
        site = local_site(home / way / str(seed))
        lake = generate(site.catalog, home / way / str(seed), seed, round(time.time() * 1000))
        site.runs = lake.runs
        for commit in lake.late:  # nothing is written while files are removed
            commit()
        orphans = lake.all_orphans()
        found["tables"] += len(lake.tables)
        live = {table.identifier: live_files(table.table) for table in lake.tables}
        sweep(site, lake, found)
        for table in lake.tables:
            now = live_files(table.table) if _is_readable(table) else live[table.identifier]
            missing = [path for path in live[table.identifier] & now if not path.exists()]
            found["broken"] += bool(missing)
            found["live files lost"] += len(missing)
        found["held files lost"] += sum(not path.exists() for path in lake.spared)
        found["orphans"] += len(orphans)
        found["orphans found"] += sum(not path.exists() for path in orphans)
    print(json.dumps(found))


def _is_readable(table: Daily) -> bool:
    try:
        live_files(table.table)
    except Exception:  # its metadata or a manifest is gone
        return False
    return True


def _by_us(site: TestSite, lake: GeneratedLake, found: Counter[str]) -> None:
    for days in (0.0, 3.1, 6.2):
        site.days = days
        for table in lake.tables:
            found["refused"] += bool(site.pass_over(table.identifier).problems) and days == 0


def _by_spark(home: Path) -> Sweep:
    from lakehouse_assets.environment.settings import read_settings
    from lakehouse_assets.environment.spark_setup import spark_conf
    from lakehouse_assets.worker.session import build_session, configure
    from tests.support.live_lake import live_catalogs

    jvm = build_session(spark_conf(read_settings({"LAKEHOUSE_HOME": str(home / "spark-home")}), {}))

    def sweep(site: TestSite, lake: GeneratedLake, found: Counter[str]) -> None:
        spark = configure(jvm.newSession(), live_catalogs(site.catalog.properties))
        for table in lake.tables:
            found["refused"] += not _removed(spark, table.identifier)

    return sweep


def _removed(spark: SparkSession, identifier: str) -> bool:
    older = f"timestamp_millis({round(time.time() * 1000) - OLDER_THAN_MS})"
    try:
        at: Any = spark.sql(f"SELECT CAST({older} AS STRING)").collect()[0][0]
        spark.sql(
            f"CALL lake.system.remove_orphan_files(table => '{identifier}', older_than => TIMESTAMP '{at}')"
        ).collect()
    except Exception as error:  # what Spark and Iceberg raise: refused, or a table that is broken by now
        print(f"{identifier}: {str(error).splitlines()[0][:200]}", file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
