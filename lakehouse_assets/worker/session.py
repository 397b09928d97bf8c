"""The worker's Spark session: built from the assignment's settings, with catalogs and S3 added once the JVM runs.
No setting is chosen here (resources/spark_runtime.py does that) and nothing is written."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from subprocess import TimeoutExpired

from pyspark import SparkContext
from pyspark.sql import SparkSession
from resources.secrets import public

HADOOP = "spark.hadoop."
# What a process whose socket has just closed needs to be seen as ended.
EXIT_SECONDS = 0.5
# An idle JVM ends within a second.
ENDING_SECONDS = 5.0


def build_session(conf: Mapping[str, str]) -> SparkSession:
    """A session with these settings. They show in the JVM's command line: secrets are set later, by configure()."""
    builder = SparkSession.builder.appName("lakehouse worker")
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def stop_session() -> None:
    """Stop this process's session, if it has one. On YARN that is what makes the application a success."""
    if spark := SparkSession.getActiveSession():
        spark.stop()


def hidden(conf: Mapping[str, str]) -> dict[str, str]:
    """The secrets among Spark settings, as configure() takes them.

    Raises ValueError, naming them, for those that Spark takes at its start only.
    """
    secrets = {key: value for key, value in conf.items() if key not in public(conf)}
    if late := [key for key in secrets if not key.startswith((HADOOP, "spark.sql."))]:
        raise ValueError(
            f"{', '.join(sorted(late))} would show in process arguments; give such a setting by a spark-defaults.conf"
        )
    return {key.removeprefix(HADOOP): value for key, value in secrets.items()}


def configure(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """The session with its catalogs, which Spark loads when they are first named, and Hadoop's ``fs.…`` settings.

    They may hold credentials: set behind the start they reach neither process arguments nor the Spark UI. A
    ``spark.hadoop.fs.…`` that the session was built with wins: somebody gave it for the steps' reads alone.
    """
    for name, value in settings.items():
        if spark.conf.get(HADOOP + name, None) is None:
            spark.conf.set(name, value)
    return spark


def end_jvm() -> None:
    """End this process's JVM, if it started one, and wait until it has removed its scratch folders, ENDING_SECONDS at
    most: what is left of a local worker's process group when the worker has ended is killed."""
    gateway = SparkContext._gateway
    if gateway is not None and gateway.proc is not None:
        with suppress(TimeoutExpired, OSError):
            gateway.proc.stdin.close()
            gateway.proc.wait(ENDING_SECONDS)


def jvm_exit() -> int | None:
    """The return code of this process's JVM; None while it runs, or when none was started."""
    gateway = SparkContext._gateway
    if gateway is None or gateway.proc is None:
        return None
    try:
        return gateway.proc.wait(EXIT_SECONDS)
    except TimeoutExpired:
        return None
