"""The one catalog, ``lake``: PyIceberg's own configuration with an embedded default, opened.
Its translation for Spark is spark_catalog.py's, what of it can't work catalog_problems.py's; no table is made here."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urljoin

from resources.settings import Settings, SettingsError
from resources.spark_catalog import LAKE, catalog_type, refuse_signing, variable
from resources.spark_names import REFRESH_ENDPOINT

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

T = TypeVar("T")
# How long a catalog file locked by somebody else is waited for before the commit counts as conflicting.
# Short waits in C let *Terminate* through.
SQLITE_BUSY_SECONDS = 5
PATIENCE_SECONDS = 60
POSTGRESQL = "postgresql://"
# https://www.postgresql.org/docs/current/errcodes-appendix.html
MADE_MEANWHILE = ("42P07", "42710", "23505")  # duplicate_table, duplicate_object (its row type), unique_violation
RUN_PROPERTIES = "lakehouse.run."
"""How the names of a table's properties begin that record a run's commit (commit/tokens.py)."""
# PyIceberg's own retries are over in 2 s; a setting of the user's wins.
PATIENCE = {"s3.retry-strategy-impl": "resources.s3_patience.Patient"}


def catalog_properties(settings: Settings, told: Mapping[str, str] | None = None) -> dict[str, str]:
    """PyIceberg's properties of ``lake``: ``PYICEBERG_CATALOG__LAKE__*`` and ``.pyiceberg.yaml``, else the embedded
    default (SQLite and a folder under LAKEHOUSE_HOME).

    told: what a worker was told of its orchestrator's properties (no secrets); its own environment wins.
    Raises SettingsError where the file can't be read, and where a worker lacks what it is not told.
    """
    configured, unreadable = configuration()
    if unreadable:
        raise SettingsError(unreadable)
    properties = {**(told or {}), **configured}
    if told and "uri" not in properties and properties.get("type", "").lower() != "glue":
        raise SettingsError(
            f"{variable('uri')} is missing: a worker is not told a URI with a password in it, its own environment must "
            "have it"
        )
    return with_defaults(properties, settings)


def with_defaults(properties: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """The properties (PyIceberg's) with what is left out of them: the embedded catalog where there are none."""
    properties = dict(properties)
    if properties.get("uri", "").startswith(POSTGRESQL) and find_spec("psycopg") is None:
        # SQLAlchemy 2.1 takes psycopg where no driver is said; PyIceberg and Dagster come with psycopg2.
        properties["uri"] = f"postgresql+psycopg2://{properties['uri'].removeprefix(POSTGRESQL)}"
    if properties:
        # A SQL catalog leaves the warehouse to its clients.
        warehouse = {"warehouse": settings.warehouse} if catalog_type(properties)[0] == "sql" else {}
        return {**PATIENCE, **warehouse, **properties}
    return {
        **PATIENCE,
        "type": "sql",
        "uri": f"sqlite:///{settings.home / 'catalog.db'}?timeout={SQLITE_BUSY_SECONDS}",
        "warehouse": settings.warehouse,
    }


def configuration() -> tuple[dict[str, str], str | None]:
    """What PyIceberg's configuration says of ``lake``, with a mapping's names dotted; and why it can't be read."""
    from pyiceberg.utils.config import PYICEBERG_HOME, PYICEBERG_YML, Config
    from strictyaml import YAMLError

    def flat(values: Mapping[str, Any], prefix: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, value in values.items():
            found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: str(value)}
        return found

    try:
        return flat(Config().get_catalog_config(LAKE) or {}, ""), None
    except (YAMLError, OSError, ValueError, AttributeError) as error:  # its words may quote a password
        places = (Path(os.environ.get(PYICEBERG_HOME) or "~").expanduser(), Path.home(), Path.cwd())
        file = next((path for place in places if (path := place / PYICEBERG_YML).is_file()), None)
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        return {}, (
            f"{file or 'PYICEBERG_CATALOG…'}{f', line {line + 1},' if line is not None else ''} is not what PyIceberg "
            f"reads: mappings, of block style, from catalog to {LAKE} to properties such as uri: https://…"
        )


def load_lake(settings: Settings) -> Catalog:
    """The catalog ``lake``. Raises SettingsError when its home can't be written or the configuration tells none."""
    from pyiceberg.catalog import load_catalog

    try:
        settings.home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"LAKEHOUSE_HOME={settings.home}: {error.strerror}") from error
    properties = catalog_properties(settings)
    kind, problem = catalog_type(properties)
    # PyIceberg's words for it would quote the properties, passwords included.
    if problem:
        raise SettingsError(problem)
    catalog = load_catalog(LAKE, **properties)
    if kind == "sql":
        _end_refused_commits(catalog)
    if kind == "glue":
        _keep_runs_out(catalog)
    return catalog


