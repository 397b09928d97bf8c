"""The one catalog, ``lake``: PyIceberg's own configuration, its embedded default, and its translation for Spark.
No table is created or changed here."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from resources.settings import Settings, SettingsError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

T = TypeVar("T")
LAKE = "lake"
STAGE = "stage"
# How long a catalog file locked by somebody else is waited for before the commit counts as conflicting.
SQLITE_BUSY_SECONDS = 5
# Short waits in C let *Terminate* through; a worker is killed for that, so its Java may wait at a stretch.
SQLITE_BUSY_SECONDS_JAVA = PATIENCE_SECONDS = 60
# The same meaning under the same name in PyIceberg and in Iceberg's Java, by prefix.
SHARED_PREFIXES = ("s3.", "client.", "header.", "oauth2-", "rest.")
SHARED = frozenset({"uri", "warehouse", "credential", "token", "scope", "audience", "resource", "prefix"})
# Of libpq's connection parameters, those that PostgreSQL's JDBC driver has under the same name and meaning.
SHARED_BY_POSTGRESQL = frozenset({"sslmode", "sslrootcert", "sslcert", "sslkey"})
RENAMED = {"s3.region": "client.region", "s3.force-virtual-addressing": None}
# PyIceberg's FileIO properties as Hadoop's S3A knows them (hadoop-aws, core-default.xml), s3.* over client.*.
S3A = {
    "client.region": "fs.s3a.endpoint.region",
    "client.access-key-id": "fs.s3a.access.key",
    "client.secret-access-key": "fs.s3a.secret.key",
    "client.session-token": "fs.s3a.session.token",
    "s3.region": "fs.s3a.endpoint.region",
    "s3.access-key-id": "fs.s3a.access.key",
    "s3.secret-access-key": "fs.s3a.secret.key",
    "s3.session-token": "fs.s3a.session.token",
    "s3.endpoint": "fs.s3a.endpoint",
}


def catalog_properties(settings: Settings, told: Mapping[str, str] | None = None) -> dict[str, str]:
    """PyIceberg's properties of ``lake``: ``PYICEBERG_CATALOG__LAKE__*`` and ``.pyiceberg.yaml``, else the embedded
    default (SQLite and a folder under LAKEHOUSE_HOME).

    told: what a worker was told of its orchestrator's properties (no secrets); its own environment wins.
    """
    from pyiceberg.utils.config import Config

    own = Config().get_catalog_config(LAKE) or {}
    properties = {**(told or {}), **{name: str(value) for name, value in own.items()}}
    if properties:
        # A SQL catalog leaves the warehouse to its clients.
        return {"warehouse": settings.warehouse, **properties} if _kind(properties) == "sql" else properties
    return {
        "type": "sql",
        "uri": f"sqlite:///{settings.home / 'catalog.db'}?timeout={SQLITE_BUSY_SECONDS}",
        "warehouse": settings.warehouse,
    }


def load_lake(settings: Settings) -> Catalog:
    """The catalog ``lake``. Raises SettingsError when its home can't be written."""
    from pyiceberg.catalog import load_catalog

    try:
        settings.home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"LAKEHOUSE_HOME={settings.home}: {error.strerror}") from error
    return load_catalog(LAKE, **catalog_properties(settings))


class CatalogUnavailable(OSError):
    """The catalog's database can't be used; the message says what it said."""


