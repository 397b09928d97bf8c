"""PyIceberg's properties in Spark's and Hadoop's words, catalog by catalog; what has none is named.
Where the properties come from, and what workers can reach, is in test_catalog.py."""

from __future__ import annotations

import pytest

from lakehouse_assets.environment.catalog_in_spark import hadoop_s3, refuse_signing, spark_catalogs, translate
from lakehouse_assets.environment.env_reader import SettingsError

S3TABLES = "arn:aws:s3tables:us-east-1:123456789012:bucket/lake"


def of(catalog: str, properties: dict[str, str], *, live: bool = False) -> dict[str, str]:
    """The properties of one of Spark's catalogs."""
    prefix = f"spark.sql.catalog.{catalog}."
    conf = spark_catalogs(properties, live=live)
    return {n.removeprefix(prefix): v for n, v in conf.items() if n.startswith(prefix)}


@pytest.mark.parametrize("derby", [False, True])
def test_workers_have_catalogs_of_their_own_in_which_no_table_can_be_made(derby: bool) -> None:
    for properties in (
        {"type": "sql", "warehouse": "file:///w", "uri": "postgresql://me:secret@db/lake"},
        {"type": "glue", "warehouse": "s3://lake/warehouse", "glue.region": "eu-west-1"},
        {"type": "rest", "uri": "https://x", "warehouse": "lake", "credential": "id:secret"},
    ):
        conf = spark_catalogs(properties, derby=derby)
        uris = {conf[f"spark.sql.catalog.{name}.uri"] for name in ("lake", "stage")}
        assert all(":memory:" in uri for uri in uris)
        assert len(uris) == (2 if derby else 1), "Derby's databases are the whole JVM's"
        assert conf["spark.sql.catalog.lake.warehouse"].startswith("file:/dev/null/")
        assert "secret" not in str(conf)


def test_a_local_warehouse_needs_no_s3() -> None:
    properties = {"uri": "postgresql://[::1]:5433/lake?connect_timeout=3", "warehouse": "file:///w"}
    assert not {"io-impl", "s3.retry.num-retries"} & (of("lake", properties) | of("stage", properties)).keys()


@pytest.mark.parametrize("own", [None, "3"])
def test_java_has_patience_with_s3_unless_it_is_told_how_much(own: str | None) -> None:
    rest, glue = {"type": "rest", "uri": "https://x", "warehouse": "lake"}, {"type": "glue", "warehouse": "s3://lake"}
    given = {"s3.retry.num-retries": own} if own else {}
    for catalog in (
        of("lake", rest | given, live=True),
        of("stage", rest | given, live=True),
        of("lake", glue | given),
        of("stage", glue | given),
    ):
        assert catalog["s3.retry.num-retries"] == (own or "12")


# Glue


def test_workers_read_and_write_glues_tables_by_the_region_and_keys_of_s3() -> None:
    properties = {
        "type": "glue",
        "warehouse": "s3://lake/warehouse",
        "glue.region": "eu-west-1",
        "glue.endpoint": "https://glue.example.com",
        "glue.access-key-id": "glue's",
        "glue.secret-access-key": "glue's",
        "s3.access-key-id": "id",
        "s3.secret-access-key": "secret",
    }
    assert translate(properties) == ({}, [])
    for catalog in (of("lake", properties), of("stage", properties)):
        assert catalog["type"] == "jdbc"
        assert catalog["client.region"] == "eu-west-1"
        assert catalog["io-impl"] == "org.apache.iceberg.aws.s3.S3FileIO"
        assert catalog["s3.access-key-id"] == "id"
        assert not any("glue" in text for text in (*catalog, *catalog.values()))
    assert of("stage", properties | {"s3.region": "us-east-1"})["client.region"] == "us-east-1"


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"uri": "catalog.example.com"}, "LAKE__URI (uri) is not an http:// or https:// URL"),
        ({"uri": "postgresql://me:hunter2@db/lake"}, "LAKE__URI (uri) is not an http:// or https:// URL"),
        ({"s3.access-key-id": "hunter2"}, "LAKE__S3__SECRET_ACCESS_KEY (s3.secret-access-key) is missing"),
        ({"s3.secret-access-key": "hunter2"}, "LAKE__S3__ACCESS_KEY_ID (s3.access-key-id) is missing"),
        ({"s3.connect-timeout": "10"}, None),
        ({"s3.access-key-id": "id", "client.secret-access-key": "hunter2"}, None),
    ],
)
def test_values_that_can_not_work_are_named(changed: dict[str, str], says: str | None) -> None:
    _, problems = translate({"type": "rest", "uri": "https://x", "warehouse": "lake", **changed})
    assert len(problems) == (says is not None)
    assert says is None or (says in problems[0] and "hunter2" not in problems[0])


