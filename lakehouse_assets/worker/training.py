"""Runs a small session that loads the classes a worker loads, so that setup can archive them (class data sharing)."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse_assets.environment.local_paths import location_of
from lakehouse_assets.files.drop_zone import read_csv
from lakehouse_assets.worker.session import literal

ICEBERG = "org.apache.iceberg.spark.SparkCatalog"


def main(plan: Path) -> None:
    """Runs the session that the JSON in ``plan`` describes, and waits for its JVM's end, which writes the archive.

    plan: has ``conf``, Spark settings, and ``scratch``, a directory for all its files.
    """
    session = json.loads(plan.read_text())
    scratch = Path(session["scratch"])
    conf: dict[str, Any] = {**session["conf"], **_catalogs(scratch)}
    spark = SparkSession.builder.appName("training").config(map=conf).getOrCreate()
    _exercise(spark, scratch)
    gateway = spark.sparkContext._gateway
    assert gateway is not None, "the session's JVM was started by this process"
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM ends, and writes its archive, when its input ends
    gateway.proc.wait()


def _catalogs(scratch: Path) -> dict[str, str]:
    # Like a worker's (environment/catalog_in_spark.py).
    uris = {"lake": f"jdbc:sqlite:{scratch}/catalog.db", "stage": "jdbc:sqlite::memory:"}
    conf = {}
    for name, uri in uris.items():
        options = {"type": "jdbc", "uri": uri, "warehouse": location_of(Path(scratch, "warehouse")), "clients": "1"}
        conf[f"spark.sql.catalog.{name}"] = ICEBERG
        for option, value in {**options, "jdbc.schema-version": "V1", "cache-enabled": "false"}.items():
            conf[f"spark.sql.catalog.{name}.{option}"] = value
    return conf


def _exercise(spark: SparkSession, scratch: Path) -> None:
    # What workers do: read CSV, create and append partitioned tables, register a fork, join, aggregate, list metadata.
    rows = _landing(spark, scratch)
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.t")
    columns = "day date, at timestamp, origin string, delay int, other double"
    for name, term in {"a": "day", "b": "days(at)", "c": "months(day)"}.items():
        spark.sql(f"CREATE TABLE lake.t.{name} ({columns}) USING iceberg PARTITIONED BY ({term})")
    rows.writeTo("lake.t.a").append()
    _stage(spark, rows, f"{scratch}/warehouse/t/b/metadata")
    lake = spark.table("lake.t.a").where("day >= date'2020-01-01'")
    joined = lake.join(rows.select("origin", F.col("delay").alias("later")).distinct(), "origin", "left")
    joined.join(F.broadcast(rows.select("day").distinct()), "day").groupBy("origin", F.trunc("day", "month")).agg(
        F.count("*"), F.avg("delay"), F.expr("percentile(delay, 0.9)"), F.sum(F.col("delay").isNull().cast("int"))
    ).orderBy("origin").collect()
    joined.groupBy("origin").count().where("count > 1").limit(5).collect()
    spark.sql("SELECT * FROM lake.t.a.files").collect()
    spark.sql("SELECT * FROM lake.t.a.snapshots").collect()


def _landing(spark: SparkSession, scratch: Path) -> DataFrame:
    folder = scratch / "landing"
    folder.mkdir()
    for day in range(1, 4):
        # Fields of all kinds, a null among them.
        lines = [f"2020-01-0{day},2020-01-0{day}T0{i}:00:00Z,{'ABC'[i % 3]},{i if i else ''},0.5" for i in range(9)]
        with gzip.open(folder / f"{day}.csv.gz", "wt") as file:
            file.write("\n".join(["day,at,origin,delay,other", *lines]))
    types = {"day": "date", "at": "timestamptz", "origin": "string", "delay": "int", "other": "double"}
    return read_csv(spark, str(folder), ["1", "2", "3"], types)


def _stage(spark: SparkSession, rows: DataFrame, metadata: str) -> None:
    base = next(Path(metadata).glob("*.metadata.json"))
    spark.sql("CREATE NAMESPACE IF NOT EXISTS stage.fork")
    spark.sql(f"CALL stage.system.register_table(table => 'fork.t', metadata_file => {literal(location_of(base))})")
    clustered = rows.repartition("day").sortWithinPartitions("at")
    clustered.writeTo("stage.fork.t").option("snapshot-property.lakehouse.token", "training").append()
    spark.sql("SELECT * FROM stage.fork.t.metadata_log_entries").collect()
    spark.table("stage.fork.t").groupBy("origin").count().collect()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
