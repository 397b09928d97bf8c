"""One contestant each of the trade measurements, in a process of its own: bare Spark, reports, runs of bench tables.
Prints a line of JSON. What they are compared with is in trade.py; merges within one JVM are in trade_merge.py."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any


def parquet(folder: str) -> dict[str, Any]:
    """The rows of trade.customs by bare Spark: the same step, Parquet by month, no Iceberg, no Dagster."""
    from lakehouse_assets.domains.trade.steps import customs
    from lakehouse_assets.domains.trade.tables import MONTHS
    from lakehouse_assets.environment.settings import read_settings
    from lakehouse_assets.environment.spark_setup import spark_conf
    from lakehouse_assets.step.window import Window
    from lakehouse_assets.worker.session import build_session

    spark = build_session(spark_conf(read_settings(), {}))
    window = Window(tuple(MONTHS.get_partition_keys()), landing=f"{os.environ['LAKEHOUSE_LANDING']}/trade")
    rows = customs(spark, window).repartition("ym").sortWithinPartitions("ym", "exp_imp", "hs9")
    rows.write.option("compression", "zstd").partitionBy("ym").parquet(folder)
    written = spark.read.parquet(folder).count()
    spark.stop()
    return {"rows": written}


def report() -> dict[str, Any]:
    """The domain's own report, from the lake."""
    from lakehouse_assets.domains.trade.engines import by_polars
    from lakehouse_assets.domains.trade.tables import customs
    from lakehouse_assets.environment.catalog import load_lake
    from lakehouse_assets.environment.settings import read_settings

    lake = load_lake(read_settings())
    # Before the clock starts, as DuckDB is.
    import polars  # noqa: F401
    import pyiceberg.io.pyarrow  # noqa: F401

    return timed(lambda: by_polars(lake.load_table(customs.identifier)).rows())


def polars() -> dict[str, Any]:
    """The same query by the same engine on the same files, whose names it is given."""
    import polars as pl

    from lakehouse_assets.domains.trade.engines import sums

    files = _files()
    return timed(lambda: sums(pl.scan_parquet(files, hive_partitioning=False)).collect().rows())


def duckdb() -> dict[str, Any]:
    """The same query by DuckDB on the same files, whose names it is given."""
    import duckdb as engine

    from lakehouse_assets.domains.trade.engines import SUMS

    query = SUMS.format(source=f"read_parquet({_files()}, hive_partitioning = false)")
    return timed(lambda: engine.execute(query).fetchall())


def _files() -> list[str]:
    """Paths of the table's data files, found before the clock starts."""
    from lakehouse_assets.domains.trade.tables import customs
    from lakehouse_assets.environment.catalog import load_lake
    from lakehouse_assets.environment.settings import read_settings

    files = load_lake(read_settings()).load_table(customs.identifier).inspect.files()
    return [location.removeprefix("file://") for location in files["file_path"].to_pylist()]


def timed(work: Callable[[], list[tuple[Any, ...]]]) -> dict[str, Any]:
    started = time.perf_counter()
    rows = work()
    return {"seconds": time.perf_counter() - started, "answer": [[row[0], int(row[1])] for row in rows]}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