def test_what_java_has_no_property_for_is_named_with_what_to_do() -> None:
    properties = {
        "type": "glue",
        "client.access-key-id": "id",
        "client.secret-access-key": "hunter2",
        "client.profile-name": "me",
        "glue.novelty": "1",
    }
    with pytest.raises(SettingsError) as refused:
        spark_catalogs(properties)
    conf = str(refused.value)
    for name in ("CLIENT__PROFILE_NAME", "GLUE__NOVELTY"):
        assert f"PYICEBERG_CATALOG__LAKE__{name}" in conf
    assert "AWS_PROFILE" in conf
    assert "hunter2" not in conf


# REST


def test_oauth2_asks_java_for_what_pyiceberg_does() -> None:
    properties = {
        "uri": "https://polaris/api/catalog",
        "warehouse": "lake",
        "credential": "id:secret",
        "scope": "PRINCIPAL_ROLE:ALL",
        "oauth2-server-uri": "https://idp/token",
        "audience": "lake",
        "resource": "catalog",
        "header.polaris-realm": "prod",
    }
    spark = of("lake", properties, live=True)
    assert {name: spark[name] for name in properties} == properties
    assert spark["type"] == "rest"
    assert spark["rest.auth.type"] == "oauth2"
    assert spark["token-exchange-enabled"] == "false"
    assert spark["header.x-iceberg-access-delegation"] == "vended-credentials"  # PyIceberg's default
    assert of("stage", properties)["io-impl"] == "org.apache.iceberg.io.ResolvingFileIO"


def test_sigv4_signs_with_the_client_s_keys_and_region() -> None:
    properties = {
        "uri": "https://s3tables.us-east-1.amazonaws.com/iceberg",
        "warehouse": S3TABLES,
        "rest.sigv4-enabled": "True",
        "rest.signing-name": "s3tables",
        "client.region": "us-east-1",
        "client.access-key-id": "id",
        "client.secret-access-key": "secret",
        "client.session-token": "token",
    }
    spark = of("lake", properties, live=True)
    assert spark["rest.auth.type"] == "sigv4"
    assert spark["rest.auth.sigv4.delegate-auth-type"] == "none"
    assert spark["rest.signing-name"] == "s3tables"
    assert spark["rest.signing-region"] == "us-east-1"
    for catalog, prefixes in ((spark, ("rest", "s3")), (of("stage", properties), ("s3",))):
        assert catalog["client.region"] == "us-east-1"
        for prefix in prefixes:
            assert catalog[f"{prefix}.access-key-id"] == "id"
            assert catalog[f"{prefix}.secret-access-key"] == "secret"
            assert catalog[f"{prefix}.session-token"] == "token"


def test_a_rest_catalog_on_s3_has_the_same_store_on_both_sides() -> None:
    properties = {
        "uri": "https://x",
        "warehouse": "lake",
        "s3.endpoint": "http://127.0.0.1:1",
        "s3.region": "eu-west-1",
    }
    for catalog in ("lake", "stage"):
        spark = of(catalog, properties, live=True)
        assert spark["s3.endpoint"] == "http://127.0.0.1:1"
        assert spark["s3.path-style-access"] == "true"
        assert spark["client.region"] == "eu-west-1"
        assert spark["io-impl"] == "org.apache.iceberg.aws.s3.S3FileIO"


def test_virtual_addressing_is_not_dropped() -> None:
    properties = {"uri": "https://x", "s3.endpoint": "https://s3.example.com", "s3.force-virtual-addressing": "True"}
    assert of("lake", properties, live=True)["s3.path-style-access"] == "false"
    assert hadoop_s3(properties)["fs.s3a.path.style.access"] == "false"


def test_what_a_table_comes_with_is_the_stage_s_and_no_more() -> None:
    properties = {"uri": "https://x", "warehouse": "lake", "credential": "id:secret"}
    vended = {"s3.access-key-id": "v", "s3.secret-access-key": "w", "s3.session-token": "t", "client.region": "r"}
    spark = spark_catalogs(properties, {**properties, **vended, "write.format.default": "parquet"})
    stage = {n.rpartition("stage.")[2]: v for n, v in spark.items() if ".stage." in n}
    assert vended.items() <= stage.items()
    assert not {"credential", "write.format.default"} & stage.keys()
    live = spark_catalogs(properties, {**properties, **vended}, live=True)
    assert "spark.sql.catalog.lake.s3.access-key-id" not in live


@pytest.mark.parametrize(
    "asked",
    [{"header.x-iceberg-access-delegation": "vended-credentials,remote-signing"}, {"s3.signer": "S3V4RestSigner"}],
)
def test_a_catalog_that_signs_remotely_is_refused(asked: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="can't be signed remotely"):
        spark_catalogs({"uri": "https://x", "warehouse": "lake", **asked})


