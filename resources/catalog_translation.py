"""Translates the catalog ``lake`` for Iceberg's Java: its type and its properties, from PyIceberg's.

Nothing is read from the environment and nothing is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import quote

from resources.spark_names import (
    ADVICE,
    GLUE,
    KEYS,
    LAKE,
    POSTGRESQL,
    PYTHON_ONLY,
    REST,
    REST_PREFIXES,
    REWORDED,
    S3,
    S3_PREFIXES,
    S3_RETRIES,
    SIGNING,
    SNAPSHOT_LOADING,
    TIMEOUTS,
    variable,
)

S3_FILE_IO = "org.apache.iceberg.aws.s3.S3FileIO"
GLUE_CATALOG = "org.apache.iceberg.aws.glue.GlueCatalog"
# For a locked catalog file. It may be long, as *Terminate* kills the worker.
SQLITE_BUSY_SECONDS = 60
DELEGATION = "header.x-iceberg-access-delegation"


def translate(properties: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Returns the properties of Iceberg's Java catalog, and a problem for each of PyIceberg's that it lacks."""
    kind, problem = catalog_type(properties)
    if problem:
        return {}, [problem]
    known = PYTHON_ONLY | REWORDED[""] | REWORDED[kind]
    unknown = [name for name in sorted(properties) if name not in known and not _same(kind, name)]
    problems = [_problem(kind, name) for name in unknown] + s3_problems(properties)
    own, own_problems = {"sql": _jdbc, "rest": _rest, "glue": glue_catalog}[kind](properties)
    java = {n: v for n, v in properties.items() if _same(kind, n)} | s3_file_io(properties) | own
    if on_s3(kind, properties):
        java.setdefault("io-impl", S3_FILE_IO)
    return s3_retries(kind, properties) | java, problems + own_problems


def catalog_type(properties: Mapping[str, str]) -> tuple[str, str | None]:
    """Returns the catalog's type, by its URI where none is set, as in PyIceberg; and why it can't be used, or None."""
    uri, kind = properties.get("uri"), properties.get("type", "").lower()
    if not kind and uri:
        from pyiceberg.catalog import infer_catalog_type

        try:
            inferred = infer_catalog_type(LAKE, dict(properties))
        except ValueError:  # its message quotes the URI, which may hold a password
            return "", f"{variable('uri')} is of no known catalog type; known are http(s), postgresql and sqlite"
        kind = inferred.value if inferred else ""
    if kind and kind not in REWORDED:
        return kind, f"{variable('type')} is {kind!r}, which has no Spark counterpart here; known are sql, rest, glue"
    if kind != "glue" and not uri:
        return kind, f"{variable('uri')} is missing: a catalog of type {kind or 'sql or rest'} has one"
    if kind == "rest" and not str(uri).lower().startswith(("http://", "https://")):
        return kind, f"{variable('uri')} is not an http:// or https:// URL, as a REST catalog needs"
    return kind, None


def _same(kind: str, name: str) -> bool:
    """Says whether the property has the same name and meaning in Java."""
    if name in S3 or name.startswith(S3_PREFIXES):
        return True
    if kind == "rest":
        return name in REST or (name.startswith(REST_PREFIXES) and name.lower() not in ADVICE["rest"])
    return kind == "glue" and name in GLUE


def _problem(kind: str, name: str) -> str:
    advice = (ADVICE[""] | ADVICE[kind]).get(name.lower())
    return f"{variable(name)} has no Spark counterpart" + (f": {advice}" if advice else " that is known here")


