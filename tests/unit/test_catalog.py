"""PyIceberg's configuration of ``lake`` in Spark's words; what has none is named."""

from __future__ import annotations

import pytest

from resources.catalog import catalog_properties, hadoop_s3, spark_catalogs
from resources.settings import Settings, SettingsError


def test_without_configuration_it_is_the_embedded_one(settings: Settings) -> None:
    spark = spark_catalogs(catalog_properties(settings))
    assert spark["spark.sql.catalog.lake.type"] == "jdbc"
    assert spark["spark.sql.catalog.lake.uri"] == f"jdbc:sqlite:{settings.home}/catalog.db"
    assert spark["spark.sql.catalog.lake.warehouse"] == settings.warehouse


def test_a_uri_is_enough(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", "sqlite:////srv/lake.db")
    spark = spark_catalogs(catalog_properties(settings))
    assert spark["spark.sql.catalog.lake.uri"] == "jdbc:sqlite:/srv/lake.db"
    assert spark["spark.sql.catalog.lake.warehouse"] == settings.warehouse


def test_postgresql_keeps_how_the_connection_is_secured() -> None:
    properties = {"type": "sql", "warehouse": "s3://lake", "uri": "postgresql://me:secret@db/lake?sslmode=verify-full"}
    spark = spark_catalogs(properties)
    assert spark["spark.sql.catalog.lake.uri"] == "jdbc:postgresql://db:5432/lake"
    assert spark["spark.sql.catalog.lake.jdbc.user"] == "me"
    assert spark["spark.sql.catalog.lake.jdbc.password"] == "secret"
    assert spark["spark.sql.catalog.lake.jdbc.sslmode"] == "verify-full"


@pytest.mark.parametrize(
    ("properties", "names"),
    [
        ({"uri": "nonsense"}, "nonsense"),
        ({"type": "hive", "uri": "thrift://x"}, "hive"),
        ({"type": "rest", "uri": "http://x", "novelty": "1"}, "novelty"),
        ({"type": "sql", "warehouse": "file:///w", "uri": "postgresql://db/lake?connect_timeout=3"}, "connect_timeout"),
    ],
)
def test_what_spark_has_no_word_for_is_named(properties: dict[str, str], names: str) -> None:
    with pytest.raises(SettingsError, match=names):
        spark_catalogs(properties)


def test_a_rest_catalog_on_s3_has_the_same_store_on_both_sides() -> None:
    properties = {
        "uri": "https://x",
        "warehouse": "lake",
        "s3.endpoint": "http://127.0.0.1:1",
        "s3.region": "eu-west-1",
    }
    spark = spark_catalogs(properties)
    for catalog in ("lake", "stage"):
        assert spark[f"spark.sql.catalog.{catalog}.s3.endpoint"] == "http://127.0.0.1:1"
        assert spark[f"spark.sql.catalog.{catalog}.client.region"] == "eu-west-1"
        assert spark[f"spark.sql.catalog.{catalog}.io-impl"] == "org.apache.iceberg.aws.s3.S3FileIO"


def test_steps_read_s3_with_the_file_io_s_settings() -> None:
    told = hadoop_s3({"s3.endpoint": "http://s3", "s3.access-key-id": "a", "client.access-key-id": "b", "uri": "x"})
    assert told == {"fs.s3a.endpoint": "http://s3", "fs.s3a.access.key": "a", "fs.s3a.path.style.access": "true"}
    assert hadoop_s3({"type": "glue"}) == {}
