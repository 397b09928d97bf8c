"""The one catalog, ``lake``: PyIceberg's own configuration with an embedded default, opened; what can't work refused.
Its translation for Spark is spark_catalog.py's; no table is created or changed here."""

from __future__ import annotations

import os
import random
import re
import sys
import time
from collections.abc import Callable, Collection, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from resources.aws import region_problems
from resources.remote import BUCKET, Emr
from resources.secrets import is_secret, shown
from resources.settings import Compute, Settings, SettingsError, unknown_names
from resources.spark_catalog import LAKE, catalog_type, refuse_signing, translate, variable

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
# PyIceberg's own retries are over in 2 s; a setting of the user's wins.
PATIENCE = {"s3.retry-strategy-impl": "resources.s3_patience.Patient"}
# Of catalogs that hand it to their clients; a REST catalog has a name for it.
WAREHOUSE = re.compile(rf"s3{BUCKET}|arn:aws:s3.*")
REMOTE = (Compute.ECS, Compute.EMR, Compute.EMR_SERVERLESS)


def catalog_properties(settings: Settings, told: Mapping[str, str] | None = None) -> dict[str, str]:
    """PyIceberg's properties of ``lake``: ``PYICEBERG_CATALOG__LAKE__*`` and ``.pyiceberg.yaml``, else the embedded
    default (SQLite and a folder under LAKEHOUSE_HOME).

    told: what a worker was told of its orchestrator's properties (no secrets); its own environment wins.
    Raises SettingsError where the file can't be read, and where a worker lacks what it is not told.
    """
    configured, unreadable = _configured()
    if unreadable:
        raise SettingsError(unreadable)
    properties = {**(told or {}), **configured}
    if told and "uri" not in properties and properties.get("type", "").lower() != "glue":
        raise SettingsError(
            f"{variable('uri')} is missing: a worker is not told a URI with a password in it, its own environment must "
            "have it"
        )
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


def unreadable_file() -> str | None:
    """Why PyIceberg can't take its configuration file; None when it can."""
    return _configured()[1]


def _configured() -> tuple[dict[str, str], str | None]:
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


def catalog_problems(settings: Settings, computes: Collection[Compute]) -> list[str]:
    """What is wrong with the catalog's configuration, and with the names in the environment, a sentence each, with its
    variables' names.

    computes: all that workers may run on (LAKEHOUSE_COMPUTE, and what tables choose for themselves).
    """
    configured, unreadable = _configured()
    properties = {} if unreadable else catalog_properties(settings)
    problems = [unreadable] if unreadable else translate(properties)[1] if configured else []
    for name, place in (
        (variable("warehouse"), properties.get("warehouse", "")),
        ("LAKEHOUSE_LANDING", settings.landing),
        ("LAKEHOUSE_STAGING", settings.staging),
        ("LAKEHOUSE_CODE", shipping.code if (shipping := settings.emr or settings.emr_serverless) else ""),
    ):
        if is_secret("", place):
            problems.append(f"{name} has a secret in it, which files and logs would show; give it by other settings")
    return problems + remote_problems(settings, computes) + unknown_names(os.environ)


def remote_problems(settings: Settings, computes: Collection[Compute]) -> list[str]:
    """What workers elsewhere can't reach: a catalog, a warehouse and a drop zone that are files of this machine; and
    whether they can be asked for, in some region, on a cluster of their own.

    The staging prefix is read_settings' to judge. A loopback address passes: it may be a tunnel.
    """
    remote = [compute for compute in REMOTE if compute in computes]
    if not remote:
        return []
    configured, unreadable = _configured()
    properties = {} if unreadable else catalog_properties(settings)
    elsewhere = f"workers on {', '.join(remote)} can't reach it"
    problems = []
    if not configured and not unreadable:
        problems.append(f"{variable('uri')} is not set: the embedded catalog is a file of this machine, {elsewhere}")
    elif properties.get("uri", "").startswith("sqlite"):
        problems.append(f"{variable('uri')} is a SQLite file of this machine: {elsewhere}")
    warehouse = properties.get("warehouse", "")
    told = f"{variable('warehouse')} is {shown(warehouse)}"
    if _is_file(warehouse):
        problems.append(f"{told}, a folder of this machine: {elsewhere}")
    elif warehouse and catalog_type(properties)[0] in ("sql", "glue") and not WAREHOUSE.fullmatch(warehouse):
        problems.append(f"{told}, no s3://bucket/prefix: {elsewhere}")
    if _is_file(settings.landing):
        problems.append(f"LAKEHOUSE_LANDING is {shown(settings.landing)}, a folder of this machine: {elsewhere}")
    return problems + _cluster_problems(settings.emr) + region_problems()


def _cluster_problems(emr: Emr | None) -> list[str]:
    """Why the cluster of a run's own could not be asked for."""
    if emr is None or emr.by != "transient":
        return []
    from resources.launchers.base import NotStarted
    from resources.launchers.emr_clusters import transient_cluster  # imports botocore

    try:
        transient_cluster(Path(emr.cluster), "")
    except NotStarted as error:
        return [str(error)]
    return []


def _is_file(place: str) -> bool:
    return place.startswith(("file:", "/"))


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
    return catalog


def _end_refused_commits(catalog: Catalog) -> None:
    """Roll back what a connection goes back into the pool with.

    A COMMIT that SQLite refuses, locked by a reader, leaves its transaction open; SQLAlchemy takes it for ended. The
    next to use the connection would see the commit, and a publish report what nobody else will ever see.
    """
    from sqlalchemy import event

    event.listen(catalog.engine, "checkin", lambda connection, _: connection and connection.rollback())


def table_io(properties: Mapping[str, str], identifier: str) -> dict[str, Any]:
    """Properties of the FileIO for a table's files: the catalog's, and what a REST catalog gives out with the table
    (vended credentials, good as long as the catalog says).

    properties: PyIceberg's. Raises SettingsError where the catalog gives out signatures instead.
    """
    from pyiceberg.catalog import load_catalog

    if catalog_type(properties)[0] != "rest":
        return dict(properties)
    found = load_catalog(LAKE, **properties).load_table(identifier).io.properties
    refuse_signing(found)
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
