"""Steps that leave something behind in a warm worker, and one that looks for what another has left."""

from __future__ import annotations

import calendar
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy
from pyspark.sql.functions import udf

from lakehouse_assets.declare.columns import column
from lakehouse_assets.declare.table import Table

GLOBAL: list[str] = []


def table_of(step: str) -> Table:
    """A table of one row, ``demo.<step>``."""
    columns = [column("pid", "long", required=True), column("jvm", "string"), column("saw", "string")]
    return Table(f"demo.{step}", columns, step=f"tests.support.leaving_steps:{step}")


SEEN: dict[str, Callable[[Any], Any]] = {
    "conf": lambda spark: spark.conf.get("spark.sql.shuffle.partitions"),
    "time_zone": lambda spark: spark.sql("SELECT current_timezone()").first()[0],
    "temp_view": lambda spark: spark.catalog.tableExists("left_view"),
    "global_view": lambda spark: bool(spark.sql("SHOW TABLES IN global_temp").collect()),
    "function": lambda spark: spark.catalog.functionExists("left_function"),
    "cache": lambda spark: not spark._jsparkSession.sharedState().cacheManager().isEmpty(),
    "rdd": lambda spark: spark.sparkContext._jsc.getPersistentRDDs().size(),
    "environment": lambda _: os.environ.get("LEFT_BEHIND"),
    "folder": lambda _: os.getcwd(),
    "umask": lambda _: _umask(),
    "module": lambda _: GLOBAL[:],
    "monkeypatch": lambda _: calendar.isleap(2024),
    "job": lambda spark: len(spark.sparkContext.statusTracker().getActiveJobsIds()),
    "thread": lambda _: [one.name for one in threading.enumerate() if one.name == "left"],
    "java_zone": lambda spark: spark._jvm.java.util.TimeZone.getDefault().getID(),
    "java_locale": lambda spark: spark._jvm.java.util.Locale.getDefault().toString(),
    "log_level": lambda spark: spark._jvm.org.apache.logging.log4j.LogManager.getRootLogger().getLevel().toString(),
    "property": lambda spark: spark._jvm.java.lang.System.getProperty("left.behind"),
    "hadoop": lambda spark: spark.sparkContext._jsc.hadoopConfiguration().get("left.behind"),
    "spark_conf": lambda spark: spark.sparkContext._jsc.sc().conf().get("spark.left.behind", None),
    "local_property": lambda spark: spark.sparkContext.getLocalProperty("left.behind"),
    "checkpoints": lambda spark: spark.sparkContext.getCheckpointDir(),
    "file": lambda spark: spark.sparkContext.listFiles,
    "jar": lambda spark: spark.sparkContext._jsc.sc().listJars().mkString(),
    "stream": lambda spark: spark._jsparkSession.sharedState().activeStreamingQueries().size(),
    "catalog_table": lambda spark: [one.name for one in spark.catalog.listTables("spark_catalog.default")],
    "python": lambda spark: spark.range(1).select(udf(lambda _: sys.executable)("id")).first()[0],
    "udf_state": lambda spark: _called(spark),
}
"""What a step finds of others, by the act that leaves it."""


def _umask() -> int:
    now = os.umask(0o22)
    os.umask(now)
    return now


def _called(spark: Any) -> int:
    """How often a worker of UDFs has been called. One that has not read all of its rows is not used again."""
    return spark.range(0, 1, 1, 1).select(_counted()("id")).collect()[0][0]


def _counted() -> Any:
    def count(_: int) -> int:
        import builtins

        builtins.left_count = getattr(builtins, "left_count", 0) + 1
        return builtins.left_count

    return udf(count, "int")


def _row(spark: Any, saw: object) -> Any:
    return spark.createDataFrame([(os.getpid(), _jvm_of(spark), json.dumps(saw))], "pid long, jvm string, saw string")


def _jvm_of(spark: Any) -> str:
    jvm = spark._jvm.java.lang.ProcessHandle.current()
    return f"{jvm.pid()} {jvm.info().startInstant().get().toString()}"


def numbers(spark: Any, window: Any) -> Any:
    return _row(spark, [random.random(), numpy.random.rand()])


def _add_file(spark: Any) -> None:
    path = Path(os.environ["LAKEHOUSE_HOME"]) / "left.txt"
    path.write_text("left")
    spark.sparkContext.addFile(str(path))


def _add_jar(spark: Any) -> None:
    path = Path(os.environ["LAKEHOUSE_HOME"]) / "left.jar"
    path.write_bytes(b"PK\x05\x06" + bytes(18))
    spark.sql(f"ADD JAR '{path}'")


def _stream(spark: Any) -> None:
    spark.readStream.format("rate").load().writeStream.format("memory").queryName("left").start()


def _job(spark: Any) -> None:
    def sleep() -> None:
        with suppress(Exception):  # cancelled
            spark.sparkContext.parallelize([1], 1).foreach(lambda _: time.sleep(30))

    threading.Thread(target=sleep, daemon=True).start()
    while not spark.sparkContext.statusTracker().getActiveJobsIds():
        time.sleep(0.05)