def test_a_table_that_comes_with_signatures_is_refused() -> None:
    refuse_signing({"s3.access-key-id": "a"})
    with pytest.raises(SettingsError, match="vended-credentials"):
        refuse_signing({"s3.remote-signing-enabled": "true"})


# keys that are renewed

REST = {
    "type": "rest",
    "uri": "https://polaris/api/catalog",
    "warehouse": "lake",
    "credential": "id:secret",
    "scope": "ALL",
    "header.polaris-realm": "r",
}
GIVEN = {
    "s3.access-key-id": "a",
    "s3.secret-access-key": "b",
    "s3.session-token": "c",
    "s3.session-token-expires-at-ms": "1",
    "client.refresh-credentials-endpoint": "https://polaris/api/catalog/v1/lake/namespaces/n/tables/t/credentials",
}


def test_stage_asks_the_catalog_itself_for_keys_anew() -> None:
    conf = spark_catalogs(REST, REST | GIVEN)
    stage = {n.removeprefix("spark.sql.catalog.stage."): v for n, v in conf.items() if "catalog.stage." in n}
    provider = {
        n.removeprefix("client.credentials-provider."): v for n, v in stage.items() if "credentials-provider." in n
    }
    assert stage["uri"].startswith("jdbc:")
    assert provider["uri"] == REST["uri"]
    assert provider["credentials.uri"] == GIVEN["client.refresh-credentials-endpoint"]
    assert {n: provider[n] for n in ("credential", "scope", "rest.auth.type", "header.polaris-realm")} == {
        "credential": "id:secret",
        "scope": "ALL",
        "rest.auth.type": "oauth2",
        "header.polaris-realm": "r",
    }
    keys = [name for name in GIVEN if name.startswith("s3.")]
    assert {name: provider[name] for name in keys} == {name: GIVEN[name] for name in keys}
    # Iceberg 1.10 would take keys, and its own way of refreshing, over the provider.
    assert not stage.keys() & set(keys)
    assert stage["client.refresh-credentials-enabled"] == "false"


@pytest.mark.parametrize(
    "given", [{"client.refresh-credentials-enabled": "false"}, {"client.refresh-credentials-endpoint": ""}]
)
def test_a_catalog_that_renews_no_keys_is_not_asked(given: dict[str, str]) -> None:
    conf = spark_catalogs(REST, REST | GIVEN | given)
    assert conf["spark.sql.catalog.stage.s3.access-key-id"] == "a"
    assert not any("credentials-provider" in name for name in conf)


# refusals


@pytest.mark.parametrize(
    ("properties", "names"),
    [
        ({"uri": "nonsense"}, "URI"),
        ({"type": "hive", "uri": "thrift://x"}, "hive"),
        ({"type": "rest", "uri": "http://x", "novelty": "1"}, "NOVELTY"),
        ({"type": "rest", "uri": "http://x", "s3.acess-key-id": "1"}, "S3__ACESS_KEY_ID"),
        ({"type": "rest", "uri": "http://x", "header.Authorization": "Bearer x"}, "LAKE__TOKEN"),
        ({"type": "rest", "warehouse": "lake"}, "URI"),
        ({"type": "sql", "warehouse": "file:///w", "uri": "postgresql:///lake"}, "no host"),
        (
            {"type": "sql", "warehouse": "file:///w", "uri": "postgresql://me:p@ss@db/lake"},
            "an @ in its password; write %40",
        ),
        ({"type": "sql", "warehouse": "file:///w", "uri": "mysql://db/lake"}, "mysql"),
    ],
)
def test_what_spark_has_no_word_for_is_named(properties: dict[str, str], names: str) -> None:
    with pytest.raises(SettingsError, match=names):
        spark_catalogs(properties)


@pytest.mark.parametrize(
    "properties",
    [
        {"uri": "nonsense://me:hunter2@db/lake"},
        {"uri": "me:hunter2@db/lake"},
        {"type": "sql", "uri": "mysql://me:hunter2@db/lake"},
        {"type": "sql", "uri": "postgresql://me:hunter2@db:port/lake"},
        {"type": "hive", "uri": "thrift://me:hunter2@db"},
        {"type": "rest", "uri": "https://x", "header.Authorization": "hunter2", "s3.novelty": "hunter2"},
    ],
)
def test_no_refusal_tells_a_value_that_may_be_secret(properties: dict[str, str]) -> None:
    _, problems = translate(properties)
    assert problems
    assert "hunter2" not in " ".join(problems)


def test_steps_read_s3_with_the_file_io_s_settings() -> None:
    conf = hadoop_s3({"s3.endpoint": "http://s3", "s3.access-key-id": "a", "client.access-key-id": "b", "uri": "x"})
    assert conf == {"fs.s3a.endpoint": "http://s3", "fs.s3a.access.key": "a", "fs.s3a.path.style.access": "true"}
    assert hadoop_s3({"type": "glue"}) == {}
