"""PyIceberg's properties of ``lake``, translated for Iceberg's Java (Spark's catalogs) and for Hadoop's S3A.
Nothing is read from the environment and nothing is opened; all properties without a counterpart are named at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from urllib.parse import quote

from resources.settings import SettingsError
from resources.spark_names import (
    ADVICE,
    EXPIRES_AT,
    GLUE,
    KEYS,
    POSTGRESQL,
    PYTHON_ONLY,
    REFRESH_ENABLED,
    REFRESH_ENDPOINT,
    REST,
    REST_PREFIXES,
    REWORDED,
    S3,
    S3_PREFIXES,
    S3_RETRIES,
    S3A,
    SIGNING,
    TIMEOUTS,
)

LAKE = "lake"
STAGE = "stage"
SPARK_CATALOG = "org.apache.iceberg.spark.SparkCatalog"
S3_FILE_IO = "org.apache.iceberg.aws.s3.S3FileIO"
# Chooses a FileIO by each location's scheme, as PyIceberg does.
ANY_FILE_IO = "org.apache.iceberg.io.ResolvingFileIO"
# A provider of keys for S3FileIO that asks the catalog for new ones before they expire.
PROVIDER = "client.credentials-provider"
VENDED_CREDENTIALS = "org.apache.iceberg.aws.s3.VendedCredentialsProvider"
GLUE_CATALOG = "org.apache.iceberg.aws.glue.GlueCatalog"
# A worker's Java may wait for a locked catalog file without a break: *Terminate* kills the worker.
SQLITE_BUSY_SECONDS = 60
SQLITE_OPEN_READONLY = "1"
"""https://www.sqlite.org/c3ref/c_open_autoproxy.html"""
POSTGRESQL_READ_ONLY = "-c default_transaction_read_only=on"
DELEGATION = "header.x-iceberg-access-delegation"
# clients=1: each connection to :memory: is a database of its own.
STAGE_SQLITE = {"uri": "jdbc:sqlite::memory:", "clients": "1", "jdbc.schema-version": "V1"}
# Iceberg's InMemoryCatalog would need no database, but takes no FileIO except its own. Derby has no LIMIT, so it can't
# list namespaces; nothing asks for them.
STAGE_DERBY = {"uri": "jdbc:derby:memory:stage;create=true"}


def variable(name: str) -> str:
    """A property of ``lake``, for messages: its environment variable, and the name in ``.pyiceberg.yaml``."""
    return f"PYICEBERG_CATALOG__{LAKE.upper()}__{name.upper().replace('.', '__').replace('-', '_')} ({name})"


def spark_catalogs(
    properties: Mapping[str, str],
    table_io: Mapping[str, str] | None = None,
    *,
    derby: bool = False,
    writable: bool = False,
) -> dict[str, str]:
    """Spark settings of the catalogs ``lake`` (the real one) and ``stage`` (private to one worker, in memory).

    Where the catalog is a database, ``lake`` is read-only: workers read it, and only a run publishes. With Glue and
    REST catalogs only the credentials can limit that.

    properties: PyIceberg's. table_io: the FileIO's properties for the one table to be staged (``table.io.properties``),
    where the catalog vends credentials. derby: keep ``stage`` in Derby, which Spark itself brings, for a JVM without
    SQLite's driver (EMR's). writable: let ``lake`` be written to, for sessions that are not a worker's.
    Raises SettingsError naming everything that has no Spark counterpart.
    """
    lake, problems = translate(properties)
    if problems:
        raise SettingsError("; ".join(problems))
    if lake.get("type") == "jdbc" and not writable:
        lake = _read_only(lake)
    stage = {
        "type": "jdbc",
        **(STAGE_DERBY if derby else STAGE_SQLITE),
        # Every table in `stage` is registered with a location of its own; this one is never written to.
        "warehouse": "file:/nonexistent",
        **_stage_io(properties, table_io or properties),
    }
    # cache-enabled=false: a session that is used for several workers (inline) must see what others commit meanwhile.
    common = {"": SPARK_CATALOG, ".cache-enabled": "false"}
    conf: dict[str, str] = {}
    for name, catalog in ((LAKE, lake), (STAGE, stage)):
        prefix = f"spark.sql.catalog.{name}"
        conf |= {prefix + suffix: value for suffix, value in common.items()}
        conf |= {f"{prefix}.{key}": value for key, value in catalog.items()}
    return conf


