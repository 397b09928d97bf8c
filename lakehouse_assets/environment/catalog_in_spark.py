"""Translates PyIceberg's catalog settings to Spark's."""

from __future__ import annotations

from collections.abc import Mapping

from lakehouse_assets.environment.env_reader import SettingsError

LAKE = "lake"


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# How PyIceberg's process connects and retries, without meaning to other engines. Java's timeouts are http-client.*.
PYTHON_ONLY = _names("""
    type py-io-impl echo pool_pre_ping init_catalog_tables schema_version
    rest.sigv4.max-retries glue.max-retries glue.retry-mode
    s3.retry-strategy-impl s3.connect-timeout s3.request-timeout
""")

# Passed on as they are: properties with the same name and meaning in both, and Java's own to which nothing in PyIceberg
# is contrary.
# https://iceberg.apache.org/javadoc/latest/org/apache/iceberg/aws/s3/S3FileIOProperties.html
S3 = _names("""
    io-impl s3.endpoint s3.access-key-id s3.secret-access-key s3.session-token s3.path-style-access s3.acl
    s3.staging-dir s3.sse.type s3.sse.key s3.sse.md5 s3.checksum-enabled s3.chunked-encoding-enabled
    s3.use-arn-region-enabled s3.dualstack-enabled s3.acceleration-enabled s3.cross-region-access-enabled
    s3.multipart.num-threads s3.multipart.part-size-bytes s3.multipart.threshold
    s3.delete.batch-size s3.delete.num-threads s3.delete-enabled s3.preload-client-enabled
    s3.retry.num-retries s3.retry.min-wait-ms s3.retry.max-wait-ms
    s3.write.storage-class s3.write.table-tag-enabled s3.write.namespace-tag-enabled
""")
# Iceberg's default of 5 outlasts 40 s of 503 SlowDown, but only 2 s of broken connections; 12 outlast 140 s and 50 s
# (measured).
S3_RETRIES = {"s3.retry.num-retries": "12"}
# Prefixes of more such properties.
S3_PREFIXES = ("s3.write.tags.", "s3.delete.tags.", "s3.access-points.", "http-client.")
REST = _names("""
    uri warehouse prefix credential token scope audience resource oauth2-server-uri
    token-refresh-enabled token-exchange-enabled token-expires-in-ms rest.signing-name rest.signing-region
    rest-page-size snapshot-loading-mode view-endpoints-supported namespace-separator
""")
REST_PREFIXES = ("header.", "rest.client.")

KEYS = ("access-key-id", "secret-access-key", "session-token")
CLIENT_KEYS = frozenset(f"client.{key}" for key in KEYS)
# PyIceberg's alone: workers open no catalog in Glue.
GLUE = _names("warehouse glue.id glue.endpoint glue.skip-archive glue.region glue.profile-name") | frozenset(
    f"glue.{key}" for key in KEYS
)
# The properties that Java names differently or lacks, by the catalog's type; "" is for all types.
REWORDED = {
    "": frozenset({"client.region", "s3.region", "s3.force-virtual-addressing"}),
    "sql": CLIENT_KEYS | {"uri", "warehouse"},
    "rest": CLIENT_KEYS | {"rest.sigv4-enabled"},
    "glue": CLIENT_KEYS | GLUE,
}
# A REST catalog returns these with a table if it renews keys: https://iceberg.apache.org/docs/latest/aws/
REFRESH_ENDPOINT = "client.refresh-credentials-endpoint"
REFRESH_ENABLED = "client.refresh-credentials-enabled"
EXPIRES_AT = "s3.session-token-expires-at-ms"
# Java's FileIO properties as Hadoop's S3A calls them (hadoop-aws, core-default.xml).
S3A = {
    "client.region": "fs.s3a.endpoint.region",
    "s3.access-key-id": "fs.s3a.access.key",
    "s3.secret-access-key": "fs.s3a.secret.key",
    "s3.session-token": "fs.s3a.session.token",
    "s3.endpoint": "fs.s3a.endpoint",
}

