"""What can't work of the catalog and of the places it names, for workers here and elsewhere.
Where the configuration comes from is in test_catalog.py, the services' own settings in test_settings.py."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from lakehouse_assets.environment.catalog import catalog_problems
from lakehouse_assets.environment.computes import BUILT_IN
from lakehouse_assets.environment.env_reader import SettingsError
from lakehouse_assets.environment.settings import Settings, read_settings
from lakehouse_assets.extensions.aws.computes import Emr
from tests.unit.environment.test_catalog import configure


def test_all_problems_are_told_at_once(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, URI="sqlite:////srv/lake.db", NOVELTY="1", S3__ANONYMOUS="true", WAREHOUSE="s3://k:v@lake")
    settings = replace(settings, landing="s3://key:secret@bucket/landing")
    problems = catalog_problems(settings, {"local": ["shop.orders"], "ecs": ["shop.orders"]})
    for part in (
        "LAKE__NOVELTY",
        "LAKE__S3__ANONYMOUS",
        "WAREHOUSE (warehouse) contains a secret",
        "LAKEHOUSE_LANDING contains a",
    ):
        assert sum(part in problem for problem in problems) == 1, part
    assert any("LAKE__URI (uri) is a SQLite file" in problem and "ecs" in problem for problem in problems)
    assert not any("k:v" in problem or "key:secret" in problem for problem in problems)


def test_a_mistyped_variable_is_no_setting(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_ECS_SUBNET", "subnet-0a")
    (problem,) = catalog_problems(settings, {"local": ["shop.orders"]})
    assert problem == "LAKEHOUSE_ECS_SUBNET is unknown; did you mean LAKEHOUSE_ECS_SUBNETS?"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("CATALOG_LAKE_URI", "URI"),
        ("CATALOGS__LAKE__URI", "URI"),
        ("CATALOG__lake_uri", "URI"),
        ("CATALOG___LAKE__URI", "URI"),
        ("_CATALOG__LAKE__URI", "URI"),
        ("LAKE__URI", "URI"),
        ("catalogue__lake__warehouse", "WAREHOUSE"),
        ("CATLOG__LAKE__S3__ENDPOINT", "S3__ENDPOINT"),
        ("CATALOG_LAKE_GLUE_REGION", "GLUE__REGION"),
    ],
)
def test_a_mistyped_property_is_told_with_the_one_meant(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, name: str, meant: str
) -> None:
    """PyIceberg would ignore it, and the catalog would be the embedded one."""
    monkeypatch.setenv(f"PYICEBERG_{name}", "http://u:hunter2@127.0.0.1:8181")
    (problem,) = catalog_problems(settings, {"local": ["shop.orders"]})
    assert problem == f"PYICEBERG_{name} is unknown; did you mean PYICEBERG_CATALOG__LAKE__{meant}?"


@pytest.mark.parametrize(
    "name",
    [
        "PYICEBERG_CATALOG__OTHER__URI",
        "PYICEBERG_CATALOG__OTHER_LAKE__S3__ENDPOINT",
        "pyiceberg_catalog__other__uri",
        "PYICEBERG_HOME",
        "PYICEBERG_DEFAULT_CATALOG",
        "PYICEBERG_MAX_WORKERS",
        "PYICEBERG_LEGACY_CURRENT_SNAPSHOT_ID",
        "PYICEBERG_DOWNCAST_NS_TIMESTAMP_TO_US_ON_WRITE",
        "PYICEBERG",
        "CATALOG_LAKE_URI",
    ],
)
def test_other_catalogs_and_pyicebergs_own_settings_are_fine(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "1")
    assert catalog_problems(settings, {"local": ["shop.orders"]}) == []


def test_a_property_of_the_lake_is_checked_in_lower_case_too(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("pyiceberg_catalog__lake__uri", "ftp://h")
    (problem,) = catalog_problems(settings, {"local": ["shop.orders"]})
    assert "LAKE__URI (uri) is not of a known catalog type" in problem


@pytest.mark.parametrize("compute", ["emr", "emr_serverless", "emr_eks"])
def test_the_prefix_code_is_shipped_to_is_no_place_for_keys(compute: str) -> None:
    env = {
        "LAKEHOUSE_STAGING": "s3://lake/staging",
        "LAKEHOUSE_CODE": "s3://AKIA:hunter2@lake/code",
        "LAKEHOUSE_EMR_CLUSTER": "j-2AX",
        "LAKEHOUSE_EMR_SERVERLESS_APPLICATION": "00f1",
        "LAKEHOUSE_EMR_SERVERLESS_ROLE": "arn:aws:iam::123456789012:role/x",
        "LAKEHOUSE_EMR_EKS_VIRTUAL_CLUSTER": "9wvd1yhms5tk1k8chrn525z34",
        "LAKEHOUSE_EMR_EKS_ROLE": "arn:aws:iam::123456789012:role/x",
        "LAKEHOUSE_EMR_EKS_RELEASE": "emr-7.9.0-latest",
    }
    with pytest.raises(SettingsError, match="LAKEHOUSE_CODE contains a secret"):
        read_settings(env, also={compute: ["shop.orders"]})


def test_a_folder_with_a_password_is_not_quoted(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, URI="postgresql://db/lake", WAREHOUSE="file://u:hunter2@h/w")
    problems = " ".join(catalog_problems(replace(settings, landing="file://u:hunter2@h/p"), {"ecs": ["shop.orders"]}))
    assert problems.count("is …, a folder") == 2
    assert "hunter2" not in problems


# workers elsewhere


def test_workers_elsewhere_can_t_reach_the_embedded_catalog(settings: Settings) -> None:
    problems = catalog_problems(settings, {"local": ["shop.orders"], "emr": ["shop.orders"], "ecs": ["shop.orders"]})
    for part in ("LAKE__URI", "LAKE__WAREHOUSE", "LAKEHOUSE_LANDING"):
        assert (
            sum(part in problem and "on emr (chosen by table 'shop.orders'), ecs (" in problem for problem in problems)
            == 1
        ), part
    assert catalog_problems(settings, {"local": ["shop.orders"], "inline": ["shop.orders"]}) == []
    chosen = {"ecs": (), "emr": ("shop.orders", "shop.items")}
    problems = catalog_problems(replace(settings, compute="ecs"), chosen)
    on = "on ecs, emr (chosen by table 'shop.orders' and 1 more) can't"
    assert sum(on in problem for problem in problems) == 3


def test_what_workers_elsewhere_reach_is_fine(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, URI="http://127.0.0.1:8181", WAREHOUSE="s3://lake/warehouse")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    settings = replace(settings, landing="s3://lake/landing", staging="s3://lake/staging")
    assert catalog_problems(settings, dict.fromkeys(BUILT_IN, ("shop.orders",))) == []


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
    problems = [
        problem for problem in catalog_problems(settings, {"ecs": ["shop.orders"]}) if "LAKE__WAREHOUSE" in problem
    ]
    assert len(problems) == refused
    assert all("not of the form s3://bucket/prefix" in problem for problem in problems)


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
    settings = replace(settings, computes={"emr": Emr("id", "j-2AX", "s3://lake/code")})
    problems = [problem for problem in catalog_problems(settings, {"emr": ["shop.orders"]}) if "AWS_" in problem]
    assert len(problems) == (says is not None)
    assert says is None or re.match(says, problems[0])


@pytest.mark.parametrize(
    ("content", "refused"),
    [(None, True), ("[1]", True), ("{}", True), ('{"Instances": {"KeepJobFlowAlive": 1}}', False)],
)
def test_a_cluster_of_the_run_s_own_is_described_by_a_file(
    settings: Settings, tmp_path: Path, content: str | None, refused: bool
) -> None:
    file = tmp_path / "cluster.json"
    if content is not None:
        file.write_text(content)
    settings = replace(settings, computes={"emr": Emr("transient", str(file), "s3://lake/code")})
    problems = [
        problem
        for problem in catalog_problems(settings, {"emr": ["shop.orders"]})
        if "LAKEHOUSE_EMR_CLUSTER" in problem
    ]
    assert len(problems) == refused
    assert all(str(file) in problem for problem in problems)