def _end_refused_commits(catalog: Catalog) -> None:
    """Roll back what a connection goes back into the pool with.

    A COMMIT that SQLite refuses, locked by a reader, leaves its transaction open; SQLAlchemy takes it for ended. The
    next to use the connection would see the commit, and a publish report what nobody else will ever see.
    """
    from sqlalchemy import event

    event.listen(catalog.engine, "checkin", lambda connection, _: connection and connection.rollback())


def _keep_runs_out(catalog: Catalog) -> None:
    """Leave a table's properties about runs out of Glue's parameters: they are read from the table's metadata only.

    PyIceberg copies all properties there and takes none away again, so an hourly table would gather 8,760 a year
    (https://github.com/apache/iceberg-python/issues/3977).
    """

    def without_runs(params: dict[str, Any], **_: Any) -> None:
        given = params["TableInput"].get("Parameters", {})
        params["TableInput"]["Parameters"] = {n: v for n, v in given.items() if not n.startswith(RUN_PROPERTIES)}

    catalog.glue.meta.events.register("provide-client-params.glue.UpdateTable", without_runs)


def table_io(properties: Mapping[str, str], identifier: str) -> dict[str, Any]:
    """Properties of the FileIO for a table's files: the catalog's, and what a REST catalog gives out with the table
    (vended credentials, good as long as the catalog says; the URL of REFRESH_ENDPOINT where it gives them anew).

    properties: PyIceberg's. Raises SettingsError where the catalog gives out signatures instead.
    """
    from pyiceberg.catalog import load_catalog

    if catalog_type(properties)[0] != "rest":
        return dict(properties)
    catalog = load_catalog(LAKE, **properties)
    table = catalog.load_table(identifier)
    found = dict(table.io.properties)
    refuse_signing(found)
    endpoint = found.pop(REFRESH_ENDPOINT, None)
    # PyIceberg mixes in the table's own properties: whoever may set these would be sent the catalog's credential.
    if endpoint and endpoint != table.properties.get(REFRESH_ENDPOINT):
        found[REFRESH_ENDPOINT] = urljoin(f"{catalog.properties['uri'].rstrip('/')}/", endpoint.lstrip("/"))
    return found


class CatalogUnavailable(OSError):
    """The catalog's database can't be used; the message says what it said."""


def outlasting(call: Callable[[], T]) -> T:
    """Call until a catalog locked by somebody else, or a connection that broke, lets it through; a minute at most.

    For what may be done twice: opening, loading, creating. Raises CatalogUnavailable.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return call()
        except _complaints() as error:
            if not _passing(error) or time.monotonic() > deadline:
                said = getattr(error, "orig", None) or f"{type(error).__name__}: {error}"
                raise CatalogUnavailable(f"the catalog {LAKE!r} can't be used: {said}") from error
            time.sleep(random.uniform(0, 1))


def _complaints() -> tuple[type[Exception], ...]:
    """What a database, a REST catalog and Glue raise when they won't serve."""
    from pyiceberg.exceptions import RESTError
    from sqlalchemy.exc import DBAPIError

    if "botocore" not in sys.modules:  # PyIceberg imports it with Glue
        return DBAPIError, RESTError
    from botocore.exceptions import BotoCoreError, ClientError

    return DBAPIError, RESTError, BotoCoreError, ClientError


def _passing(error: Exception) -> bool:
    from pyiceberg.exceptions import ServiceUnavailableError, TooManyRequestsError

    said = getattr(error, "orig", None)
    locked = getattr(said, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
    # Whoever opens a new database together with others finds the tables made meanwhile.
    made = getattr(said, "pgcode", None) in MADE_MEANWHILE
    broken = getattr(error, "connection_invalidated", False)
    return locked or made or broken or isinstance(error, (ServiceUnavailableError, TooManyRequestsError))
