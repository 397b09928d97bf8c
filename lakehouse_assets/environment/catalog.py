"""Opens and checks the catalog ``lake``, by default an embedded one."""

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
# How long a commit waits for a locked catalog file before it counts as conflicting. Short, as *Terminate* can't
# interrupt SQLite's wait, which is in C.
SQLITE_BUSY_SECONDS = 5
RETRY_SECONDS = 300
"""How long to wait for the catalog: a database fails over in a minute or two."""
POSTGRESQL = "postgresql://"
CONFIGURATION = ".pyiceberg.yaml"
# https://www.postgresql.org/docs/current/errcodes-appendix.html
CREATED_MEANWHILE = ("42P07", "42710", "23505")  # duplicate_table, duplicate_object (its row type), unique_violation
RUN_PROPERTIES = "lakehouse.run."
"""The prefix of properties that record a run's commit."""
# PyIceberg's properties for each catalog, unless the user's configuration has others.
FILE_IO = {
    "py-io-impl": "lakehouse_assets.environment.file_io.ClosingFileIO",
    "s3.retry-strategy-impl": "lakehouse_assets.environment.file_io.LongS3Retries",
}


def catalog_properties(settings: Settings, received: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns PyIceberg's properties of ``lake``: those configured, else those of the embedded default.

    Configuration: ``PYICEBERG_CATALOG__LAKE__*`` and ``.pyiceberg.yaml``. Default: SQLite and a folder under
    LAKEHOUSE_HOME. received: in a worker, what the code location sent (worker_properties()); the worker's own
    configuration wins. Raises SettingsError if the configuration is unreadable, or a worker has no URI.
    """
    configured, unreadable = configuration()
    if unreadable:
        raise SettingsError(unreadable)
    remember(configured)
    properties = {**(received or {}), **configured}
    # A catalog in Glue has no URI.
    if received and "uri" not in properties and properties.get("type", "").lower() != "glue":
        raise SettingsError(
            f"{variable('uri')} is missing: a URI that contains a password is not sent to workers, so set it in the "
            "worker's own environment"
        )
    return with_defaults(properties, settings)


def worker_properties(settings: Settings) -> dict[str, str]:
    """Returns the properties that workers are sent: no secrets, and no address of a SQL catalog.

    Workers open only catalogs that vend credentials, which a SQL catalog does not. Raises as catalog_properties().
    """
    properties = catalog_properties(settings)
    kind, _ = catalog_type(properties)
    return public(properties | ({"type": kind, "uri": "sqlite:///:memory:"} if kind == "sql" else {}))


def with_defaults(properties: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """Completes PyIceberg's properties; without any, returns the embedded catalog's."""
    found = dict(properties)
    if not found:
        found = {"type": "sql", "uri": f"sqlite:///{settings.home / CATALOG}?timeout={SQLITE_BUSY_SECONDS}"}
    elif (uri := found.get("uri", "")).startswith(POSTGRESQL) and find_spec("psycopg") is None:
        # If the URL names no driver, SQLAlchemy 2.1 uses psycopg; PyIceberg and Dagster come with psycopg2.
        found["uri"] = f"postgresql+psycopg2://{uri.removeprefix(POSTGRESQL)}"
    # A SQL catalog does not know its warehouse: its clients do.
    warehouse = (
        {"warehouse": location_of(folder_of(settings.home, "warehouse"))} if catalog_type(found)[0] == "sql" else {}
    )
    return {**FILE_IO, **warehouse, **found}


def configuration() -> tuple[dict[str, str], str | None]:
    """Reads PyIceberg's configuration of ``lake``; and why it is unreadable, or None."""
    in_environment = any(name.upper().startswith("PYICEBERG_") for name in os.environ)
    if not in_environment and not any((place / CONFIGURATION).is_file() for place in (Path.home(), Path.cwd())):
        return {}, None  # importing the YAML reader takes 70 ms
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
        # YAML's errors tell the line, counted from 0.
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        return {}, (
            f"{file or 'PYICEBERG_CATALOG…'}{f', line {line + 1},' if line is not None else ''} can't be read by "
            f"PyIceberg: expected block-style mappings from catalog to {LAKE} to properties such as uri: https://…"
        )


def load_lake(settings: Settings) -> Catalog:
    """Opens the catalog ``lake``.

    Raises SettingsError if LAKEHOUSE_HOME can't be created or was moved, if the configuration is unreadable, has no
    catalog or an unknown type, or would load tables in part.
    """
    from pyiceberg.catalog import load_catalog

    properties = catalog_properties(settings)
    try:
        for folder in (*data_folders(settings, properties), settings.home):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"LAKEHOUSE_HOME={settings.home}: {error.strerror}") from error
    kind, problem = catalog_type(properties)
    # Before PyIceberg opens the catalog: its message would quote the properties, passwords included.
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
    """Opens a SQL catalog.

    If several processes create its two tables at once, all but one fail, once for each table: the third try succeeds.
    """
    from pyiceberg.catalog import load_catalog
    from sqlalchemy.exc import DBAPIError

    for _ in range(2):
        with suppress(DBAPIError):
            return load_catalog(LAKE, **properties)
    return load_catalog(LAKE, **properties)


