"""The worker's Spark session: its settings, its catalogs, the keys that it may use."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from subprocess import TimeoutExpired
from typing import Any

from pyiceberg.catalog import load_catalog
from pyspark import SparkConf, SparkContext
from pyspark.errors import AnalysisException, PySparkRuntimeError
from pyspark.sql import SparkSession

from lakehouse_assets.environment.catalog import table_io, with_retries
from lakehouse_assets.environment.catalog_in_spark import EXPIRES_AT, KEYS, LAKE, REFRESH_ENDPOINT
from lakehouse_assets.environment.env_reader import SettingsError, public
from lakehouse_assets.wire.work import Pin
from lakehouse_assets.worker.failure import CredentialsExpired, InputDropped, InputMoved, root_message

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


# https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html; the SDKs have the message, not always the code.
EXPIRED = re.compile(r"ExpiredToken|provided token has expired|security token included in the request is expired")
# An answer to HEAD has no words, and other servers than AWS's have their own.
REFUSED = re.compile(
    r"Service: S3, Status Code: 40[03]|AWS Error (?:ACCESS_DENIED|INVALID_ACCESS_KEY_ID|UNKNOWN \(HTTP status 40[03]\))"
)


class TableCredentials:
    """The credentials for one table's files, fetched from the catalog at once. Raises as table_io() does.

    catalog: PyIceberg's properties of the catalog. properties: those of a FileIO for the table's files, as the catalog
    first gave them.
    """

    def __init__(self, catalog: Mapping[str, str], identifier: str) -> None:
        self.catalog, self._identifier = catalog, identifier
        self._given_at = time.monotonic()
        self.properties: Mapping[str, Any] = table_io(catalog, identifier)

    @property
    def vended(self) -> bool:
        """Whether the catalog gave other keys than those in its configuration."""
        return any(self.properties.get(f"s3.{key}") != self.catalog.get(f"s3.{key}") for key in KEYS)

    def renewed(self) -> Mapping[str, Any]:
        """Returns the properties as the catalog gives them now, or, while it is out of reach, as it gave them first."""
        if not self.vended:
            return self.properties
        try:
            return with_retries(lambda: table_io(self.catalog, self._identifier))
        except OSError:  # requests' errors as well
            return self.properties

    @contextmanager
    def expiry_explained(self) -> Iterator[None]:
        """Raises CredentialsExpired in place of the error that S3 gives to expired keys."""
        try:
            yield
        except Exception as error:
            if not self._expired(str(error)):
                raise
            worked = time.monotonic() - self._given_at
            raise CredentialsExpired(
                f"the keys for S3 that the catalog vended with {self._identifier} expired before its worker was done, "
                f"{worked / 60:.0f} minutes after the worker got them ({root_message(str(error))}): give a worker "
                "fewer partitions (partitions_per_worker), or let the catalog's keys live longer, or let the catalog "
                "name the endpoint that renews them (client.refresh-credentials-endpoint)",
                transient=self._would_last(worked),
            ) from error

    def _expired(self, message: str) -> bool:
        left = _seconds_left(self.properties)
        # Java has renewed its keys where the catalog has a refresh endpoint: a refusal has another cause.
        over = left is not None and left <= 0 and REFRESH_ENDPOINT not in self.properties
        return self.vended and bool(EXPIRED.search(message) or (over and REFUSED.search(message)))

    def _would_last(self, seconds: float) -> bool:
        """Tells whether keys vended now would live that long. Some catalogs vend one set of keys to several clients."""
        try:
            left = _seconds_left(self.renewed())
        except Exception:  # the expired keys are the failure to report
            return False
        return left is not None and left > seconds


def _seconds_left(files: Mapping[str, Any]) -> float | None:
    """Returns the seconds until the keys expire; None where the catalog does not say when."""
    expires_at = str(files.get(EXPIRES_AT, ""))
    return int(expires_at) / 1000 - time.time() if expires_at.isdecimal() else None


@contextmanager
def reading(spark: SparkSession, pins: Sequence[Pin], credentials: TableCredentials) -> Iterator[None]:
    """Has the pinned tables as ``lake`` within the context.

    Where the catalog vends credentials by table, ``lake`` is the catalog itself, as only it can give what reads these
    files: then it is compared before and after. Raises InputMoved.
    """
    if not credentials.vended:
        for table, location in {pin.table: pin.metadata for pin in pins}.items():
            called = f"table => {literal(table)}, metadata_file => {literal(location)}"
            spark.sql(f"CALL {LAKE}.system.register_table({called})")
        yield
        _refuse_dropped(spark, dict.fromkeys(pin.table for pin in pins))
        return
    _refuse_moved(pins, credentials.catalog)
    yield
    _refuse_moved(pins, credentials.catalog)


def _refuse_dropped(spark: SparkSession, tables: Iterable[str]) -> None:
    """Raises InputDropped for what a step took from its own catalog: it means to have done so to everybody's."""
    for table in tables:
        try:
            spark.table(f"{LAKE}.{table}")  # not SHOW TABLES: Derby has no LIMIT, which that needs
        except AnalysisException:
            raise InputDropped(
                f"the step dropped {table}, of which it has a copy of its own: a step only reads the lake"
            ) from None


def _refuse_moved(pins: Sequence[Pin], properties: Mapping[str, str]) -> None:
    catalog = load_catalog(LAKE, **properties) if pins else None
    for pin in pins:
        metadata = catalog.load_table(pin.table).metadata if catalog else None
        ref = metadata.refs.get(pin.ref) if metadata else None
        found = (metadata and metadata.table_uuid, ref and ref.snapshot_id)
        if found != (pin.uuid, pin.snapshot_id):
            raise InputMoved(f"{pin.table} has snapshot {found[1]} now, and the run has pinned {pin.snapshot_id}")
