"""A code location of two domains, without Spark, for the tests of the command line. PIPELINE_* variables steer it.
No tests here."""

import os
import time
from pathlib import Path

import dagster as dg

from lakehouse_assets.run import progress

DAYS = dg.DailyPartitionsDefinition("2013-01-01", end_date="2013-01-06")


@dg.asset(key=["demo", "landing"])
def landing() -> None:
    print("what an asset prints is not for the terminal")


@dg.asset(key=["shop", "orders"])
def orders() -> None: ...


@dg.asset(
    key=["demo", "daily"], deps=[landing, orders], partitions_def=DAYS, backfill_policy=dg.BackfillPolicy.single_run()
)
def daily(context: dg.AssetExecutionContext) -> None:
    started, keys = time.time(), context.partition_keys
    for done in range(len(keys) + 1):
        progress.report(progress.Progress("demo.daily", done, len(keys), running=1, started_at=started))
    if os.environ.get("PIPELINE_FAILS"):
        try:
            raise OSError("the disk is full")
        except OSError as error:
            raise dg.Failure("demo.daily: no room for 2013-01-03; make room, then run again") from error
    if waiting := os.environ.get("PIPELINE_WAITS"):
        Path(waiting).touch()
        time.sleep(600)


@dg.asset(key=["demo", "monthly"], deps=[daily])
def monthly(context: dg.AssetExecutionContext) -> None:
    chart = Path(os.environ["LAKEHOUSE_HOME"], "reports", "delays.png")
    chart.touch()
    context.add_output_metadata({"chart": dg.MetadataValue.path(chart)})


defs = dg.Definitions([landing, orders, daily, monthly], executor=dg.in_process_executor)
