"""The worker's Spark session: its settings, the catalogs ``lake`` and ``stage``, and the private fork in the second.

What is written to a fork is stage.py's and fork_rewrite.py's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from subprocess import TimeoutExpired

from pyspark import SparkConf, SparkContext
from pyspark.errors import AnalysisException, PySparkRuntimeError
from pyspark.sql import SparkSession

from lakehouse_assets.environment.env_reader import SettingsError, public
from lakehouse_assets.worker.failure import root_message

APP_NAME = "lakehouse worker"
HADOOP = "spark.hadoop."
BROUGHT: set[str] = set()
"""Names of the settings that tables have brought into this process's JVM, where it serves several."""
# A process may need this long to end after its socket has closed.
EXIT_SECONDS = 0.5
# An idle JVM ends within a second.
ENDING_SECONDS = 5.0


def build_session(conf: Mapping[str, str]) -> SparkSession:
    """Starts a session with these settings. They show in the JVM's command line: configure() sets secrets later."""
    return SparkSession.builder.appName(APP_NAME).config(map=dict(conf)).getOrCreate()


def check_settings(conf: Mapping[str, str]) -> None:
    """Starts the JVM and asks it about these settings.

    Raises SettingsError where Java does not start with them, and for one of SQL that Spark refuses.
    A session would refuse that at its first use, and PySpark (4.1) asks that session how to tell so, without end.
    """
    try:
        context = SparkContext.getOrCreate(SparkConf().setAll([("spark.app.name", APP_NAME), *conf.items()]))
    except PySparkRuntimeError as error:
        raise SettingsError(
            "Java did not start; why is in the worker's output. If it is a setting, such as spark.driver.memory, it is "
            f"the table's or one of LAKEHOUSE_SPARK__…: {root_message(str(error))}"
        ) from error
    assert SparkContext._gateway is not None
    empty = SparkContext._gateway.jvm.org.apache.spark.sql.internal.SQLConf()
    try:
        for name in conf:
            if name.startswith("spark.sql."):
                empty.setConfString(name, conf[name])
    except Exception as error:  # py4j's, or PySpark's where there is a session already
        if SparkSession.getActiveSession() is None:
            context.stop()  # else a process that serves several tables would keep the setting
        message = f"Spark refuses a setting of the table or of LAKEHOUSE_SPARK__…: {root_message(str(error))}"
        raise SettingsError(message) from error


def own_session(spark: SparkSession, conf: Mapping[str, str], brought: Collection[str]) -> SparkSession:
    """Returns a session for one table, where a JVM serves several (inline).

    It has none of the others' settings, temporary views and catalogs, whose credentials may be those of one table.
    Settings that count only when the JVM starts stay as they are.
    conf: all of its settings. brought: names of those that the table itself has.
    """
    own = spark.newSession()  # with the settings that the JVM was started with, those of its first table included
    BROUGHT.update(brought)
    for name in BROUGHT:
        with suppress(AnalysisException):  # Spark refuses to change what counts only at the start
            own.conf.set(name, conf[name]) if name in conf else own.conf.unset(name)
    own.createDataFrame([], "n INT")  # makes it the active one, which a step may ask for
    return own


def stop_session() -> None:
    """Stops this process's session, if it has one. On YARN that is what makes the application a success."""
    if spark := SparkSession.getActiveSession():
        spark.stop()


def hidden(conf: Mapping[str, str]) -> dict[str, str]:
    """Returns the secrets among Spark settings, as configure() takes them.

    Raises ValueError, naming them, for those that Spark reads only when it starts.
    """
    shown = public(conf)
    secrets = {key: value for key, value in conf.items() if key not in shown}
    if static := [key for key in secrets if not key.startswith((HADOOP, "spark.sql."))]:
        raise ValueError(
            f"{', '.join(sorted(static))} would show in process arguments; give such a setting by a spark-defaults.conf"
        )
    return {key.removeprefix(HADOOP): value for key, value in secrets.items()}


def configure(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """Sets further settings of a session: its catalogs, which Spark loads at their first use, and Hadoop's ``fs.…``.

    Returns the session.
    Credentials set after the JVM's start show neither in process arguments nor in the Spark UI. If the session was
    built with a ``spark.hadoop.fs.…``, that wins: somebody gave it for what the steps read.
    """
    # It prints each error that Spark raises, also those that a worker provokes to look at a condition.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    for name, value in settings.items():
        if spark.conf.get(HADOOP + name, None) is None:
            spark.conf.set(name, value)
    return spark


def end_jvm() -> None:
    """Ends this process's JVM, if it started one, and waits until it has removed its scratch folders.

    It waits at most ENDING_SECONDS. When a local worker has ended, the launcher kills what is left of its process
    group.
    """
    gateway = SparkContext._gateway
    if gateway is not None and gateway.proc is not None:
        # A thread of py4j's tells the JVM of objects that Python has let go of. Where the JVM ends meanwhile, it prints
        # a traceback, beside work that was done well.
        gateway._gateway_client.is_connected = False
        with suppress(TimeoutExpired, OSError):
            gateway.proc.stdin.close()
            gateway.proc.wait(ENDING_SECONDS)


def jvm_exit() -> int | None:
    """Returns the return code of this process's JVM; None while it runs, or when none was started."""
    gateway = SparkContext._gateway
    if gateway is None or gateway.proc is None:
        return None
    with suppress(TimeoutExpired):
        status: int = gateway.proc.wait(EXIT_SECONDS)
        return status
    return None


class ForkError(RuntimeError):
    """The fork does not hold one commit."""


def register(spark: SparkSession, fork_base: str, token: str, chunk: int) -> str:
    """Registers a table with this metadata file, which only this session sees. Returns Spark's name of it."""
    name = f"fork_{token.replace('-', '_').replace('.', '_')}_{chunk}_{time.time_ns()}"
    spark.sql(f"CALL stage.system.register_table(table => 'forks.{name}', metadata_file => {literal(fork_base)})")
    return f"stage.forks.{name}"


def committed_metadata(spark: SparkSession, fork: str, fork_base: str, table: str) -> str:
    """Returns the one entry of the metadata log that is not the base. Timestamps don't tell which it is: clocks differ.

    table: its identifier, for the message. Raises ForkError.
    """
    entries: list[str] = [row.file for row in spark.sql(f"SELECT file FROM {fork}.metadata_log_entries").collect()]
    written = [file for file in entries if file != fork_base]
    if len(written) != 1:
        raise ForkError(
            f"table {table}: the fork of {fork_base} should have one commit, it has {len(written)}: {written}"
        )
    return written[0]


def literal(text: str) -> str:
    """Returns text as a literal of SQL. Before Spark 4, Iceberg parses CALL and takes no parameters."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
