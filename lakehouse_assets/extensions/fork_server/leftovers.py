"""What a step may leave behind in a JVM, beyond its own session: the next chunk's step would find it there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ENTRY = re.compile(r"<name>(.*?)</name><value>(.*?)</value><final>.*?</final>(?:<source>(.*?)</source>)?", re.DOTALL)
"""A setting of Hadoop's, as Configuration.writeXml() writes it."""
STREAM = "stream execution thread"
"""How Spark names the thread of a streaming query."""


@dataclass(frozen=True)
class State:
    """What all sessions of a JVM share, by the name that users know it by."""

    shared: Mapping[str, Any]

    @classmethod
    def of(cls, jvm: Any, base: Any) -> State:
        """Asks a JVM. base: its first session."""
        spark, java = base.sparkContext(), jvm.java
        loggers = jvm.org.apache.logging.log4j.LogManager.getContext(False).getConfiguration().getLoggers()
        return cls(
            {
                "a changed sparkContext.hadoopConfiguration": _hadoop(jvm, spark.hadoopConfiguration()),
                "changed settings of the SparkContext": spark.conf().toDebugString(),
                "a changed system property": _properties(java.lang.System.getProperties()),
                "a changed log level": sorted((name, loggers[name].getLevel().toString()) for name in loggers),
                "another default time zone of Java": java.util.TimeZone.getDefault().getID(),
                "another default locale of Java": java.util.Locale.getDefault().toString(),
                "added files": spark.listFiles().mkString(),
                "added jars": spark.listJars().mkString(),
                "added archives": spark.listArchives().mkString(),
                "a checkpoint folder": spark.getCheckpointDir().toString(),
            }
        )


def left(before: State, jvm: Any, base: Any) -> list[str]:
    """Returns what a step left in a JVM since ``before``; empty if the next step would find nothing of it.

    base: the JVM's first session.
    """
    spark = base.sparkContext()
    if spark.isStopped():
        return ["a stopped SparkContext"]
    spark.listenerBus().waitUntilEmpty()  # the status tracker learns from it which jobs run
    now, shared = State.of(jvm, base).shared, base.sharedState()
    catalog = shared.externalCatalog().unwrapped()
    threads = jvm.java.lang.Thread.getAllStackTraces().keySet().toString()
    also = {
        "cached data": not shared.cacheManager().isEmpty(),
        "persisted RDDs": spark.getPersistentRDDs().size() > 0,
        "global temporary views": not shared.globalTempViewManager().listViewNames("*").isEmpty(),
        "running jobs": len(spark.statusTracker().getActiveJobIds()) > 0,
        "running tasks": has_running_tasks(spark),
        "a streaming query": STREAM in threads,
        "tables in spark_catalog": catalog.listDatabases().size() > 1 or not catalog.listTables("default").isEmpty(),
        "functions in spark_catalog": not catalog.listFunctions("default", "*").isEmpty(),
    }
    changed = [name for name, was in before.shared.items() if now[name] != was]
    return changed + [name for name, is_so in also.items() if is_so]


def has_running_tasks(spark: Any) -> bool:
    """Whether a SparkContext runs tasks now, be it of cancelled jobs. Its status tracker may be seconds behind."""
    counts: str = spark.taskScheduler().runningTasksByExecutors().values().mkString(" ")
    return any(map(int, counts.split()))


def _properties(properties: Any) -> dict[str, str]:
    """Leaves out those of Arrow: Iceberg sets them when it first reads a file, and they would look like a change."""
    return {name: properties[name] for name in properties if not name.startswith("arrow.")}


def _hadoop(jvm: Any, configuration: Any) -> dict[str, str]:
    """Leaves out the defaults: Hadoop reads further files of defaults when it first needs them."""
    text = jvm.java.io.StringWriter()
    configuration.writeXml(text)
    found = ENTRY.findall(text.toString())
    return {name: value for name, value, source in found if not source.endswith("-default.xml")}
