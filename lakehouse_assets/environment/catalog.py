"""Opens the one catalog, ``lake``, by PyIceberg's own configuration with an embedded default, and checks it."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urljoin

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, wait_random

from lakehouse_assets.environment.aws import is_transient, region_problems
from lakehouse_assets.environment.catalog_in_spark import (
    ADVICE,
    LAKE,
    PYTHON_ONLY,
    REFRESH_ENDPOINT,
    REST,
    REWORDED,
    S3,
    catalog_type,
    partial_loading,
    refuse_signing,
    translate,
    variable,
)
from lakehouse_assets.environment.computes import find_compute
from lakehouse_assets.environment.databases import AWAY, CATALOG, make_database, tell_connections_apart
from lakehouse_assets.environment.env_reader import BUCKET, SettingsError, is_secret, public, redacted
from lakehouse_assets.environment.local_paths import folder_of, location_of, path_of, refuse_moved
from lakehouse_assets.environment.output import remember
from lakehouse_assets.environment.settings import Chosen, Settings, chosen_by, unknown_names

if TYPE_CHECKING:
    from uuid import UUID

    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata


T = TypeVar("T")
logger = logging.getLogger(__name__)
# How long a commit waits for a catalog file that another process has locked before it counts as conflicting: not long,
# as SQLite waits in C, where *Terminate* can't interrupt it.
SQLITE_BUSY_SECONDS = 5
RETRY_SECONDS = 300
"""The time for which a catalog that is away is waited for: a database that fails over is back in a minute or two."""
POSTGRESQL = "postgresql://"
CONFIGURATION = ".pyiceberg.yaml"
# https://www.postgresql.org/docs/current/errcodes-appendix.html
CREATED_MEANWHILE = ("42P07", "42710", "23505")  # duplicate_table, duplicate_object (its row type), unique_violation
RUN_PROPERTIES = "lakehouse.run."
"""The prefix of the table properties that record a run's commit."""
# The user's configuration wins.
FILE_IO = {
    "py-io-impl": "lakehouse_assets.environment.file_io.ClosingFileIO",
    "s3.retry-strategy-impl": "lakehouse_assets.environment.file_io.LongS3Retries",
}


