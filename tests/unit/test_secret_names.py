"""What counts as a secret: by name, and by what a value has in it."""

from __future__ import annotations

import pytest

from resources.secrets import is_secret, public


@pytest.mark.parametrize(
    "name",
    [
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
    ],
)
def test_secret_by_name(name: str) -> None:
    assert is_secret(name, "x")


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
        ("token-exchange-enabled", "false"),
        ("token-expires-in-ms", "1000"),
        ("header.X-Iceberg-Access-Delegation", "vended-credentials"),
        ("spark.hadoop.fs.s3a.aws.credentials.provider", "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"),
        ("spark.sql.keyType", "x"),
        ("spark.driver.extraJavaOptions", "-Duser.timezone=UTC -XX:+UseZGC"),
    ],
)
def test_no_secret(name: str, value: str) -> None:
    assert not is_secret(name, value)


def test_only_what_is_no_secret_is_public() -> None:
    assert public({"uri": "https://x", "token": "t"}) == {"uri": "https://x"}
