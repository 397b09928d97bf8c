"""Where the configuration of ``lake`` comes from, what workers can't reach of it, and opening it.
Its translation for Spark is in test_spark_catalog.py."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.exceptions import ForbiddenError, ServiceUnavailableError, TooManyRequestsError
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import _import_retry_strategy
from sqlalchemy.exc import OperationalError

from resources.catalog import (
    PATIENCE,
    CatalogUnavailable,
    catalog_problems,
    catalog_properties,
    load_lake,
    outlasting,
    remote_problems,
)
from resources.remote import Emr
from resources.s3_patience import RETRIES
from resources.secrets import public
from resources.settings import Compute, Settings, SettingsError, read_settings
from resources.spark_catalog import spark_catalogs
from tests.conftest import ROOT


def of(catalog: str, properties: dict[str, str]) -> dict[str, str]:
    """The properties of one of Spark's catalogs."""
    prefix = f"spark.sql.catalog.{catalog}."
    return {n.removeprefix(prefix): v for n, v in spark_catalogs(properties).items() if n.startswith(prefix)}


def configure(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name}", value)


# where the configuration comes from


def test_without_configuration_it_is_the_embedded_one(settings: Settings) -> None:
    spark = of("lake", catalog_properties(settings))
    assert spark["type"] == "jdbc"
    assert spark["uri"] == f"jdbc:sqlite:{settings.home}/catalog.db"
    assert spark["warehouse"] == settings.warehouse
    assert catalog_problems(settings, [Compute.LOCAL]) == []


def test_a_uri_is_enough(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, URI="sqlite:////srv/lake.db")
    spark = of("lake", catalog_properties(settings))
    assert spark["uri"] == "jdbc:sqlite:/srv/lake.db"
    assert spark["warehouse"] == settings.warehouse