def _rest(properties: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    java = {"type": "rest"}
    problems = partial_loading(properties)
    delegation = next((v for n, v in properties.items() if n.lower() == DELEGATION), None)
    if delegation is None:
        java[DELEGATION] = "vended-credentials"  # PyIceberg's default
    elif "remote-signing" in delegation:
        problems.append(f"{variable(DELEGATION)} asks for remote signing: {SIGNING}")
    authenticated = "credential" in properties or "token" in properties
    if is_true(properties.get("rest.sigv4-enabled", "")):
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


def partial_loading(properties: Mapping[str, str]) -> list[str]:
    """Says why a REST catalog with these properties, its server's included, would not load all snapshots of a table."""
    mode = properties.get(SNAPSHOT_LOADING) or "all"
    if mode == "all":
        return []
    return [
        f"{variable(SNAPSHOT_LOADING)} is {mode!r}, expected 'all': tables are loaded without their older snapshots "
        "then, whose files maintenance would delete; remove it, also where the catalog's server sets it for its clients"
    ]


def glue_catalog(properties: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Returns Glue's own properties in Java, and what is wrong with PyIceberg's."""
    java = {"catalog-impl": GLUE_CATALOG}
    own, of_s3 = (properties.get(f"{service}.region") or properties.get("client.region") for service in ("glue", "s3"))
    if own and of_s3 and own != of_s3:
        regions = f"{variable('glue.region')} is {own}, {variable('s3.region')} is {of_s3}"
        return java, [f"{regions}: Java has one region for both, {variable('client.region')}"]
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
        return java | {"uri": f"jdbc:sqlite:{url.database}", "jdbc.busy_timeout": f"{SQLITE_BUSY_SECONDS}000"}, []
    if backend != "postgresql":
        problem = f"{variable('uri')} is on {backend}, which has no JDBC counterpart here; use postgresql or sqlite"
        return java, [problem]
    problems = []
    if unknown := sorted(url.query.keys() - POSTGRESQL.keys()):
        problems.append(f"{variable('uri')}: no JDBC counterpart is known for its {', '.join(unknown)}")
    if not url.host:
        problems.append(f"{variable('uri')} names no host: JDBC has no Unix sockets")
    java |= {f"jdbc.{POSTGRESQL[name]}": str(value) for name, value in url.query.items() if name in POSTGRESQL}
    java |= {f"jdbc.{k}": v for k, v in (("user", url.username), ("password", url.password)) if v}
    host = f"[{url.host}]" if ":" in (url.host or "") else url.host
    return java | {"uri": f"jdbc:postgresql://{host}:{url.port or 5432}/{quote(url.database or '')}"}, problems


def s3_file_io(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns the properties that Java's S3FileIO spells otherwise. s3.* wins over client.*, as in PyIceberg."""
    names = {"region": "client.region", **{key: f"s3.{key}" for key in KEYS}}
    given = {java: properties.get(f"s3.{name}") or properties.get(f"client.{name}") for name, java in names.items()}
    found = {java: value for java, value in given.items() if value}
    if "s3.endpoint" in properties or "s3.force-virtual-addressing" in properties:
        found["s3.path-style-access"] = properties.get("s3.path-style-access") or path_style(properties)
    for seconds, milliseconds in TIMEOUTS.items():
        if timeout := _milliseconds(properties.get(seconds, "")):
            found[milliseconds] = str(timeout)
    return found


def s3_problems(properties: Mapping[str, str]) -> list[str]:
    """Returns a problem for each value for S3 that neither PyIceberg nor Java can work with."""
    problems = [
        f"{variable(name)}={properties[name]!r} is not a number of seconds above 0"
        for name in TIMEOUTS
        if properties.get(name) and not _milliseconds(properties[name])
    ]
    missing = [f"s3.{key}" for key in KEYS[:2] if f"s3.{key}" not in s3_file_io(properties)]
    if len(missing) == 1:
        problems.append(f"{variable(missing[0])} is missing: the other half of the key is given")
    return problems


def _milliseconds(seconds: str) -> int:
    """Converts seconds to milliseconds; 0 where ``seconds`` is not a finite number above 0."""
    with suppress(ValueError, OverflowError):
        return max(0, int(float(seconds) * 1000))
    return 0


def path_style(properties: Mapping[str, str]) -> str:
    """Returns ``true`` where a URL has the bucket in its path, PyIceberg's default, ``false`` where in its host."""
    return str(not is_true(properties.get("s3.force-virtual-addressing", ""))).lower()


def on_s3(kind: str, properties: Mapping[str, str]) -> bool:
    """Says whether the tables of a catalog of this type are surely on S3."""
    warehouse = properties.get("warehouse", "")
    return kind == "glue" or warehouse.startswith(("s3:", "arn:aws:s3")) or "s3.endpoint" in properties


def s3_retries(kind: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Sets how often Java retries calls to S3, for a catalog that may have tables there, as any REST catalog may."""
    return S3_RETRIES if kind == "rest" or on_s3(kind, properties) else {}


def is_true(text: str) -> bool:
    """Says whether PyIceberg reads the property's value as true."""
    return text.lower() in ("y", "yes", "t", "true", "on", "1")  # as pyiceberg.types.strtobool