def _thread(_: Any) -> None:
    threading.Thread(target=time.sleep, args=(600,), name="left", daemon=True).start()


def _patch(_: Any) -> None:
    calendar.isleap = lambda _: "patched"


def _forget_nothing(_: Any) -> None:
    GLOBAL.append("left")


def _default_zone(spark: Any) -> None:
    zones = spark._jvm.java.util.TimeZone
    zones.setDefault(zones.getTimeZone("Asia/Tokyo"))


def _table(spark: Any) -> None:
    spark.sql("CREATE TABLE spark_catalog.default.left_table (n INT) USING parquet")


def _udf(spark: Any) -> None:
    for _ in range(3):
        _called(spark)


OWN: dict[str, Callable[[Any], None]] = {
    "conf": lambda spark: spark.conf.set("spark.sql.shuffle.partitions", "7"),
    "time_zone": lambda spark: spark.sql("SET TIME ZONE 'Asia/Tokyo'"),
    "temp_view": lambda spark: spark.range(1).createOrReplaceTempView("left_view"),
    "function": lambda spark: spark.udf.register("left_function", lambda: 1, "int"),
    "environment": lambda _: os.environ.update(LEFT_BEHIND="yes"),
    "folder": lambda _: os.chdir("/"),
    "umask": lambda _: os.umask(0o77) and None,
    "module": _forget_nothing,
    "monkeypatch": _patch,
    "local_property": lambda spark: spark.sparkContext.setLocalProperty("left.behind", "yes"),
    "udf_state": _udf,
}
"""What ends with the chunk's own process and session, so that its JVM can be used again."""

IN_JVM: dict[str, Callable[[Any], None]] = {
    "global_view": lambda spark: spark.range(1).createOrReplaceGlobalTempView("left_view"),
    "cache": lambda spark: spark.range(1).cache().count() and None,
    "rdd": lambda spark: spark.sparkContext.parallelize([1]).persist().count() and None,
    "java_zone": _default_zone,
    "java_locale": lambda spark: spark._jvm.java.util.Locale.setDefault(spark._jvm.java.util.Locale.JAPAN),
    "log_level": lambda spark: spark.sparkContext.setLogLevel("OFF"),
    "property": lambda spark: spark._jvm.java.lang.System.setProperty("left.behind", "yes") and None,
    "hadoop": lambda spark: spark.sparkContext._jsc.hadoopConfiguration().set("left.behind", "yes"),
    "spark_conf": lambda spark: spark.sparkContext._jsc.sc().conf().set("spark.left.behind", "yes") and None,
    "checkpoints": lambda spark: spark.sparkContext.setCheckpointDir(os.environ["LAKEHOUSE_HOME"] + "/checkpoints"),
    "file": _add_file,
    "jar": _add_jar,
    "stream": _stream,
    "job": _job,
    "thread": _thread,
    "catalog_table": _table,
}
"""What stays in a JVM, which then must not be used again."""

WAITING = "waiting"
"""A file in the lake's home: the worker, its server, their JVM, and a process of the step."""
ASKED = "asked"
"""A file in the lake's home: what the step ``acts`` does, and what it then looks at, as JSON."""


def acts(spark: Any, window: Any) -> Any:
    """Does what is asked, and says what it sees itself."""
    asked = json.loads(Path(os.environ["LAKEHOUSE_HOME"], ASKED).read_text())
    for act in asked["act"]:
        {**OWN, **IN_JVM}[act](spark)
    return _row(spark, {name: SEEN[name](spark) for name in asked["see"]})


def shows(start_session: Callable[[dict[str, str]], Any], started: float) -> int:
    """Prints what a session counts: work that is no chunk."""
    spark = start_session({})
    print(f"{spark.range(3).count()} rows by {_jvm_of(spark)}")
    return 0


def waits(spark: Any, window: Any) -> Any:
    """Notes its processes, begins a job that never ends, and starts a process of its own."""
    home = Path(os.environ["LAKEHOUSE_HOME"])
    child = subprocess.Popen(["sleep", "600"])
    pids = [os.getpid(), os.getppid(), spark._jvm.java.lang.ProcessHandle.current().pid(), child.pid]
    (home / "waiting.partial").write_text(" ".join(map(str, pids)))
    (home / "waiting.partial").rename(home / WAITING)
    spark.sparkContext.parallelize([1], 1).foreach(lambda _: time.sleep(600))


def fills(spark: Any, window: Any) -> Any:
    """Fills Java's heap."""
    kept = spark._jvm.java.util.ArrayList()
    while True:
        kept.add(spark._jvm.java.nio.ByteBuffer.allocate(64 * 2**20))


def fails(spark: Any, window: Any) -> Any:
    raise ValueError("on purpose")


def leaves(spark: Any, window: Any) -> Any:
    os._exit(0)


def stops(spark: Any, window: Any) -> Any:
    row = _row(spark, None)
    spark.stop()
    return row


def kills_java(spark: Any, window: Any) -> Any:
    spark._jvm.java.lang.Runtime.getRuntime().halt(9)