def catalog_properties(settings: Settings, received: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns PyIceberg's properties of ``lake``, as they are configured, else those of the embedded default.

    They are configured by ``PYICEBERG_CATALOG__LAKE__*`` and ``.pyiceberg.yaml``; the embedded default is SQLite and a
    folder under LAKEHOUSE_HOME.
    received: what a worker was sent of the code location's properties (no secrets); its own environment wins.
    Raises SettingsError where the configuration can't be read, and where a worker lacks the URI, which was not sent.
    """
    configured, unreadable = configuration()
    if unreadable:
        raise SettingsError(unreadable)
    remember(configured)
    properties = {**(received or {}), **configured}
    if received and "uri" not in properties and properties.get("type", "").lower() != "glue":
        raise SettingsError(
            f"{variable('uri')} is missing: a URI with a password in it is not sent to workers, so a worker's own "
            "environment must have it"
        )
    return with_defaults(properties, settings)


def worker_properties(settings: Settings) -> dict[str, str]:
    """Returns the properties of ``lake`` that workers are sent: no secrets, and of a SQL catalog no address.

    Workers open no catalog but one that vends credentials by table, which a SQL catalog does not. Raises SettingsError
    as catalog_properties().
    """
    properties = catalog_properties(settings)
    kind, _ = catalog_type(properties)
    return public(properties | ({"type": kind, "uri": "sqlite:///:memory:"} if kind == "sql" else {}))


def with_defaults(properties: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """Completes PyIceberg's properties with defaults: those of the embedded catalog where there are none."""
    found = dict(properties)
    if not found:
        found = {"type": "sql", "uri": f"sqlite:///{settings.home / CATALOG}?timeout={SQLITE_BUSY_SECONDS}"}
    elif (uri := found.get("uri", "")).startswith(POSTGRESQL) and find_spec("psycopg") is None:
        # SQLAlchemy 2.1 uses psycopg where the URL names no driver; PyIceberg and Dagster come with psycopg2.
        found["uri"] = f"postgresql+psycopg2://{uri.removeprefix(POSTGRESQL)}"
    # A SQL catalog leaves the warehouse to its clients.
    warehouse = (
        {"warehouse": location_of(folder_of(settings.home, "warehouse"))} if catalog_type(found)[0] == "sql" else {}
    )
    return {**FILE_IO, **warehouse, **found}


def configuration() -> tuple[dict[str, str], str | None]:
    """Reads PyIceberg's configuration of ``lake``, nested names joined with dots; and why it can't be read, or None."""
    in_environment = any(name.upper().startswith("PYICEBERG_") for name in os.environ)
    if not in_environment and not any((place / CONFIGURATION).is_file() for place in (Path.home(), Path.cwd())):
        return {}, None  # and definitions do not import the reader of YAML, which takes 70 ms
    from pyiceberg.utils.config import PYICEBERG_HOME, Config
    from strictyaml import YAMLError

    def flat(values: Mapping[str, Any], prefix: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, value in values.items():
            found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: str(value)}
        return found

    try:
        return flat(Config().get_catalog_config(LAKE) or {}, ""), None
    except (YAMLError, OSError, ValueError, AttributeError) as error:  # the error's message may quote a password
        places = (Path(os.environ.get(PYICEBERG_HOME) or "~").expanduser(), Path.home(), Path.cwd())
        file = next((path for place in places if (path := place / CONFIGURATION).is_file()), None)
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        return {}, (
            f"{file or 'PYICEBERG_CATALOG…'}{f', line {line + 1},' if line is not None else ''} is not what PyIceberg "
            f"reads: mappings, of block style, from catalog to {LAKE} to properties such as uri: https://…"
        )


def load_lake(settings: Settings) -> Catalog:
    """Opens the catalog ``lake``.

    Raises SettingsError when LAKEHOUSE_HOME can't be created or was moved, and when the configuration can't be read or
    has no catalog, one of an unknown type, or one that would load tables in part.
    """
    from pyiceberg.catalog import load_catalog

    properties = catalog_properties(settings)
    try:
        for folder in (*data_folders(settings, properties), settings.home):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"LAKEHOUSE_HOME={settings.home}: {error.strerror}") from error
    kind, problem = catalog_type(properties)
    # PyIceberg's own message would quote the properties, passwords included.
    if problem:
        raise SettingsError(problem)
    if kind == "sql":
        tell_connections_apart()
        if properties["uri"].startswith(f"sqlite:///{settings.home / CATALOG}"):
            make_database(settings.home / CATALOG)
    catalog = _open_sql(properties) if kind == "sql" else load_catalog(LAKE, **properties)
    if kind == "rest" and (problems := partial_loading(catalog.properties)):
        raise SettingsError(*problems)
    if kind == "sql":
        _roll_back_refused_commits(catalog)
        refuse_moved(catalog)
    if kind == "glue":
        _keep_run_properties_out(catalog)
    return catalog


def _open_sql(properties: Mapping[str, str]) -> Catalog:
    """Opens a SQL catalog, whose two tables PyIceberg creates if they are not there.

    If several create them at once, as in an empty home, all but one fail at each table; then it is there.
    """
    from pyiceberg.catalog import load_catalog
    from sqlalchemy.exc import DBAPIError

    for _ in range(2):
        with suppress(DBAPIError):
            return load_catalog(LAKE, **properties)
    return load_catalog(LAKE, **properties)


def data_folders(settings: Settings, properties: Mapping[str, str]) -> list[Path]:
    """Returns the folders in the home that hold tables' and staged files; they are made before all else in it.

    So a process that starts later finds them there, and takes none of an older home (local_paths.folder_of).
    properties: PyIceberg's, of ``lake``.
    """
    paths = map(path_of, (settings.staging, properties.get("warehouse", "")))
    return [path for path in paths if path and path.is_relative_to(settings.home)]


def find_table(catalog: Catalog, identifier: str) -> Table | None:
    """Loads a table; None where there is none. Raises what catalogs raise."""
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    try:
        return catalog.load_table(identifier)
    except (NoSuchTableError, NoSuchNamespaceError):
        return None


def why_gone(found: TableMetadata | None, uuid: UUID | str, snapshot_id: int | None) -> str:
    """Says in half a sentence, of which the table is the subject, why a snapshot can't be read any more; else "".

    found: the table's metadata now; None where it is not in the catalog. uuid: of the table that had the snapshot.
    snapshot_id: None for a table without one.
    """
    if found is None:
        return "is no longer in the catalog"
    if str(found.table_uuid) != str(uuid):
        return "was created again"
    if snapshot_id is not None and found.snapshot_by_id(snapshot_id) is None:
        return f"has expired the snapshot {snapshot_id}"
    return ""


def _roll_back_refused_commits(catalog: Catalog) -> None:
    """Rolls back every connection that goes back into the pool.

    A COMMIT that SQLite refuses, because a reader holds the lock, leaves its transaction open, while SQLAlchemy counts
    it as ended. The next user of the connection would see the commit, and a publish would report what nobody else sees.
    """
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy import event

    assert isinstance(catalog, SqlCatalog)
    event.listen(catalog.engine, "checkin", lambda connection, _: connection and connection.rollback())


