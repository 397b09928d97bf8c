"""The worker's Spark session: built from the assignment's settings, with the catalogs added once the JVM runs.
No setting is chosen here (resources/spark_runtime.py does that) and nothing is written."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession


def build_session(conf: Mapping[str, str], catalogs: Mapping[str, str]) -> SparkSession:
    """A session with ``conf`` on the JVM's command line and ``catalogs`` set at run time.

    catalogs may hold credentials: set behind the start they reach neither process arguments nor the Spark UI.
    """
    builder = SparkSession.builder.appName("lakehouse worker")
    for name, value in conf.items():
        builder = builder.config(name, value)
    return add_catalogs(builder.getOrCreate(), catalogs)


def add_catalogs(spark: SparkSession, catalogs: Mapping[str, str]) -> SparkSession:
    """The session with the catalogs' settings; Spark loads a catalog when it is first named."""
    for name, value in catalogs.items():
        spark.conf.set(name, value)
    return spark