def data_folders(settings: Settings, properties: Mapping[str, str]) -> list[Path]:
    """Returns the home's own folders for tables' and staged files.

    They are made first: in a used home without them, folder_of() would look for those of an older version.
    """
    paths = map(path_of, (settings.staging, properties.get("warehouse", "")))
    return [path for path in paths if path and path.is_relative_to(settings.home)]


def find_table(catalog: Catalog, identifier: str) -> Table | None:
    """Loads a table, if there is one. Raises what catalogs raise."""
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    try:
        return catalog.load_table(identifier)
    except (NoSuchTableError, NoSuchNamespaceError):
        return None


def why_gone(found: TableMetadata | None, uuid: UUID | str, snapshot_id: int | None) -> str:
    """Says, as a predicate about the table, why a snapshot is gone; "" if it is there.

    found: the current metadata, if any. uuid: of the table that had the snapshot.
    """
    if found is None:
        return "is no longer in the catalog"
    if str(found.table_uuid) != str(uuid):
        return "was created again"
    if snapshot_id is not None and found.snapshot_by_id(snapshot_id) is None:
        return f"has expired the snapshot {snapshot_id}"
    return ""


def _roll_back_refused_commits(catalog: Catalog) -> None:
    """Rolls back every connection that returns to the pool.

    If a reader holds the lock, SQLite refuses a COMMIT but leaves its transaction open, while SQLAlchemy counts it as
    ended. The connection's next user would see the refused commit, and a publish would report what nobody else sees.
    """
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy import event

    assert isinstance(catalog, SqlCatalog)
    event.listen(catalog.engine, "checkin", lambda connection, _: connection and connection.rollback())


def _keep_run_properties_out(catalog: Catalog) -> None:
    """Keeps properties about runs out of Glue's parameters.

    PyIceberg copies all properties there and removes none: an hourly table would gather 8,760 a year
    (https://github.com/apache/iceberg-python/issues/3977).
    """
    from pyiceberg.catalog.glue import GlueCatalog

    assert isinstance(catalog, GlueCatalog)

    def without_runs(params: dict[str, Any], **_: Any) -> None:
        given = params["TableInput"].get("Parameters", {})
        params["TableInput"]["Parameters"] = {n: v for n, v in given.items() if not n.startswith(RUN_PROPERTIES)}

    catalog.glue.meta.events.register("provide-client-params.glue.UpdateTable", without_runs)


def table_io(properties: Mapping[str, str], identifier: str) -> dict[str, Any]:
    """Returns a table's FileIO properties, with the credentials that a REST catalog vends.

    These expire; REFRESH_ENDPOINT is the URL to renew them, if any. Raises SettingsError if the catalog signs requests
    instead.
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
    # PyIceberg mixes in the table's properties. An endpoint from there would let anybody who may set properties receive
    # the catalog's credential.
    if endpoint and endpoint != table.properties.get(REFRESH_ENDPOINT):
        found[REFRESH_ENDPOINT] = urljoin(f"{catalog.properties['uri'].rstrip('/')}/", endpoint.lstrip("/"))
    return found


class CatalogUnavailable(OSError):
    """The catalog can't be used."""