def test_pyicebergs_files_have_patience_with_s3_unless_another_strategy_is_given(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "s3.retry-strategy-impl"
    given = catalog_properties(settings)
    assert _import_retry_strategy(given[name]).max_attempts == RETRIES
    assert load_file_io(given, "s3://lake/a").properties[name] == load_lake(settings).properties[name] == given[name]
    assert public(given)[name] == given[name]
    configure(monkeypatch, URI="https://x", WAREHOUSE="lake", S3__RETRY_STRATEGY_IMPL="ours.Strategy")
    assert catalog_properties(settings)[name] == "ours.Strategy"


def test_a_mapping_in_the_file_is_named_by_its_dotted_names(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = "catalog:\n  lake:\n    uri: https://x\n    auth:\n      type: basic\n      basic:\n        username: me\n"
    (tmp_path / ".pyiceberg.yaml").write_text(told)
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    problems = " ".join(catalog_problems(settings, [Compute.LOCAL]))
    assert "(auth.type)" in problems and "(auth.basic.username)" in problems


def test_a_worker_puts_its_own_secrets_to_what_it_was_told(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {"type": "rest", "uri": "https://x", "warehouse": "lake", "credential": "id:secret"} | PATIENCE
    told = public(whole)
    assert "credential" not in told
    configure(monkeypatch, CREDENTIAL="id:secret")
    assert catalog_properties(settings, told) == whole


BROKEN = {
    "empty": b"",
    "a list": b"- catalog\n",
    "a tab": b"catalog:\n\tlake:\n\t\turi: https://me:hunter2@x\n",
    "a brace": b"catalog:\n  lake: {uri: https://me:hunter2@x}\n",
    "binary": b"\x00\x01",
    "no text": b"catalog: \xff\xfe",
    "no catalogs": b"catalog:\n",
    "a name only": b"catalog:\n  lake:\n",
    "a URI only": b"catalog:\n  lake: https://me:hunter2@x\n",
    "catalogs in a list": b"catalog:\n  - lake\n",
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("beside", [{}, {"CREDENTIAL": "id:hunter2"}])
def test_a_file_that_pyiceberg_can_not_take_is_told_by_its_name_beside_all_others(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes, beside: dict[str, str]
) -> None:
    (tmp_path / ".pyiceberg.yaml").write_bytes(content)
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    configure(monkeypatch, **beside)
    told = catalog_problems(replace(settings, staging="s3://key:secret@lake"), [Compute.ECS])
    assert sum(str(tmp_path / ".pyiceberg.yaml") in problem for problem in told) == 1
    assert [any(part in p for p in told) for part in ("LAKEHOUSE_STAGING", "LAKEHOUSE_LANDING")] == [True, True]
    assert not any("hunter2" in problem or "LAKE__URI" in problem for problem in told)
    with pytest.raises(SettingsError, match=r"\.pyiceberg\.yaml"):
        catalog_properties(settings)


def test_pyiceberg_is_not_imported_over_a_file_that_it_ends_on(tmp_path: Path) -> None:
    """It reads the file when it is imported."""
    (tmp_path / ".pyiceberg.yaml").touch()
    environment = {**os.environ, "PYICEBERG_HOME": str(tmp_path), "LAKEHOUSE_MAX_WORKERS": "many"}
    load = [sys.executable, "-c", "import lakehouse_assets.definitions"]
    done = subprocess.run(load, env=environment, cwd=ROOT, capture_output=True, text=True)
    _, _, told = done.stderr.partition("SettingsError: ")
    assert f"{tmp_path}/.pyiceberg.yaml" in told and "LAKEHOUSE_MAX_WORKERS" in told


def test_a_worker_without_its_secret_uri_is_told_what_is_missing(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = public({"type": "sql", "uri": "postgresql://me:hunter2@db/lake", "warehouse": "s3://lake"})
    with pytest.raises(SettingsError, match=r"PYICEBERG_CATALOG__LAKE__URI \(uri\) is missing.*own environment"):
        catalog_properties(settings, told)
    configure(monkeypatch, TYPE="sql")
    (missing,) = catalog_problems(settings, [Compute.LOCAL])
    assert "LAKE__URI (uri) is missing" in missing and "worker" not in missing


def test_nor_does_opening_the_catalog(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, URI="nonsense://me:hunter2@db/lake")
    with pytest.raises(SettingsError, match="LAKE__URI") as refused:
        load_lake(settings)
    assert "hunter2" not in str(refused.value)


def test_all_problems_are_told_at_once(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, URI="sqlite:////srv/lake.db", NOVELTY="1", S3__ANONYMOUS="true", WAREHOUSE="s3://k:v@lake")
    settings = replace(settings, landing="s3://key:secret@bucket/landing")
    told = catalog_problems(settings, [Compute.LOCAL, Compute.ECS])
    for part in (
        "LAKE__NOVELTY",
        "LAKE__S3__ANONYMOUS",
        "WAREHOUSE (warehouse) has a secret",
        "LAKEHOUSE_LANDING has a",
    ):
        assert sum(part in problem for problem in told) == 1, part
    assert any("LAKE__URI (uri) is a SQLite file" in problem and "ecs" in problem for problem in told)
    assert not any("k:v" in problem or "key:secret" in problem for problem in told)


def test_a_mistyped_variable_is_no_setting(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_ECS_SUBNET", "subnet-0a")
    (told,) = catalog_problems(settings, [Compute.LOCAL])
    assert told == "LAKEHOUSE_ECS_SUBNET is unknown; did you mean LAKEHOUSE_ECS_SUBNETS?"


@pytest.mark.parametrize("compute", [Compute.EMR, Compute.EMR_SERVERLESS])
def test_the_prefix_code_is_shipped_to_is_no_place_for_keys(compute: Compute) -> None:
    env = {
        "LAKEHOUSE_STAGING": "s3://lake/staging",
        "LAKEHOUSE_CODE": "s3://AKIA:hunter2@lake/code",
        "LAKEHOUSE_EMR_CLUSTER": "j-2AX",
        "LAKEHOUSE_EMR_SERVERLESS_APPLICATION": "00f1",
        "LAKEHOUSE_EMR_SERVERLESS_ROLE": "arn:aws:iam::123456789012:role/x",
    }
    told = catalog_problems(read_settings(env, also={compute}), [Compute.LOCAL])
    assert [problem.partition(" in it")[0] for problem in told] == ["LAKEHOUSE_CODE has a secret"]


def test_a_folder_with_a_password_is_not_quoted(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, URI="postgresql://db/lake", WAREHOUSE="file://u:hunter2@h/w")
    told = " ".join(catalog_problems(replace(settings, landing="file://u:hunter2@h/p"), [Compute.ECS]))
    assert told.count("is …, a folder") == 2 and "hunter2" not in told


# workers elsewhere


def test_workers_elsewhere_can_t_reach_the_embedded_catalog(settings: Settings) -> None:
    told = remote_problems(settings, [Compute.LOCAL, Compute.EMR, Compute.ECS])
    for part in ("LAKE__URI", "LAKE__WAREHOUSE", "LAKEHOUSE_LANDING"):
        assert sum(part in problem and "ecs, emr" in problem for problem in told) == 1, part
    assert remote_problems(settings, [Compute.LOCAL, Compute.INLINE]) == []


def test_what_workers_elsewhere_reach_is_fine(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, URI="http://127.0.0.1:8181", WAREHOUSE="s3://lake/warehouse")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    settings = replace(settings, landing="s3://lake/landing", staging="s3://lake/staging")
    assert catalog_problems(settings, list(Compute)) == []


@pytest.mark.parametrize(
    ("variables", "refused"),
    [
        ({"TYPE": "glue", "WAREHOUSE": "bucket/wh"}, True),
        ({"TYPE": "glue", "WAREHOUSE": "s3:/b/wh"}, True),
        ({"TYPE": "glue"}, False),
        ({"URI": "postgresql://db/lake", "WAREHOUSE": "data/wh"}, True),
        ({"URI": "postgresql://db/lake", "WAREHOUSE": "s3:///wh"}, True),
        ({"URI": "postgresql://db/lake", "WAREHOUSE": "s3://b"}, False),
        ({"URI": "https://x", "WAREHOUSE": "lake"}, False),
        ({"TYPE": "glue", "WAREHOUSE": "arn:aws:s3tables:eu-west-1:123456789012:bucket/b"}, False),
    ],
)
def test_a_warehouse_for_workers_elsewhere_is_a_bucket_s(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], refused: bool
) -> None:
    configure(monkeypatch, **variables)
    told = [problem for problem in remote_problems(settings, [Compute.ECS]) if "LAKE__WAREHOUSE" in problem]
    assert len(told) == refused and all("no s3://bucket/prefix" in problem for problem in told)


@pytest.mark.parametrize(
    ("variables", "file", "says"),
    [
        ({}, "", "AWS_DEFAULT_REGION is not set"),
        ({"AWS_REGION": "eu-west-1"}, "", "AWS_DEFAULT_REGION is not set"),  # which boto3 doesn't read
        ({"AWS_PROFILE": "data"}, "[default]\nregion = eu-west-1\n", "AWS_PROFILE: .*data"),
        ({"AWS_PROFILE": "data"}, "[profile data]\nregion = eu-west-1\n", None),
        ({"AWS_DEFAULT_REGION": "eu-west-1"}, "", None),
        ({"AWS_DEFAULT_REGION": "eu west 1"}, "", "AWS_DEFAULT_REGION .*'eu west 1'"),
        (
            {"AWS_PROFILE": "data"},
            "[profile data]\nregion = eu_west_1\n",
            "AWS_DEFAULT_REGION .*profile's.*'eu_west_1'",
        ),
        ({"AWS_PROFILE": "nope", "AWS_DEFAULT_REGION": "eu-west-1"}, "", "AWS_PROFILE: .*nope"),
    ],
)
def test_a_region_is_needed_where_boto3_looks_for_it(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    variables: dict[str, str],
    file: str,
    says: str | None,
) -> None:
    (tmp_path / "config").write_text(file)
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE", "AWS_DEFAULT_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"AWS_CONFIG_FILE": str(tmp_path / "config"), **variables}.items():
        monkeypatch.setenv(name, value)
    told = [problem for problem in remote_problems(settings, [Compute.EMR]) if "AWS_" in problem]
    assert len(told) == (says is not None)
    assert says is None or re.match(says, told[0])


@pytest.mark.parametrize(
    ("told", "refused"), [(None, True), ("[1]", True), ("{}", True), ('{"Instances": {"KeepJobFlowAlive": 1}}', False)]
)
def test_a_cluster_of_the_run_s_own_is_told_by_a_file(
    settings: Settings, tmp_path: Path, told: str | None, refused: bool
) -> None:
    file = tmp_path / "cluster.json"
    if told is not None:
        file.write_text(told)
    settings = replace(settings, emr=Emr("transient", str(file), "s3://lake/code"))
    problems = [problem for problem in remote_problems(settings, [Compute.EMR]) if "LAKEHOUSE_EMR_CLUSTER" in problem]
    assert len(problems) == refused and all(str(file) in problem for problem in problems)


# a catalog that won't serve


def test_a_busy_catalog_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resources.catalog.random.uniform", lambda *_: 0)
    answers: list[object] = [ServiceUnavailableError("busy"), TooManyRequestsError("slower"), "open"]

    def call() -> object:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert outlasting(call) == "open"


def test_a_catalog_that_refuses_is_asked_once() -> None:
    asked = []

    def call() -> None:
        asked.append(1)
        raise ForbiddenError("ForbiddenException: not yours")

    with pytest.raises(CatalogUnavailable, match="'lake' can't be used: ForbiddenError: ForbiddenException: not yours"):
        outlasting(call)
    assert len(asked) == 1


def test_so_is_glue_without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    from botocore.exceptions import NoCredentialsError

    def call() -> None:
        raise NoCredentialsError

    with pytest.raises(CatalogUnavailable, match="NoCredentialsError: Unable to locate credentials"):
        outlasting(call)


# the embedded catalog under a lock


def test_a_commit_that_a_reader_of_the_file_held_up_is_seen_by_nobody(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite refuses the COMMIT, not the UPDATE before it, and leaves the transaction open."""
    settings.home.mkdir()
    configure(monkeypatch, URI=f"sqlite:///{settings.home}/catalog.db?timeout=0.1")
    lake, rows = load_lake(settings), pa.table({"n": [1]})
    lake.create_namespace("demo")
    table = lake.create_table("demo.numbers", rows.schema)
    with closing(sqlite3.connect(settings.home / "catalog.db")) as reader:
        unfinished = reader.execute("SELECT 1 FROM iceberg_tables UNION ALL SELECT 2 FROM iceberg_tables")
        unfinished.fetchone()
        with pytest.raises(OperationalError, match="locked"):
            table.append(rows)
        assert lake.load_table("demo.numbers").snapshots() == []
        unfinished.close()
    lake.load_table("demo.numbers").append(rows)
    assert len(load_lake(settings).load_table("demo.numbers").snapshots()) == 1
