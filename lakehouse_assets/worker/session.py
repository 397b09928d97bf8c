"""The worker's Spark session: its settings, catalogs and credentials."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from subprocess import TimeoutExpired
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.errors import AnalysisException, PySparkRuntimeError
from pyspark.sql import SparkSession

from lakehouse_assets.environment.catalog import table_io, with_retries
from lakehouse_assets.environment.catalog_in_spark import (
    EXPIRES_AT,
    KEYS,
    LAKE,
    REFRESH_ENDPOINT,
    catalog_type,
    hadoop_s3,
    spark_catalogs,
)
from lakehouse_assets.environment.env_reader import SettingsError, public
from lakehouse_assets.worker.failure import CredentialsExpired, root_message

APP_NAME = "lakehouse worker"
# The prefix by which Spark's settings carry Hadoop's.
HADOOP = "spark.hadoop."
BROUGHT: set[str] = set()
"""Names of settings that tables have brought into this process's JVM, if it serves several (inline)."""
# A process may need this long to end after its socket has closed.
EXIT_SECONDS = 0.5
# The most to wait for the JVM's end; an idle one ends within a second.
ENDING_SECONDS = 5.0


def build_session(conf: Mapping[str, str]) -> SparkSession:
    """Starts a session. Its settings show in the JVM's command line, so configure() sets secrets later."""
    return SparkSession.builder.appName(APP_NAME).config(map=dict(conf)).getOrCreate()


def start(
    conf: Mapping[str, str],
    start_session: Callable[[Mapping[str, str]], SparkSession],
    brought: Collection[str] | None = None,
) -> tuple[SparkSession, dict[str, str]]:
    """Starts a session; returns it and the secrets among its settings, for configure().

    start_session: gets the settings that are not secret. brought: if the JVM is shared by several tables (inline), the
    settings that this table brings; else None. Raises as check_settings() and hidden().
    """
    secrets, shown = hidden(conf), public(conf)
    check_settings(shown)
    spark = start_session(shown)
    return spark if brought is None else own_session(spark, shown, brought), secrets


def check_settings(conf: Mapping[str, str]) -> None:
    """Starts Java with these settings. Raises SettingsError if it does not start or Spark rejects an SQL setting."""
    # A session would reject a wrong SQL setting only when it is first used. PySpark (4.1) would then ask that same
    # session how to report the error, and so recurse without end.
    try:
        context = SparkContext.getOrCreate(SparkConf().setAll([("spark.app.name", APP_NAME), *conf.items()]))
    except PySparkRuntimeError as error:
        raise SettingsError(
            "Java did not start; see the worker's output for the reason. If a setting such as spark.driver.memory is "
            f"the cause, it comes from the table or from LAKEHOUSE_SPARK__…: {root_message(str(error))}"
        ) from error
    assert SparkContext._gateway is not None
    empty = SparkContext._gateway.jvm.org.apache.spark.sql.internal.SQLConf()
    try:
        for name in conf:
            if name.startswith("spark.sql."):
                empty.setConfString(name, conf[name])
    except Exception as error:  # py4j's, or PySpark's if there is a session already
        if SparkSession.getActiveSession() is None:
            context.stop()  # else a process that serves several tables would keep the setting
        message = f"Spark rejects a setting from the table or from LAKEHOUSE_SPARK__…: {root_message(str(error))}"
        raise SettingsError(message) from error


def own_session(spark: SparkSession, conf: Mapping[str, str], brought: Collection[str]) -> SparkSession:
    """Returns a session for one table, in a JVM that serves several (inline).

    It lacks the other tables' settings, temporary views and catalogs, whose credentials may be for one table only.
    Settings that count only at the JVM's start stay.
    """
    own = spark.newSession()  # with the settings of the JVM's start, those of its first table included
    BROUGHT.update(brought)
    for name in BROUGHT:
        with suppress(AnalysisException):  # Spark refuses to change what counts only at the start
            if name in conf:
                own.conf.set(name, conf[name])
            else:
                own.conf.unset(name)
    own.createDataFrame([], "n INT")  # makes it the active session, which a step may ask for
    return own