# What to do about properties that Java has no name for.
PROFILE = "Java reads no profile from a property; set AWS_PROFILE, which both Java and PyIceberg read"
ROLE = "Java uses the role for every client, PyIceberg only for S3; give the role to the environment's credentials"
SIGNING = (
    "PyIceberg's Arrow files can't be signed remotely, so nothing could be published; have the catalog vend "
    "credentials (header.X-Iceberg-Access-Delegation: vended-credentials), or give keys"
)
SNAPSHOT_LOADING = "snapshot-loading-mode"
ADVICE = {
    **dict.fromkeys(("client.profile-name", "s3.profile-name"), PROFILE),
    **dict.fromkeys(("client.role-arn", "client.role-session-name", "s3.role-arn", "s3.role-session-name"), ROLE),
    **dict.fromkeys(("s3.signer", "s3.signer.uri", "s3.signer.endpoint", "s3.remote-signing-enabled"), SIGNING),
    "s3.resolve-region": "Java needs a region; set PYICEBERG_CATALOG__LAKE__S3__REGION",
    "header.authorization": "PyIceberg replaces it with its own Authorization; set PYICEBERG_CATALOG__LAKE__TOKEN",
}


def variable(name: str) -> str:
    """Names a property of ``lake``: its variable, and its name in ``.pyiceberg.yaml``."""
    return f"PYICEBERG_CATALOG__{LAKE.upper()}__{name.upper().replace('.', '__').replace('-', '_')} ({name})"


S3_FILE_IO = "org.apache.iceberg.aws.s3.S3FileIO"
DELEGATION = "header.x-iceberg-access-delegation"