def outlasting(call: Callable[[], T]) -> T:
    """Call until a catalog locked by somebody else, or a connection that broke, lets it through; a minute at most.

    For what may be done twice: opening, loading, creating. Raises CatalogUnavailable.
    """
    from sqlalchemy.exc import OperationalError

    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return call()
        except OperationalError as error:
            locked = getattr(error.orig, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
            if not (locked or error.connection_invalidated) or time.monotonic() > deadline:
                raise CatalogUnavailable(f"the catalog {LAKE!r} can't be used: {error.orig}") from error
            time.sleep(random.uniform(0, 1))


def spark_catalogs(properties: Mapping[str, str]) -> dict[str, str]:
    """Spark settings of the catalogs ``lake`` (the real one) and ``stage`` (private to one worker, in memory).

    properties: PyIceberg's. Raises SettingsError naming each property without a Spark counterpart.
    """
    lake = _java_catalog(properties)
    file_io = {name: value for name, value in lake.items() if name.startswith(("s3.", "client.", "io-impl"))}
    stage = {
        "type": "jdbc",
        "uri": "jdbc:sqlite::memory:",
        "clients": "1",  # each connection to :memory: is a database of its own
        "jdbc.schema-version": "V1",
        # Every table in `stage` is registered with a location of its own; this one is never written to.
        "warehouse": "file:/nonexistent",
        **file_io,
    }
    # cache-enabled=false: a session that outlives one worker (inline) must see what others commit meanwhile.
    common = {"": "org.apache.iceberg.spark.SparkCatalog", ".cache-enabled": "false"}
    conf = {}
    for name, catalog in ((LAKE, lake), (STAGE, stage)):
        prefix = f"spark.sql.catalog.{name}"
        conf |= {prefix + suffix: value for suffix, value in common.items()}
        conf |= {f"{prefix}.{key}": value for key, value in catalog.items()}
    return conf


def hadoop_s3(properties: Mapping[str, str]) -> dict[str, str]:
    """Hadoop's settings for ``s3://`` as the steps read it (the drop zone), from the catalog's FileIO ``properties``.

    What is not given there Hadoop finds by itself, as the AWS SDK does: environment, container, instance profile.
    """
    found = {theirs: properties[name] for name, theirs in S3A.items() if name in properties}
    return found | ({"fs.s3a.path.style.access": "true"} if "s3.endpoint" in properties else {})


def _java_catalog(properties: Mapping[str, str]) -> dict[str, str]:
    kind = _kind(properties)
    if kind == "sql":
        return _jdbc(properties) | _file_io(properties)
    if kind == "rest":
        return {"type": "rest"} | _translate(properties, known=SHARED) | _file_io(properties)
    variable = f"PYICEBERG_CATALOG__{LAKE.upper()}__TYPE"
    raise SettingsError(f"{variable}={kind!r} has no Spark counterpart; known are sql, rest")


def _kind(properties: Mapping[str, str]) -> str:
    """The catalog's type, from its URI where it is not said, as PyIceberg takes it."""
    from pyiceberg.catalog import infer_catalog_type

    if kind := properties.get("type"):
        return kind
    try:
        inferred = infer_catalog_type(LAKE, dict(properties))
    except ValueError as error:
        raise SettingsError(f"PYICEBERG_CATALOG__{LAKE.upper()}__URI: {error}") from error
    return inferred.value if inferred else ""


def _jdbc(properties: Mapping[str, str]) -> dict[str, str]:
    from sqlalchemy import make_url

    url = make_url(properties["uri"])
    java = {
        "type": "jdbc",
        "jdbc.schema-version": "V1",
        "warehouse": properties["warehouse"],
    } | _translate({k: v for k, v in properties.items() if k not in ("uri", "warehouse")}, known=frozenset())
    if url.get_backend_name() == "sqlite":
        return java | {
            "uri": f"jdbc:sqlite:{url.database}",
            "jdbc.busy_timeout": str(SQLITE_BUSY_SECONDS_JAVA * 1000),
        }
    if url.get_backend_name() == "postgresql":
        if unknown := sorted(url.query.keys() - SHARED_BY_POSTGRESQL):
            raise SettingsError(f"catalog {LAKE!r}: no JDBC counterpart is known for the URI's {', '.join(unknown)}")
        java |= {f"jdbc.{name}": str(value) for name, value in url.query.items()}
        java["uri"] = f"jdbc:postgresql://{url.host}:{url.port or 5432}/{url.database}"
        return java | {f"jdbc.{k}": v for k, v in (("user", url.username), ("password", url.password)) if v}
    raise SettingsError(f"a sql catalog on {url.get_backend_name()} has no JDBC counterpart here")


def _translate(properties: Mapping[str, str], known: frozenset[str]) -> dict[str, str]:
    java, unknown = {}, []
    for name, value in properties.items():
        if name in ("type", "py-io-impl"):
            continue
        if name in RENAMED:
            if target := RENAMED[name]:
                java[target] = value
        elif name in known or name.startswith(SHARED_PREFIXES):
            java[name] = value
        else:
            unknown.append(name)
    if unknown:
        raise SettingsError(f"catalog {LAKE!r}: no Spark counterpart is known for {', '.join(sorted(unknown))}")
    if "s3.endpoint" in java:
        java.setdefault("s3.path-style-access", "true")
    return java


def _file_io(properties: Mapping[str, str]) -> dict[str, str]:
    on_s3 = properties.get("warehouse", "").startswith(("s3:", "arn:aws:s3")) or "s3.endpoint" in properties
    return {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO"} if on_s3 else {}
