"""Makes Spark's settings for the catalogs ``lake`` and ``stage``, and for ``s3://`` as steps read it.

PyIceberg's properties are translated in catalog_translation.py; nothing is opened.
"""

from __future__ import annotations

from collections.abc import Mapping

from lakehouse_assets.environment.catalog_translation import (
    EXPIRES_AT,
    KEYS,
    LAKE,
    REFRESH_ENABLED,
    REFRESH_ENDPOINT,
    REST,
    S3,
    S3_FILE_IO,
    S3_PREFIXES,
    S3A,
    SIGNING,
    catalog_type,
    is_true,
    on_s3,
    path_style,
    s3_file_io,
    s3_retries,
    translate,
)
from lakehouse_assets.environment.env_reader import SettingsError

STAGE = "stage"
SPARK_CATALOG = "org.apache.iceberg.spark.SparkCatalog"
# Chooses a FileIO by each location's scheme, as PyIceberg does.
ANY_FILE_IO = "org.apache.iceberg.io.ResolvingFileIO"
# A provider of keys for S3FileIO that asks the catalog for new ones before they expire.
PROVIDER = "client.credentials-provider"
VENDED_CREDENTIALS = "org.apache.iceberg.aws.s3.VendedCredentialsProvider"
NOWHERE = "file:/dev/null/inputs-are-read-only"
"""A location at which nobody can make a folder, for inputs, and for a catalog in which no table is made."""
# clients=1: each connection to :memory: is a database of its own.
PRIVATE_SQLITE = {"uri": "jdbc:sqlite::memory:", "clients": "1", "jdbc.schema-version": "V1"}
# Iceberg's InMemoryCatalog would need no database, but takes no FileIO except its own. Derby has no LIMIT, which only
# listing namespaces needs.
PRIVATE_DERBY = {"uri": "jdbc:derby:memory:{name};create=true"}


def spark_catalogs(
    properties: Mapping[str, str],
    table_io: Mapping[str, str] | None = None,
    *,
    derby: bool = False,
    live: bool = False,
) -> dict[str, str]:
    """Returns Spark's settings for the catalogs ``lake`` and ``stage``, both one session's own, in memory.

    In the first the worker registers what its step may read, in the second what it writes.

    properties: PyIceberg's. table_io: the properties of the staged table's own FileIO (``table.io.properties``), where
    the catalog vends credentials. derby: keep both in Derby, which Spark itself brings, for a JVM without SQLite's
    driver (EMR's). live: have the REST catalog itself as ``lake``, whose tables can be read by what it vends only.
    Raises SettingsError naming everything that has no Spark counterpart.
    """
    lake, problems = translate(properties)
    if problems:
        raise SettingsError("; ".join(problems))
    private = {
        "type": "jdbc",
        **(PRIVATE_DERBY if derby else PRIVATE_SQLITE),
        # Never written to in a worker: every table is registered with a location of its own.
        "warehouse": "file:/nonexistent",
        **_private_io(properties, table_io or properties),
    }
    # cache-enabled=false: a session that several workers use (inline) must see what others commit meanwhile.
    conf: dict[str, str] = {}
    own = _named(private, LAKE) | {"warehouse": NOWHERE}
    for name, catalog in ((LAKE, lake if live else own), (STAGE, _named(private, STAGE))):
        prefix = f"spark.sql.catalog.{name}"
        conf |= {prefix: SPARK_CATALOG, f"{prefix}.cache-enabled": "false"}
        conf |= {f"{prefix}.{key}": value for key, value in catalog.items()}
    return conf


def _named(private: Mapping[str, str], name: str) -> dict[str, str]:
    """Returns the properties with a database of the catalog's own: Derby's are the whole JVM's, by their names."""
    return {**private, "uri": private["uri"].format(name=name)}


def hadoop_s3(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns Hadoop's settings for ``s3://`` as steps read it (the drop zone), by the catalog's FileIO ``properties``.

    Hadoop finds what is missing by itself, as the AWS SDK does: environment, container, instance profile.
    """
    java = {**properties, **s3_file_io(properties)}
    found = {theirs: java[name] for name, theirs in S3A.items() if name in java}
    return found | ({"fs.s3a.path.style.access": path_style(properties)} if "s3.endpoint" in properties else {})


def refuse_signing(table_io: Mapping[str, str]) -> None:
    """Raises SettingsError where a catalog signs requests instead of vending keys."""
    if is_true(str(table_io.get("s3.remote-signing-enabled", ""))):
        raise SettingsError(f"the catalog {LAKE!r} signs requests to S3 itself: {SIGNING}")


def _private_io(properties: Mapping[str, str], io: Mapping[str, str]) -> dict[str, str]:
    """Returns the properties of the private catalogs' FileIO.

    io: a FileIO's properties, and others that are left out.
    """
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
    """Makes a FileIO ask the catalog for new keys, with the catalog's own properties to reach it.

    With the endpoint alone it would send requests to ``stage``'s ``uri``, which is a JDBC driver's. So the provider is
    named, and has properties of its own. Iceberg 1.10 uses a named provider only where refreshing is off and no keys
    are given; later versions always use it (AwsClientProperties.credentialsProvider).
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