def stop_session() -> None:
    """Stops this process's session, if any. On YARN, only this makes the application a success."""
    if spark := SparkSession.getActiveSession():
        spark.stop()


def hidden(conf: Mapping[str, str]) -> dict[str, str]:
    """Returns the secrets among Spark settings, for configure().

    Raises ValueError for those that Spark reads only at its start.
    """
    shown = public(conf)
    secrets = {key: value for key, value in conf.items() if key not in shown}
    # A running session takes only settings of SQL and of Hadoop.
    if static := [key for key in secrets if not key.startswith((HADOOP, "spark.sql."))]:
        raise ValueError(
            f"{', '.join(sorted(static))} would show in process arguments; set it in a spark-defaults.conf"
        )
    return {key.removeprefix(HADOOP): value for key, value in secrets.items()}


def configure(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """Sets catalogs, and Hadoop's ``fs.…``, in a session that has started.

    A ``fs.…`` that the session was started with stays, for steps. Credentials that are set after the JVM's start show
    neither in process arguments nor in the Spark UI.
    """
    # This logger prints each error that Spark raises, even those that a worker provokes to check a condition.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    for name, value in settings.items():
        if spark.conf.get(HADOOP + name, None) is None:
            spark.conf.set(name, value)
    return spark


def open_lake(
    spark: SparkSession,
    secrets: Mapping[str, str],
    properties: Mapping[str, str],
    tables: Callable[[], Mapping[str, str]],
) -> None:
    """Gives a session ``lake``: a REST catalog itself, else an in-memory catalog of these tables as they are now.

    A REST catalog may vend credentials with each table, so Spark opens it itself. secrets: start()'s. properties: the
    catalog's. tables: returns the metadata files by identifier; called only if they are needed.
    """
    live = catalog_type(properties)[0] == "rest"
    configure(spark, {**secrets, **spark_catalogs(properties, live=live), **hadoop_s3(properties)})
    if not live:  # Spark opens no other catalog: it reads the tables' present metadata files
        register_inputs(spark, tables())


def end_jvm() -> None:
    """Ends this process's JVM, and waits, at most ENDING_SECONDS, until it has removed its scratch folders.

    The launcher then kills the rest of a local worker's process group.
    """
    gateway = SparkContext._gateway
    if gateway is not None and gateway.proc is not None:
        # A thread of py4j's tells the JVM which objects Python has freed. If the JVM ends meanwhile, it prints a
        # traceback though the work went well.
        gateway._gateway_client.is_connected = False
        with suppress(TimeoutExpired, OSError):
            gateway.proc.stdin.close()
            gateway.proc.wait(ENDING_SECONDS)


def jvm_exit() -> int | None:
    """Returns the JVM's return code, below 0 for a signal; None while it runs, or if this process started none."""
    gateway = SparkContext._gateway
    if gateway is None or gateway.proc is None:
        return None
    with suppress(TimeoutExpired):
        status: int = gateway.proc.wait(EXIT_SECONDS)
        return status
    return None


class ForkError(RuntimeError):
    """The fork does not hold exactly one commit."""


def register(spark: SparkSession, fork_base: str, token: str, chunk: int) -> str:
    """Registers the fork base as a table of this session only. Returns the table's name in Spark."""
    # The time makes the name new for another attempt at the chunk in this session.
    name = f"fork_{token.replace('-', '_').replace('.', '_')}_{chunk}_{time.time_ns()}"
    spark.sql(f"CALL stage.system.register_table(table => 'forks.{name}', metadata_file => {literal(fork_base)})")
    return f"stage.forks.{name}"


def committed_metadata(spark: SparkSession, fork: str, fork_base: str, table: str) -> str:
    """Returns the metadata file of the fork's one commit: the metadata log's only entry besides the base.

    Timestamps can't tell which of the two is newer: clocks differ. Raises ForkError if there is not one commit.
    """
    entries: list[str] = [row.file for row in spark.sql(f"SELECT file FROM {fork}.metadata_log_entries").collect()]
    written = [file for file in entries if file != fork_base]
    if len(written) != 1:
        raise ForkError(
            f"table {table}: the fork of {fork_base} should have one commit, but has {len(written)}: {written}"
        )
    return written[0]


def literal(text: str) -> str:
    """Returns text as an SQL literal. Before Spark 4, Iceberg itself parses CALL, and accepts no parameters."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


# https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html; the SDKs have the message, not always the code.
EXPIRED = re.compile(r"ExpiredToken|provided token has expired|security token included in the request is expired")
# An answer to HEAD has no message, and servers other than AWS's have their own.
REFUSED = re.compile(
    r"Service: S3, Status Code: 40[03]|AWS Error (?:ACCESS_DENIED|INVALID_ACCESS_KEY_ID|UNKNOWN \(HTTP status 40[03]\))"
)


class TableCredentials:
    """The credentials for one table's files, fetched when this is made. Raises as table_io().

    catalog: the catalog's PyIceberg properties. properties: the FileIO's, as the catalog first gave them. *Vended* keys
    are those that a catalog gives with a table; they expire.
    """

    def __init__(self, catalog: Mapping[str, str], identifier: str) -> None:
        self.catalog, self._identifier = catalog, identifier
        self.properties = self._fetched()
        self._given_at = time.monotonic()  # not before: the catalog may have been away for minutes

    @property
    def vended(self) -> bool:
        """Whether the catalog gave other keys than those in its configuration."""
        return any(self.properties.get(f"s3.{key}") != self.catalog.get(f"s3.{key}") for key in KEYS)

    def renewed(self) -> Mapping[str, Any]:
        """Returns the properties that the catalog gives now, or the first ones if it is out of reach."""
        if not self.vended:
            return self.properties
        try:
            return self._fetched()
        except OSError:  # requests' errors too
            return self.properties

    def _fetched(self) -> Mapping[str, Any]:
        return with_retries(lambda: table_io(self.catalog, self._identifier))

    @contextmanager
    def expiry_explained(self) -> Iterator[None]:
        """Raises CredentialsExpired in place of S3's error for expired keys."""
        try:
            yield
        except Exception as error:
            if not self._expired(str(error)):
                raise
            worked = time.monotonic() - self._given_at
            raise CredentialsExpired(
                f"the keys for S3 that the catalog vended with {self._identifier} expired before its worker was done, "
                f"{worked / 60:.0f} minutes after the worker got them ({root_message(str(error))}): give a worker "
                "fewer partitions (partitions_per_worker), extend the lifetime of the catalog's keys, or have the "
                "catalog name the endpoint that renews them (client.refresh-credentials-endpoint)",
                transient=self._would_last(worked),
            ) from error

    def _expired(self, message: str) -> bool:
        left = _seconds_left(self.properties)
        # 400 and 403 have many causes; they count if the keys' time is over. With a refresh endpoint, Java has renewed
        # its keys: a refusal has another cause.
        over = left is not None and left <= 0 and REFRESH_ENDPOINT not in self.properties
        return self.vended and bool(EXPIRED.search(message) or (over and REFUSED.search(message)))

    def _would_last(self, seconds: float) -> bool:
        """Whether keys vended now would live that long. Some catalogs vend one set of keys to several clients."""
        try:
            left = _seconds_left(self.renewed())
        except Exception:  # the expired keys are the failure to report
            return False
        return left is not None and left > seconds


def _seconds_left(files: Mapping[str, Any]) -> float | None:
    """Returns how long a FileIO's keys still live; None if the catalog does not say."""
    expires_at = str(files.get(EXPIRES_AT, ""))
    return int(expires_at) / 1000 - time.time() if expires_at.isdecimal() else None


def register_inputs(spark: SparkSession, tables: Mapping[str, str]) -> None:
    """Registers tables in the in-memory catalog ``lake``. tables: identifier → metadata file."""
    for table, metadata in tables.items():
        called = f"table => {literal(table)}, metadata_file => {literal(metadata)}"
        spark.sql(f"CALL {LAKE}.system.register_table({called})")
