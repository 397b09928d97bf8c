"""Lists the names of PyIceberg's catalog properties in Iceberg's Java and in Hadoop's S3A, and those without any there.

These are tables only: the translation is in catalog_translation.py.
"""

from __future__ import annotations

LAKE = "lake"


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# How PyIceberg's own process connects and retries: of no meaning to another engine.
PYTHON_ONLY = _names("""
    type py-io-impl echo pool_pre_ping init_catalog_tables schema_version
    rest.sigv4.max-retries glue.max-retries glue.retry-mode s3.retry-strategy-impl
""")

# With the same name and meaning in both, or Java's alone where PyIceberg has nothing that it would contradict.
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
S3_PREFIXES = ("s3.write.tags.", "s3.delete.tags.", "s3.access-points.", "http-client.")
REST = _names("""
    uri warehouse prefix credential token scope audience resource oauth2-server-uri
    token-refresh-enabled token-exchange-enabled token-expires-in-ms rest.signing-name rest.signing-region
    rest-page-size snapshot-loading-mode view-endpoints-supported namespace-separator
""")
REST_PREFIXES = ("header.", "rest.client.")
GLUE = frozenset(["warehouse", "glue.id", "glue.endpoint", "glue.skip-archive"])

KEYS = ("access-key-id", "secret-access-key", "session-token")
# In seconds in PyIceberg, in milliseconds in Java.
TIMEOUTS = {
    "s3.connect-timeout": "http-client.apache.connection-timeout-ms",
    "s3.request-timeout": "http-client.apache.socket-timeout-ms",
}
# The properties that Java spells otherwise, by the catalog's type; "" is for all types.
REWORDED = {
    "": frozenset({"client.region", "s3.region", "s3.force-virtual-addressing", *TIMEOUTS}),
    "sql": frozenset({"uri", "warehouse", *(f"client.{key}" for key in KEYS)}),
    "rest": frozenset({"rest.sigv4-enabled", *(f"client.{key}" for key in KEYS)}),
    "glue": frozenset({"glue.region"}),
}
# libpq's connection parameters that PostgreSQL's JDBC driver has as well.
POSTGRESQL = {
    **{name: name for name in ("sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword", "options")},
    "application_name": "ApplicationName",
    "user": "user",
    "password": "password",
}
# A REST catalog returns these with a table whose keys it renews: https://iceberg.apache.org/docs/latest/aws/
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
PROFILE = "Java takes no profile from a property; set AWS_PROFILE, which both sides read"
ROLE = "Java's roles apply to every client, PyIceberg's to S3 alone; let the environment's credentials have the role"
SIGNING = (
    "PyIceberg's files on Arrow can't be signed remotely, so nothing could be published; let the catalog vend "
    "credentials (header.X-Iceberg-Access-Delegation: vended-credentials) or give keys"
)
GLUE_KEYS = (
    "Iceberg's Java client of Glue takes no keys from properties; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
    "which both sides read, or give the process a role (keys for S3 alone are s3.*)"
)
SNAPSHOT_LOADING = "snapshot-loading-mode"
ADVICE = {
    "": {
        **dict.fromkeys(("client.profile-name", "s3.profile-name"), PROFILE),
        **dict.fromkeys(("client.role-arn", "client.role-session-name", "s3.role-arn", "s3.role-session-name"), ROLE),
        **dict.fromkeys(("s3.signer", "s3.signer.uri", "s3.signer.endpoint", "s3.remote-signing-enabled"), SIGNING),
        "s3.resolve-region": "Java needs a region; set PYICEBERG_CATALOG__LAKE__S3__REGION",
    },
    "sql": {},
    "rest": {
        "header.authorization": "PyIceberg replaces it with its own Authorization; set PYICEBERG_CATALOG__LAKE__TOKEN"
    },
    "glue": {
        "glue.profile-name": PROFILE,
        **{f"{service}.{key}": GLUE_KEYS for service in ("glue", "client") for key in KEYS},
    },
}


def variable(name: str) -> str:
    """Names a property of ``lake`` for messages: its environment variable, and the name in ``.pyiceberg.yaml``."""
    return f"PYICEBERG_CATALOG__{LAKE.upper()}__{name.upper().replace('.', '__').replace('-', '_')} ({name})"