def _keep_run_properties_out(catalog: Catalog) -> None:
    """Leaves a table's properties about runs out of Glue's parameters; they are read from the table's metadata only.

    PyIceberg copies all properties there and removes none, so an hourly table would gather 8,760 a year
    (https://github.com/apache/iceberg-python/issues/3977).
    """
    from pyiceberg.catalog.glue import GlueCatalog

    assert isinstance(catalog, GlueCatalog)

    def without_runs(params: dict[str, Any], **_: Any) -> None:
        given = params["TableInput"].get("Parameters", {})
        params["TableInput"]["Parameters"] = {n: v for n, v in given.items() if not n.startswith(RUN_PROPERTIES)}

    catalog.glue.meta.events.register("provide-client-params.glue.UpdateTable", without_runs)


def table_io(properties: Mapping[str, str], identifier: str) -> dict[str, Any]:
    """Returns the properties of the FileIO for a table's files.

    They are the catalog's, and the credentials that a REST catalog vends with the table. These expire; where the
    catalog renews them, REFRESH_ENDPOINT is the URL for that.

    properties: PyIceberg's. Raises SettingsError where the catalog signs requests instead.
    """
    from pyiceberg.catalog import load_catalog

    if catalog_type(properties)[0] != "rest":
        return dict(properties)
    catalog = load_catalog(LAKE, **properties)
    table = catalog.load_table(identifier)
    found = dict(table.io.properties)
    remember(found)
    refuse_signing(found)
    endpoint = found.pop(REFRESH_ENDPOINT, None)
    # PyIceberg mixes in the table's own properties. An endpoint from there is not used: anybody who may set
    # properties could have the catalog's credential sent to himself.
    if endpoint and endpoint != table.properties.get(REFRESH_ENDPOINT):
        found[REFRESH_ENDPOINT] = urljoin(f"{catalog.properties['uri'].rstrip('/')}/", endpoint.lstrip("/"))
    return found


class CatalogUnavailable(OSError):
    """The catalog can't be used; the message quotes the database's or the service's."""


def with_retries(call: Callable[[], T]) -> T:
    """Repeats a call while the catalog is locked, busy or out of reach, for RETRY_SECONDS at most.

    The call must be one that may be done twice: opening, loading, creating. Raises CatalogUnavailable.
    """
    retrying = Retrying(
        retry=retry_if_exception(_is_transient),
        wait=wait_random(0, 1),
        stop=stop_after_delay(RETRY_SECONDS),
        before_sleep=_tell_once,
        reraise=True,
    )
    try:
        return retrying(call)
    except _catalog_errors() as error:
        reason = getattr(error, "orig", None) or f"{type(error).__name__}: {error}"
        raise CatalogUnavailable(f"the catalog {LAKE!r} can't be used: {reason}") from error


def _tell_once(state: RetryCallState) -> None:
    if state.attempt_number == 3:  # others' locks of a moment are not worth a line
        logger.warning("the catalog %r is out of reach or locked; it is waited for, %d s at most", LAKE, RETRY_SECONDS)


def _catalog_errors() -> tuple[type[Exception], ...]:
    """Returns the errors that databases, REST catalogs and Glue raise when they refuse, fail or can't be reached."""
    from pyiceberg.exceptions import RESTError
    from requests.exceptions import RequestException
    from sqlalchemy.exc import DBAPIError

    if "botocore" not in sys.modules:  # PyIceberg imports it with Glue
        return DBAPIError, RESTError, RequestException
    from botocore.exceptions import BotoCoreError, ClientError

    return DBAPIError, RESTError, RequestException, BotoCoreError, ClientError


