"""What counts as a secret: by name, and by what a value has in it."""

from __future__ import annotations

import pytest

from lakehouse_assets.environment.env_reader import is_secret, public

NAMES_OF_SECRETS = [
    "credential",
    "token",
    "s3.secret-access-key",
    "s3.access-key-id",
    "s3.session-token",
    "s3.sse.key",
    "header.authorization",
    "header.Cookie",
    "header.x-api-key",
    "spark.hadoop.fs.s3a.secret.key",
    "spark.hadoop.fs.s3a.access.key",
    "spark.hadoop.fs.azure.account.key.store.dfs.core.windows.net",
    "spark.ssl.keyStorePassword",
    "spark.sql.catalog.lake.jdbc.password",
    "adls.connection-string",
    "gcs.oauth2.token",
    "spark.authenticate.secret",
    "spark.hadoop.fs.s3a.encryption.key",
    "spark.hadoop.fs.s3a.server-side-encryption.key",
    "spark.hadoop.fs.azure.account.oauth2.refresh.token",
    # Told apart from what ends otherwise only by its end.
    "client.credentials-provider.token",
    "header.x-token-refresh",
    "header.proxy-authorization",
    "spark.secrets.enabled.credential",
]
# Of Spark's, Hadoop's and PyIceberg's documentation: switches, classes, places of secrets.
NAMES_OF_OTHERS = [
    "token-refresh-enabled",
    "token-exchange-enabled",
    "token-expires-in-ms",
    "gcs.oauth2.token-expires-at",
    "gcp.bigquery.credential-file",
    "client.credentials-provider",
    "s3.sse-kms-key-id",
    "spark.sql.keyType",
    "spark.io.encryption.keySizeBits",
    "spark.io.encryption.keygen.algorithm",
    "spark.authenticate.secret.file",
    "spark.authenticate.secret.driver.file",
    "spark.authenticate.secretBitLength",
    "spark.kafka.clusters.a.sasl.token.mechanism",
    "spark.kerberos.keytab",
    "spark.kerberos.principal",
    "spark.kerberos.renewal.credentials",
    "spark.security.credentials.hive.enabled",
    "spark.security.credentials.renewalRatio",
    "spark.security.credentials.retryWait",
    "spark.yarn.security.tokens.hive.enabled",
    "spark.hadoop.fs.adl.oauth2.access.token.provider.type",
    "spark.hadoop.fs.s3.customAWSCredentialsProvider",
    "spark.hadoop.fs.s3a.assumed.role.credentials.provider",
    "spark.hadoop.fs.s3a.aws.credentials.provider",
    "spark.hadoop.fs.s3a.aws.credentials.provider.mapping",
    "spark.hadoop.fs.s3a.delegation.token.binding",
    "spark.hadoop.fs.s3a.security.credential.provider.path",
    "spark.hadoop.hadoop.security.authorization",
    "spark.hadoop.hadoop.security.credential.provider.path",
    "spark.hadoop.hive.security.authorization.manager",
]


@pytest.mark.parametrize("name", NAMES_OF_SECRETS)
def test_secret_by_name(name: str) -> None:
    assert is_secret(name, "x")
    assert is_secret("spark.driver.extraJavaOptions", f"-Dfile.encoding=UTF-8 -D{name}=x")


@pytest.mark.parametrize("name", NAMES_OF_OTHERS)
def test_no_secret_by_name(name: str) -> None:
    assert not is_secret(name, "x")
    assert not is_secret("spark.driver.extraJavaOptions", f"-Dfile.encoding=UTF-8 -D{name}=x")


@pytest.mark.parametrize(
    "value",
    [
        "postgresql://me:hunter2@db/lake",
        "postgresql://me:hun/ter2?@db/lake",
        "postgresql+psycopg2://:hunter2@db/lake",
        "postgresql://db/lake?user=me&password=hunter2",
        "jdbc:postgresql://db/lake?user=me&password=hunter2",
        "jdbc:sqlserver://db;user=me;password=hunter2",
        "-Dfile.encoding=UTF-8 -Djavax.net.ssl.trustStorePassword=changeit",
        "https://catalog/?access_token=abc",
        "s3://key:secret@bucket/warehouse",
        "jdbc:redshift://db/lake?ssl=true&password=enabled",
        "https://catalog/?token=x&filetype=file",
    ],
)
def test_secret_by_value(value: str) -> None:
    assert is_secret("uri", value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("uri", "https://catalog.example.com:8181/api/catalog"),
        ("uri", "postgresql://me@db:5432/lake?sslmode=verify-full"),
        ("uri", "sqlite:////srv/lake.db?timeout=5"),
        ("oauth2-server-uri", "https://idp/realms/x/protocol/openid-connect/token?x=y"),
        ("warehouse", "arn:aws:s3tables:us-east-1:123456789012:bucket/lake"),
        ("warehouse", "s3://bucket/warehouse"),
        ("scope", "PRINCIPAL_ROLE:ALL"),
        ("header.X-Iceberg-Access-Delegation", "vended-credentials"),
        ("spark.hadoop.fs.s3a.aws.credentials.provider", "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"),
        ("spark.driver.extraJavaOptions", "-Duser.timezone=UTC -XX:+UseZGC"),
    ],
)
def test_no_secret(name: str, value: str) -> None:
    assert not is_secret(name, value)


def test_only_what_is_no_secret_is_public() -> None:
    assert public({"uri": "https://x", "token": "t"}) == {"uri": "https://x"}
