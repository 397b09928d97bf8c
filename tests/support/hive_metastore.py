"""Spark with a Hive metastore of its own, as EMR's Spark has Glue for one: reads a view that was put there.
``python -m tests.support.hive_metastore <folder>``: in it lie tables.json, as Glue has them, and what they name."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession


def main(folder: Path) -> None:
    told = json.loads((folder / "tables.json").read_text())
    metastore = f"jdbc:derby:;databaseName={folder}/metastore;create=true"
    settings: dict[str, bool | float | int | str | None] = {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.hadoop.javax.jdo.option.ConnectionURL": metastore,
        "spark.hadoop.hive.metastore.schema.verification": "false",
        "spark.hadoop.datanucleus.schema.autoCreateAll": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder}",
    }
    spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
    spark.sql("CREATE DATABASE partners")
    java: Any = spark._jvm
    hive = java.org.apache.hadoop.hive.metastore
    client = hive.HiveMetaStoreClient(_hive_conf(java, metastore))
    for table in told["tables"]:
        client.createTable(_table(java, table))
    for partition in told["partitions"]:
        client.add_partition(_partition(java, partition))
    rows = spark.sql(told["query"]).toJSON().collect()
    (folder / "rows.json").write_text(json.dumps([json.loads(row) for row in rows]))
    spark.stop()


def _hive_conf(java: Any, metastore: str) -> Any:
    conf = java.org.apache.hadoop.hive.conf.HiveConf()
    conf.set("javax.jdo.option.ConnectionURL", metastore)
    conf.set("hive.metastore.schema.verification", "false")
    return conf


def _table(java: Any, told: dict[str, Any]) -> Any:
    """A table of Hive's metastore with the fields that Glue's client for Hive copies."""
    table = java.org.apache.hadoop.hive.metastore.api.Table()
    table.setDbName("partners")
    table.setTableName(told["Name"])
    table.setTableType(told["TableType"])
    table.setParameters(told["Parameters"])
    table.setPartitionKeys(_columns(java, told["PartitionKeys"]))
    table.setSd(_descriptor(java, told["StorageDescriptor"]))
    if "ViewExpandedText" in told:
        table.setViewOriginalText(told["ViewOriginalText"])
        table.setViewExpandedText(told["ViewExpandedText"])
    return table


def _partition(java: Any, told: dict[str, Any]) -> Any:
    partition = java.org.apache.hadoop.hive.metastore.api.Partition()
    partition.setDbName("partners")
    partition.setTableName(told["TableName"])
    partition.setValues(_list(java, told["Values"]))
    partition.setSd(_descriptor(java, told["StorageDescriptor"]))
    partition.setParameters({})
    return partition


def _descriptor(java: Any, told: dict[str, Any]) -> Any:
    api = java.org.apache.hadoop.hive.metastore.api
    found = api.StorageDescriptor()
    found.setCols(_columns(java, told["Columns"]))
    found.setLocation(told["Location"] or None)
    found.setInputFormat(told.get("InputFormat"))
    found.setOutputFormat(told.get("OutputFormat"))
    serde = api.SerDeInfo()
    serde.setSerializationLib(told["SerdeInfo"].get("SerializationLibrary"))
    serde.setParameters(told["SerdeInfo"].get("Parameters", {}))
    found.setSerdeInfo(serde)
    found.setParameters({})
    found.setBucketCols(_list(java, []))
    found.setSortCols(_list(java, []))
    return found


def _columns(java: Any, told: list[dict[str, str]]) -> Any:
    api = java.org.apache.hadoop.hive.metastore.api
    return _list(java, [api.FieldSchema(one["Name"], one["Type"], one.get("Comment", "")) for one in told])


def _list(java: Any, values: list[Any]) -> Any:
    found = java.java.util.ArrayList()
    for value in values:
        found.add(value)
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