def _is_transient(error: BaseException) -> bool:
    from pyiceberg.exceptions import ServiceUnavailableError, TooManyRequestsError
    from requests.exceptions import ConnectionError as Unreachable
    from requests.exceptions import SSLError, Timeout

    if isinstance(error, (ServiceUnavailableError, TooManyRequestsError, Unreachable, Timeout)):
        return not isinstance(error, SSLError)
    if "botocore" in sys.modules and isinstance(error, Exception) and is_transient(error):
        return True
    driver_error = getattr(error, "orig", None)
    locked = getattr(driver_error, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
    # Of several processes that open a new database at once, all but one find that its tables exist already.
    state = getattr(driver_error, "pgcode", None) or ""
    return (
        locked
        or state in CREATED_MEANWHILE
        or state.startswith(AWAY)
        or bool(getattr(error, "connection_invalidated", False))
    )


# With a SQL catalog or Glue a warehouse is a place on S3; with a REST catalog it is a name.
WAREHOUSE = re.compile(rf"s3{BUCKET}|arn:aws:s3.*")
# What PyIceberg reads as a property of some catalog; it ignores any other name silently.
PROPERTY = re.compile("PYICEBERG_CATALOG__[^_].*?__.+")
PROPERTIES = sorted(PYTHON_ONLY | S3 | REST | frozenset().union(*REWORDED.values(), ADVICE))
VARIABLES = [variable(name).partition(" ")[0] for name in PROPERTIES]
FILES = ("file:", "/")


def catalog_problems(settings: Settings, computes: Chosen) -> list[str]:
    """Returns a sentence for each problem of the catalog, of remote workers' places, and of the names of variables.

    Looked at are the catalog's configuration, secrets in the names of places, the places and the cluster's file that
    remote workers need, and AWS's region where they or the queue need it.

    computes: all that workers may run on: LAKEHOUSE_COMPUTE, and what tables choose for themselves.
    """
    configured, unreadable = configuration()
    properties = {} if unreadable else with_defaults(configured, settings)
    problems = [unreadable] if unreadable else translate(properties)[1] if configured else []
    for name, place in (
        (variable("warehouse"), properties.get("warehouse", "")),
        ("LAKEHOUSE_LANDING", settings.landing),
        ("LAKEHOUSE_STAGING", settings.staging),
    ):
        if is_secret("", place):
            problems.append(f"{name} has a secret in it, which files and logs would show; set it by other settings")
    if remote := [compute for compute in computes if find_compute(compute).remote]:
        on = [c if c == settings.compute else f"{c} (chosen by {chosen_by(c, computes)})" for c in remote]
        consequence = f": workers on {', '.join(on)} can't reach it"
        embedded = not configured and not unreadable
        problems += [f"{problem}{consequence}" for problem in _unreachable(settings, properties, embedded)]
    own = [problem for compute in settings.computes.values() for problem in compute.problems()]
    own += region_problems() if settings.queue else []
    return problems + list(dict.fromkeys(own)) + unknown_names(os.environ) + unknown_properties(os.environ)


def unknown_properties(env: Mapping[str, str]) -> list[str]:
    """Returns a problem for each variable that looks like a catalog's property but is none, with the most similar one.

    With a misspelt URI ``lake`` would be the embedded catalog. PyIceberg's own settings and other catalogs' are fine.
    """
    given = {name: name.upper() for name in sorted(env) if name.upper().startswith("PYICEBERG_")}
    unknown = [name for name, upper in given.items() if not PROPERTY.fullmatch(upper) and _of_a_catalog(upper)]
    nearest = {name: get_close_matches(given[name], VARIABLES, 1, cutoff=0)[0] for name in unknown}
    return [f"{name} is unknown; did you mean {near}?" for name, near in nearest.items()]


def _of_a_catalog(name: str) -> bool:
    """Says whether the variable, here in capitals, was probably meant as a catalog's property."""
    first = name.removeprefix("PYICEBERG_").lstrip("_").partition("_")[0]
    return first == LAKE.upper() or bool(get_close_matches(first, ["CATALOG"], cutoff=0.8))


def _unreachable(settings: Settings, properties: Mapping[str, str], embedded: bool) -> list[str]:
    """Returns a problem for each place that workers on other machines can't reach.

    The catalog, the warehouse and the drop zone must not be on this machine's file system, and the warehouse of a SQL
    catalog or of Glue must be on S3.
    The staging prefix is checked by read_settings. A loopback address is accepted: it may be a tunnel.
    """
    problems = []
    if embedded:
        problems.append(f"{variable('uri')} is not set, and the embedded catalog is a file of this machine")
    elif properties.get("uri", "").startswith("sqlite"):
        problems.append(f"{variable('uri')} is a SQLite file of this machine")
    warehouse = properties.get("warehouse", "")
    setting = f"{variable('warehouse')} is {redacted(warehouse)}"
    if warehouse.startswith(FILES):
        problems.append(f"{setting}, a folder of this machine")
    elif warehouse and catalog_type(properties)[0] in ("sql", "glue") and not WAREHOUSE.fullmatch(warehouse):
        problems.append(f"{setting}, not of the form s3://bucket/prefix")
    if settings.landing.startswith(FILES):
        problems.append(f"LAKEHOUSE_LANDING is {redacted(settings.landing)}, a folder of this machine")
    return problems