def with_retries(call: Callable[[], T]) -> T:
    """Repeats a call while the catalog is locked, busy or unreachable, RETRY_SECONDS at most.

    Only for repeatable calls: opening, loading, creating. Raises CatalogUnavailable.
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
        # SQLAlchemy's own message would add the statement to the driver's.
        reason = getattr(error, "orig", None) or f"{type(error).__name__}: {error}"
        raise CatalogUnavailable(f"the catalog {LAKE!r} can't be used: {reason}") from error


def _tell_once(state: RetryCallState) -> None:
    if state.attempt_number == 3:  # short locks are not worth a line
        logger.warning(
            "the catalog %r can't be reached or is locked; waiting for it, at most %d s", LAKE, RETRY_SECONDS
        )


def _catalog_errors() -> tuple[type[Exception], ...]:
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
    # If several processes open a new database at once, all but one fail as its tables exist already.
    state = getattr(driver_error, "pgcode", None) or ""
    return (
        locked
        or state in CREATED_MEANWHILE
        or state.startswith(AWAY)
        or bool(getattr(error, "connection_invalidated", False))
    )


# For a SQL catalog or Glue; a REST catalog's warehouse is a name.
WAREHOUSE = re.compile(rf"s3{BUCKET}|arn:aws:s3.*")
# A catalog's property to PyIceberg, which silently ignores any other name.
PROPERTY = re.compile("PYICEBERG_CATALOG__[^_].*?__.+")
PROPERTIES = sorted(PYTHON_ONLY | S3 | REST | frozenset().union(*REWORDED.values(), ADVICE))
# variable() adds the name in parentheses.
VARIABLES = [variable(name).partition(" ")[0] for name in PROPERTIES]
# How a location on this machine begins.
FILES = ("file:", "/")


def catalog_problems(settings: Settings, computes: Chosen) -> list[str]:
    """Returns a sentence for each problem of the catalog, places and variables' names.

    Includes what remote workers or the queue need: reachable places, the cluster's file, AWS's region.
    """
    configured, unreadable = configuration()
    properties = {} if unreadable else with_defaults(configured, settings)
    # The embedded default needs no check.
    problems = [unreadable] if unreadable else translate(properties)[1] if configured else []
    for name, place in (
        (variable("warehouse"), properties.get("warehouse", "")),
        ("LAKEHOUSE_LANDING", settings.landing),
        ("LAKEHOUSE_STAGING", settings.staging),
    ):
        if is_secret("", place):
            problems.append(f"{name} contains a secret, which files and logs would show; set the secret separately")
    if remote := [compute for compute in computes if find_compute(compute).remote]:
        on = [c if c == settings.compute else f"{c} (chosen by {chosen_by(c, computes)})" for c in remote]
        consequence = f": workers on {', '.join(on)} can't reach it"
        embedded = not configured and not unreadable
        problems += [f"{problem}{consequence}" for problem in _unreachable(settings, properties, embedded)]
    own = [problem for compute in settings.computes.values() for problem in compute.problems()]
    own += region_problems() if settings.queue else []
    return problems + list(dict.fromkeys(own)) + unknown_names(os.environ) + unknown_properties(os.environ)


def unknown_properties(env: Mapping[str, str]) -> list[str]:
    """Returns a problem for each misspelt catalog property; other catalogs' are fine.

    PyIceberg ignores them: with a misspelt URI, ``lake`` would be the embedded catalog.
    """
    given = {name: name.upper() for name in sorted(env) if name.upper().startswith("PYICEBERG_")}
    unknown = [name for name, upper in given.items() if not PROPERTY.fullmatch(upper) and _of_a_catalog(upper)]
    # Cutoff 0: the nearest variable, however far.
    nearest = {name: get_close_matches(given[name], VARIABLES, 1, cutoff=0)[0] for name in unknown}
    return [f"{name} is unknown; did you mean {near}?" for name, near in nearest.items()]


def _of_a_catalog(name: str) -> bool:
    """Whether a variable is probably meant as a catalog's property, not as another setting of PyIceberg's."""
    first = name.removeprefix("PYICEBERG_").lstrip("_").partition("_")[0]
    return first == LAKE.upper() or bool(get_close_matches(first, ["CATALOG"], cutoff=0.8))


def _unreachable(settings: Settings, properties: Mapping[str, str], embedded: bool) -> list[str]:
    """Returns why other machines can't reach the catalog or a place, in clauses.

    A loopback address is no problem: it may be a tunnel. embedded: whether nobody configured a catalog.
    """
    problems = []
    if embedded:
        problems.append(f"{variable('uri')} is not set, and the embedded catalog is a file on this machine")
    elif properties.get("uri", "").startswith("sqlite"):
        problems.append(f"{variable('uri')} is a SQLite file on this machine")
    warehouse = properties.get("warehouse", "")
    setting = f"{variable('warehouse')} is {redacted(warehouse)}"
    if warehouse.startswith(FILES):
        problems.append(f"{setting}, a folder on this machine")
    elif warehouse and catalog_type(properties)[0] in ("sql", "glue") and not WAREHOUSE.fullmatch(warehouse):
        problems.append(f"{setting}, not of the form s3://bucket/prefix")
    if settings.landing.startswith(FILES):
        problems.append(f"LAKEHOUSE_LANDING is {redacted(settings.landing)}, a folder on this machine")
    return problems