def translate(properties: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Returns the Java catalog's properties, and a problem for each property of PyIceberg that Java lacks.

    There are no properties unless it is a REST catalog: workers open no others.
    """
    kind, problem = catalog_type(properties)
    if problem:
        return {}, [problem]
    known = PYTHON_ONLY | REWORDED[""] | REWORDED[kind]
    unknown = [name for name in sorted(properties) if name not in known and not _same(kind, name)]
    problems = [_problem(name) for name in unknown] + s3_problems(properties)
    if kind != "rest":
        return {}, problems + (_url_problems(properties["uri"]) if kind == "sql" else [])
    own, own_problems = _rest(properties)
    java = {n: v for n, v in properties.items() if _same(kind, n)} | s3_file_io(properties) | own
    if on_s3(kind, properties):
        java.setdefault("io-impl", S3_FILE_IO)
    return s3_retries(kind, properties) | java, problems + own_problems


def catalog_type(properties: Mapping[str, str]) -> tuple[str, str | None]:
    """Returns the catalog's type, inferred as PyIceberg does if not set; and why it can't be used, or None."""
    uri, kind = properties.get("uri"), properties.get("type", "").lower()
    if not kind and uri:
        from pyiceberg.catalog import infer_catalog_type

        try:
            inferred = infer_catalog_type(LAKE, dict(properties))
        except ValueError:  # its message quotes the URI, which may hold a password
            return "", (f"{variable('uri')} is not of a known catalog type; expected http(s), postgresql or sqlite")
        kind = inferred.value if inferred else ""
    if kind and kind not in REWORDED:
        return (
            kind,
            f"{variable('type')} is {kind!r}, which has no Spark counterpart here; expected one of sql, rest, glue",
        )
    if kind != "glue" and not uri:
        return kind, f"{variable('uri')} is missing: a catalog of type {kind or 'sql or rest'} needs one"
    if kind == "rest" and not str(uri).lower().startswith(("http://", "https://")):
        return kind, f"{variable('uri')} is not an http:// or https:// URL, which a REST catalog needs"
    return kind, None


def _same(kind: str, name: str) -> bool:
    """Whether Java has the property of a catalog of this type under the same name."""
    if name in S3 or name.startswith(S3_PREFIXES):
        return True
    own = name in REST or (name.startswith(REST_PREFIXES) and name.lower() not in ADVICE)
    return kind == "rest" and own


def _problem(name: str) -> str:
    advice = ADVICE.get(name.lower())
    return f"{variable(name)} has no Spark counterpart" + (f": {advice}" if advice else " that this version knows")


def _rest(properties: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Returns a REST catalog's properties that Java names or needs otherwise, and the problems."""
    java = {"type": "rest"}
    problems = partial_loading(properties)
    delegation = next((v for n, v in properties.items() if n.lower() == DELEGATION), None)
    if delegation is None:
        java[DELEGATION] = "vended-credentials"  # PyIceberg's default
    elif "remote-signing" in delegation:
        problems.append(f"{variable(DELEGATION)} requests remote signing: {SIGNING}")
    authenticated = "credential" in properties or "token" in properties
    if is_true(properties.get("rest.sigv4-enabled", "")):
        java["rest.auth.type"] = "sigv4"
        java["rest.auth.sigv4.delegate-auth-type"] = "oauth2" if authenticated else "none"
        # As in PyIceberg, requests are signed with the client's keys and region.
        java |= {f"rest.{key}": properties[f"client.{key}"] for key in KEYS if f"client.{key}" in properties}
        if region := properties.get("rest.signing-region") or properties.get("client.region"):
            java["rest.signing-region"] = region
    elif authenticated:
        java["rest.auth.type"] = "oauth2"
    if "credential" in properties:
        # As in PyIceberg, get new tokens with the credential: not every server exchanges expiring tokens for new ones.
        java["token-exchange-enabled"] = properties.get("token-exchange-enabled", "false")
    return java, problems


def partial_loading(properties: Mapping[str, str]) -> list[str]:
    """Says why a REST catalog with these properties would omit older snapshots of tables."""
    mode = properties.get(SNAPSHOT_LOADING) or "all"
    if mode == "all":
        return []
    return [
        f"{variable(SNAPSHOT_LOADING)} is {mode!r}, expected 'all': otherwise tables are loaded without their older "
        "snapshots, and maintenance would delete the files of those; remove it, also if the catalog's server sets it "
        "for its clients"
    ]


def _url_problems(uri: str) -> list[str]:
    """Says why a SQL catalog's URL can't be used. The messages do not quote the URL, which may hold a password."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(uri)
    except (ArgumentError, ValueError):
        return [f"{variable('uri')} is not a URL that SQLAlchemy can read"]
    backend = url.get_backend_name()
    if backend not in ("postgresql", "sqlite"):
        return [f"{variable('uri')} is on {backend}; expected postgresql or sqlite"]
    if backend == "postgresql" and not url.host:  # commit/owner.py tells catalogs apart by it
        return [f"{variable('uri')} names no host; name it even if the server is on this machine"]
    if "@" in (url.host or ""):
        return [f"{variable('uri')} has an @ in its password; write %40 instead"]
    return []


def s3_file_io(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns the properties that Java's S3FileIO names differently. As in PyIceberg, s3.* wins over client.*."""
    names = {"region": "client.region", **{key: f"s3.{key}" for key in KEYS}}
    given = {java: properties.get(f"s3.{name}") or properties.get(f"client.{name}") for name, java in names.items()}
    found = {java: value for java, value in given.items() if value}
    if "s3.endpoint" in properties or "s3.force-virtual-addressing" in properties:
        found["s3.path-style-access"] = properties.get("s3.path-style-access") or path_style(properties)
    return found


def s3_problems(properties: Mapping[str, str]) -> list[str]:
    """Returns a problem if only half of an S3 key is given."""
    # KEYS[:2]: the session token may be missing.
    missing = [f"s3.{key}" for key in KEYS[:2] if f"s3.{key}" not in s3_file_io(properties)]
    return [f"{variable(missing[0])} is missing, but the other half of the key is set"] if len(missing) == 1 else []


def path_style(properties: Mapping[str, str]) -> str:
    """Returns ``true`` if URLs have the bucket in the path (PyIceberg's default), ``false`` if in the host."""
    return str(not is_true(properties.get("s3.force-virtual-addressing", ""))).lower()


def on_s3(kind: str, properties: Mapping[str, str]) -> bool:
    """Whether the catalog's tables are surely on S3."""
    warehouse = properties.get("warehouse", "")
    return kind == "glue" or warehouse.startswith(("s3:", "arn:aws:s3")) or "s3.endpoint" in properties


def s3_retries(kind: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Returns Java's setting of S3 retries if tables may be on S3, as with any REST catalog."""
    return S3_RETRIES if kind == "rest" or on_s3(kind, properties) else {}


def is_true(text: str) -> bool:
    """Whether PyIceberg reads the value as true."""
    return text.lower() in ("y", "yes", "t", "true", "on", "1")  # as pyiceberg.types.strtobool


STAGE = "stage"
SPARK_CATALOG = "org.apache.iceberg.spark.SparkCatalog"
# Chooses a FileIO by each location's scheme, as PyIceberg does.
ANY_FILE_IO = "org.apache.iceberg.io.ResolvingFileIO"
# S3FileIO's provider of keys that asks the catalog for new ones before they expire.
PROVIDER = "client.credentials-provider"
VENDED_CREDENTIALS = "org.apache.iceberg.aws.s3.VendedCredentialsProvider"
NOWHERE = "file:/dev/null/inputs-are-read-only"
"""The location of inputs. Nobody can make a folder below a device: each write fails, with this name in the error."""
# clients=1: each connection to :memory: is another database.
PRIVATE_SQLITE = {"uri": "jdbc:sqlite::memory:", "clients": "1", "jdbc.schema-version": "V1"}
# For EMR, whose Spark has Derby but not SQLite's driver. Derby has no LIMIT, which only listing namespaces needs.
# Iceberg's InMemoryCatalog needs no database, but takes no FileIO except its own.
PRIVATE_DERBY = {"uri": "jdbc:derby:memory:{name};create=true"}


def spark_catalogs(
    properties: Mapping[str, str],
    table_io: Mapping[str, str] | None = None,
    *,
    derby: bool = False,
    live: bool = False,
) -> dict[str, str]:
    """Returns Spark's settings for one session's in-memory catalogs ``lake`` (inputs) and ``stage`` (outputs).

    table_io: the FileIO's properties of the staged table, with vended credentials. derby: for JVMs without SQLite's
    driver (EMR). live: makes ``lake`` the REST catalog itself, for inputs that only its vended credentials can read.
    Raises SettingsError naming everything without a Spark counterpart.
    """
    lake, problems = translate(properties)
    if problems:
        raise SettingsError("; ".join(problems))
    private = {
        "type": "jdbc",
        **(PRIVATE_DERBY if derby else PRIVATE_SQLITE),
        # A catalog needs a warehouse, but no table is ever created in it: each is registered with its own location.
        "warehouse": "file:/nonexistent",
        **_private_io(properties, table_io or properties),
    }
    # cache-enabled=false: if workers share a session (inline), it must see others' commits.
    conf: dict[str, str] = {}
    # A step must not create tables in ``lake``: there, even a new table's location is NOWHERE.
    own = _named(private, LAKE) | {"warehouse": NOWHERE}
    for name, catalog in ((LAKE, lake if live else own), (STAGE, _named(private, STAGE))):
        prefix = f"spark.sql.catalog.{name}"
        conf |= {prefix: SPARK_CATALOG, f"{prefix}.cache-enabled": "false"}
        conf |= {f"{prefix}.{key}": value for key, value in catalog.items()}
    return conf


def _named(private: Mapping[str, str], name: str) -> dict[str, str]:
    """Puts the catalog's name into the URI: a JVM shares Derby's databases by their names."""
    return {**private, "uri": private["uri"].format(name=name)}


def hadoop_s3(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns Hadoop's settings for ``s3://`` in steps (the drop zone).

    Hadoop finds missing ones like the AWS SDK: environment, container, instance profile.
    """
    java = {**properties, **s3_file_io(properties)}
    found = {theirs: java[name] for name, theirs in S3A.items() if name in java}
    return found | ({"fs.s3a.path.style.access": path_style(properties)} if "s3.endpoint" in properties else {})


def refuse_signing(table_io: Mapping[str, str]) -> None:
    """Raises SettingsError if a catalog signs requests instead of vending keys."""
    if is_true(str(table_io.get("s3.remote-signing-enabled", ""))):
        raise SettingsError(f"the catalog {LAKE!r} signs requests to S3 itself: {SIGNING}")


def _private_io(properties: Mapping[str, str], io: Mapping[str, str]) -> dict[str, str]:
    """Returns the in-memory catalogs' FileIO properties. io: PyIceberg's, perhaps with vended keys."""
    kind, _ = catalog_type(properties)
    given = {n: str(v) for n, v in io.items() if n in S3 or n.startswith(S3_PREFIXES)}
    java = s3_retries(kind, properties) | given | s3_file_io(io)
    if kind == "glue" and (region := properties.get("glue.region")):
        java = {"client.region": region} | java
    if kind == "rest" and io.get(REFRESH_ENDPOINT) and is_true(io.get(REFRESH_ENABLED, "true")):
        java = _refreshing(properties, io, java)
    if on_s3(kind, properties):
        return {"io-impl": S3_FILE_IO} | java
    return {"io-impl": ANY_FILE_IO} | java if kind == "rest" else java


def _refreshing(properties: Mapping[str, str], io: Mapping[str, str], java: Mapping[str, str]) -> dict[str, str]:
    """Makes a FileIO ask the catalog for new keys.

    With the endpoint alone, the FileIO would send requests to ``stage``'s ``uri``, which is JDBC's. So the provider is
    named, and has the REST catalog's properties under its own prefix. Iceberg 1.10 uses a named provider only if
    refreshing is off and no keys are given; later versions always do (AwsClientProperties.credentialsProvider).
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