def hadoop_s3(properties: Mapping[str, str]) -> dict[str, str]:
    """Hadoop's settings for ``s3://`` as the steps read it (the drop zone), from the catalog's FileIO ``properties``.

    Hadoop finds what is missing there by itself, as the AWS SDK does: environment, container, instance profile.
    """
    found = {theirs: properties[name] for name, theirs in S3A.items() if name in properties}
    return found | ({"fs.s3a.path.style.access": _path_style(properties)} if "s3.endpoint" in properties else {})


def translate(properties: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The properties of Iceberg's Java catalog, and a problem for each of PyIceberg's that has no counterpart there."""
    kind, problem = catalog_type(properties)
    if problem:
        return {}, [problem]
    problems = [_problem(kind, name) for name in sorted(properties) if not _known(kind, name)] + _values(properties)
    own, own_problems = {"sql": _jdbc, "rest": _rest, "glue": _glue}[kind](properties)
    java = {n: v for n, v in properties.items() if _same(kind, n)} | _s3(properties) | own
    if _on_s3(kind, properties):
        java.setdefault("io-impl", S3_FILE_IO)
    return _s3_retries(kind, properties) | java, problems + own_problems


def catalog_type(properties: Mapping[str, str]) -> tuple[str, str | None]:
    """The catalog's type, from its URI where it is not set, as in PyIceberg; and why it can't be used, else None."""
    from pyiceberg.catalog import infer_catalog_type

    uri, kind = properties.get("uri"), properties.get("type", "").lower()
    if not kind and uri:
        try:
            kind = infer_catalog_type(LAKE, dict(properties)).value  # type: ignore[union-attr]
        except ValueError:  # its message quotes the URI, which may hold a password
            return "", f"{variable('uri')} is of no known catalog type; known are http(s), postgresql and sqlite"
    if kind and kind not in REWORDED:
        return kind, f"{variable('type')} is {kind!r}, which has no Spark counterpart here; known are sql, rest, glue"
    if kind != "glue" and not uri:
        return kind, f"{variable('uri')} is missing: a catalog of type {kind or 'sql or rest'} has one"
    if kind == "rest" and not str(uri).lower().startswith(("http://", "https://")):
        return kind, f"{variable('uri')} is not an http:// or https:// URL, as a REST catalog needs"
    return kind, None


def refuse_signing(table_io: Mapping[str, str]) -> None:
    """Raise SettingsError where a catalog signs requests instead of vending keys, which nobody asked it for."""
    if _true(str(table_io.get("s3.remote-signing-enabled", ""))):
        raise SettingsError(f"the catalog {LAKE!r} signs requests to S3 itself: {SIGNING}")


def _same(kind: str, name: str) -> bool:
    """Whether the property has the same name and meaning in Java."""
    if name in S3 or name.startswith(S3_PREFIXES):
        return True
    if kind == "rest":
        return name in REST or (name.startswith(REST_PREFIXES) and name.lower() not in ADVICE["rest"])
    return kind == "glue" and name in GLUE


def _known(kind: str, name: str) -> bool:
    return name in PYTHON_ONLY or name in REWORDED[""] or name in REWORDED[kind] or _same(kind, name)


def _problem(kind: str, name: str) -> str:
    advice = (ADVICE[""] | ADVICE[kind]).get(name.lower())
    return f"{variable(name)} has no Spark counterpart" + (f": {advice}" if advice else " that is known here")


def _s3(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties that Java's S3FileIO spells otherwise. s3.* wins over client.*, as in PyIceberg."""
    found = {}
    for key in KEYS:
        if value := properties.get(f"s3.{key}") or properties.get(f"client.{key}"):
            found[f"s3.{key}"] = value
    if region := properties.get("s3.region") or properties.get("client.region"):
        found["client.region"] = region
    if "s3.endpoint" in properties or "s3.force-virtual-addressing" in properties:
        found["s3.path-style-access"] = properties.get("s3.path-style-access") or _path_style(properties)
    for seconds, milliseconds in TIMEOUTS.items():
        if timeout := _milliseconds(properties.get(seconds, "")):
            found[milliseconds] = str(timeout)
    return found


def _values(properties: Mapping[str, str]) -> list[str]:
    """A problem for each value for S3 that neither PyIceberg nor Java can work with."""
    problems = [
        f"{variable(name)}={properties[name]!r} is not a number of seconds above 0"
        for name in TIMEOUTS
        if properties.get(name) and not _milliseconds(properties[name])
    ]
    keys = [f"s3.{key}" for key in KEYS[:2]]
    missing = [key for key in keys if key not in _s3(properties)]
    if len(missing) == 1:
        problems.append(f"{variable(missing[0])} is missing: the other half of the key is given")
    return problems


def _milliseconds(seconds: str) -> int | None:
    """None for what is not a finite time above 0."""
    try:
        value = float(seconds)
    except ValueError:
        return None
    return int(value * 1000) if math.isfinite(value) and value > 0 else None


def _path_style(properties: Mapping[str, str]) -> str:
    # PyIceberg's default is the bucket in the path.
    return str(not _true(properties.get("s3.force-virtual-addressing", ""))).lower()


def _on_s3(kind: str, properties: Mapping[str, str]) -> bool:
    warehouse = properties.get("warehouse", "")
    return kind == "glue" or warehouse.startswith(("s3:", "arn:aws:s3")) or "s3.endpoint" in properties


def _s3_retries(kind: str, properties: Mapping[str, str]) -> dict[str, str]:
    # A REST catalog may put its tables anywhere.
    return S3_RETRIES if kind == "rest" or _on_s3(kind, properties) else {}


def _stage_io(properties: Mapping[str, str], io: Mapping[str, str]) -> dict[str, str]:
    """The FileIO of ``stage``. io: a FileIO's properties; others among them are left out."""
    kind, _ = catalog_type(properties)
    given = {n: str(v) for n, v in io.items() if n in S3 or n.startswith(S3_PREFIXES)}
    java = _s3_retries(kind, properties) | given | _s3(io)
    if kind == "glue":
        java = _glue(properties)[0] | java
        del java["catalog-impl"]
    if kind == "rest" and io.get(REFRESH_ENDPOINT) and _true(io.get(REFRESH_ENABLED, "true")):
        java = _refreshing(properties, io, java)
    if _on_s3(kind, properties):
        return {"io-impl": S3_FILE_IO} | java
    return {"io-impl": ANY_FILE_IO} | java if kind == "rest" else java


def _refreshing(properties: Mapping[str, str], io: Mapping[str, str], java: Mapping[str, str]) -> dict[str, str]:
    """A FileIO that asks the catalog for new keys, with the catalog's own properties to reach it.

    With the endpoint alone it would ask at ``stage``'s ``uri``, which is a JDBC driver's. So the provider is named, and
    has properties of its own. Iceberg 1.10 uses a named provider only where refreshing is off and no keys are given;
    later versions always use it (AwsClientProperties.credentialsProvider).
    """
    catalog = {n: v for n, v in translate(properties)[0].items() if n in REST or n.startswith(("header.", "rest."))}
    keys = {f"s3.{key}": java[f"s3.{key}"] for key in KEYS if f"s3.{key}" in java}
    endpoint = io[REFRESH_ENDPOINT]
    provider = catalog | keys | {EXPIRES_AT: io.get(EXPIRES_AT, ""), "credentials.uri": endpoint}
    return {
        **{name: value for name, value in java.items() if name not in keys},
        **{f"{PROVIDER}.{name}": str(value) for name, value in provider.items() if value},
        PROVIDER: VENDED_CREDENTIALS,
        REFRESH_ENDPOINT: endpoint,
        REFRESH_ENABLED: "false",
    }


def _rest(properties: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    java = {"type": "rest"}
    problems = []
    delegation = next((v for n, v in properties.items() if n.lower() == DELEGATION), None)
    if delegation is None:
        java[DELEGATION] = "vended-credentials"  # PyIceberg's default
    elif "remote-signing" in delegation:
        problems.append(f"{variable(DELEGATION)} asks for remote signing: {SIGNING}")
    authenticated = "credential" in properties or "token" in properties
    if _true(properties.get("rest.sigv4-enabled", "")):
        java["rest.auth.type"] = "sigv4"
        java["rest.auth.sigv4.delegate-auth-type"] = "oauth2" if authenticated else "none"
        # PyIceberg signs with the client's keys and region.
        java |= {f"rest.{key}": properties[f"client.{key}"] for key in KEYS if f"client.{key}" in properties}
        if region := properties.get("rest.signing-region") or properties.get("client.region"):
            java["rest.signing-region"] = region
    elif authenticated:
        java["rest.auth.type"] = "oauth2"
    if "credential" in properties:
        # As in PyIceberg, the credential is used again for a new token: not every server exchanges expiring tokens.
        java["token-exchange-enabled"] = properties.get("token-exchange-enabled", "false")
    return java, problems


def _glue(properties: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    java = {"catalog-impl": GLUE_CATALOG}
    own, of_s3 = (properties.get(f"{service}.region") or properties.get("client.region") for service in ("glue", "s3"))
    if own and of_s3 and own != of_s3:
        return java, [
            f"{variable('glue.region')} is {own}, {variable('s3.region')} is {of_s3}: Java has one region for both, "
            f"{variable('client.region')}"
        ]
    if region := of_s3 or own:
        java["client.region"] = region
    return java, []


def _jdbc(properties: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    java = {"type": "jdbc", "jdbc.schema-version": "V1", "warehouse": properties.get("warehouse", "")}
    try:
        url = make_url(properties["uri"])
    except (ArgumentError, ValueError):  # its message may quote the password
        return java, [f"{variable('uri')} is not a URL that SQLAlchemy can read"]
    backend = url.get_backend_name()
    if backend == "sqlite":
        busy = str(SQLITE_BUSY_SECONDS * 1000)
        return java | {"uri": f"jdbc:sqlite:{url.database}", "jdbc.busy_timeout": busy}, []
    if backend != "postgresql":
        return java, [
            f"{variable('uri')} is on {backend}, which has no JDBC counterpart here; use postgresql or sqlite"
        ]
    problems = []
    if unknown := sorted(url.query.keys() - POSTGRESQL.keys()):
        problems.append(f"{variable('uri')}: no JDBC counterpart is known for its {', '.join(unknown)}")
    if not url.host:
        problems.append(f"{variable('uri')} names no host: JDBC has no Unix sockets")
    java |= {f"jdbc.{POSTGRESQL[name]}": str(value) for name, value in url.query.items() if name in POSTGRESQL}
    java |= {f"jdbc.{k}": str(v) for k, v in (("user", url.username), ("password", url.password)) if v}
    host = f"[{url.host}]" if ":" in (url.host or "") else url.host
    return java | {"uri": f"jdbc:postgresql://{host}:{url.port or 5432}/{quote(url.database or '')}"}, problems


def _read_only(java: Mapping[str, str]) -> dict[str, str]:
    """The JDBC catalog on connections that can't write. So it must neither create its tables nor update them to V1."""
    read_only = {name: value for name, value in java.items() if name != "jdbc.schema-version"}
    read_only["jdbc.init-catalog-tables"] = "false"
    if java["uri"].startswith("jdbc:sqlite:"):
        return read_only | {"jdbc.open_mode": SQLITE_OPEN_READONLY}
    return read_only | {"jdbc.options": f"{java.get('jdbc.options', '')} {POSTGRESQL_READ_ONLY}".strip()}


def _true(text: str) -> bool:
    return text.lower() in ("y", "yes", "t", "true", "on", "1")  # as pyiceberg.types.strtobool
