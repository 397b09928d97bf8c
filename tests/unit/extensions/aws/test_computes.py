"""Settings of ECS and of what EMR runs on: refused when the location loads, all problems at once, each by its name."""

from __future__ import annotations

import pytest

from lakehouse_assets.environment.computes import BUILT_IN
from lakehouse_assets.environment.env_reader import SettingsError
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.environment.sizes import Size

ECS = {
    "LAKEHOUSE_COMPUTE": "ecs",
    "LAKEHOUSE_STAGING": "s3://lake/staging",
    "LAKEHOUSE_ECS_CLUSTER": "data",
    "LAKEHOUSE_ECS_TASK_DEFINITION": "lakehouse-worker:7",
    "LAKEHOUSE_ECS_SUBNETS": "subnet-0a1b, subnet-2c3d",
}
EMR = {
    "LAKEHOUSE_COMPUTE": "emr",
    "LAKEHOUSE_STAGING": "s3://lake/staging",
    "LAKEHOUSE_CODE": "s3://lake/code/",
    "LAKEHOUSE_EMR_CLUSTER": "j-2AXXXXXXGAPLF",
}


def problems(env: dict[str, str], **also: object) -> str:
    with pytest.raises(SettingsError) as refused:
        read_settings(env, **also)
    return str(refused.value)


def test_ecs_has_what_it_needs() -> None:
    ecs = read_settings(ECS).computes["ecs"]
    assert (ecs.cluster, ecs.subnets, ecs.container) == ("data", ("subnet-0a1b", "subnet-2c3d"), "worker")
    assert ecs.capacity == {"FARGATE": 1}
    assert not ecs.public_ip
    assert ecs.sized(Size(3))[1]
    spot = read_settings(ECS | {"LAKEHOUSE_ECS_CAPACITY": "FARGATE_SPOT=3,FARGATE=1"}).computes["ecs"]
    assert spot.capacity == {"FARGATE_SPOT": 3, "FARGATE": 1}


def test_what_is_missing_is_told_together() -> None:
    message = problems({"LAKEHOUSE_COMPUTE": "ecs", "LAKEHOUSE_MAX_WORKERS": "many"})
    for name in ("STAGING", "ECS_CLUSTER", "ECS_TASK_DEFINITION", "ECS_SUBNETS", "MAX_WORKERS"):
        assert f"LAKEHOUSE_{name}" in message


def test_what_a_table_chose_is_needed_too() -> None:
    assert list(read_settings({}, also={"inline": ["shop.orders"]}).computes) == ["local", "inline"]
    message = problems(ECS, also=dict.fromkeys(("emr", "emr_serverless", "emr_eks"), ("shop.orders",)))
    eks = ("EMR_EKS_VIRTUAL_CLUSTER", "EMR_EKS_ROLE", "EMR_EKS_RELEASE")
    for name in ("EMR_CLUSTER", "CODE", "EMR_SERVERLESS_APPLICATION", "EMR_SERVERLESS_ROLE", *eks):
        assert message.count(f"LAKEHOUSE_{name} ") == 1
    assert "LAKEHOUSE_EMR_CLUSTER is not set (emr, chosen by table 'shop.orders', needs it" in message
    message = problems({"LAKEHOUSE_COMPUTE": "ecs"}, also={"emr": ["shop.orders"]})
    assert "LAKEHOUSE_ECS_CLUSTER is not set (LAKEHOUSE_COMPUTE=ecs needs it" in message


def test_the_table_that_chose_is_named_with_what_it_needs() -> None:
    message = problems({}, also={"emr": ["shop.orders", "shop.items", "shop.days"], "ecs": ["shop.large"]})
    assert "LAKEHOUSE_EMR_CLUSTER is not set (emr, chosen by table 'shop.orders' and 2 more, needs it, such" in message
    assert "LAKEHOUSE_ECS_CLUSTER is not set (ecs, chosen by table 'shop.large', needs it" in message
    message = problems({"LAKEHOUSE_STAGING": "/mnt/staging"}, also={"emr": ["shop.orders"]})
    assert "LAKEHOUSE_STAGING=/mnt/staging is not an s3:// prefix (emr, chosen by table 'shop.orders', needs" in message
    message = problems({"LAKEHOUSE_COMPUTE": "ecs"}, also={"ecs": ["shop.large"], "emr": ["shop.orders"]})
    assert "LAKEHOUSE_STAGING is not set (LAKEHOUSE_COMPUTE=ecs needs it" in message


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"LAKEHOUSE_ECS_SUBNETS": "subnet-0a1b,vpc-1"}, "LAKEHOUSE_ECS_SUBNETS: vpc-1 is not of the form"),
        ({"LAKEHOUSE_ECS_CAPACITY": "FARGATE=1,workers=1"}, "either Fargate's providers or EC2's"),
        ({"LAKEHOUSE_ECS_PUBLIC_IP": "yes"}, "LAKEHOUSE_ECS_PUBLIC_IP='yes'"),
        ({"LAKEHOUSE_ECS_VCPUS": "3", "LAKEHOUSE_ECS_MEMORY_GIB": "8"}, "3 vCPUs; Fargate offers 0.25, 0.5, 1"),
        (
            {"LAKEHOUSE_ECS_VCPUS": "0.5", "LAKEHOUSE_ECS_MEMORY_GIB": "1"},
            "LAKEHOUSE_ECS_MEMORY_GIB=1: a worker needs at least 2 GiB",
        ),
        (
            {"LAKEHOUSE_ECS_MEMORY_GIB": "1.5", "LAKEHOUSE_ECS_CAPACITY": "instances"},
            "LAKEHOUSE_ECS_MEMORY_GIB=1.5: a worker needs at least 2 GiB",
        ),
        ({"LAKEHOUSE_ECS_VCPUS": "four"}, "LAKEHOUSE_ECS_VCPUS='four' is not a number"),
        ({"LAKEHOUSE_ECS_VCPUS": "-2"}, "LAKEHOUSE_ECS_VCPUS='-2' is not a number above 0"),
        ({"LAKEHOUSE_ECS_MEMORY_GIB": "inf"}, "LAKEHOUSE_ECS_MEMORY_GIB='inf' is not a number above 0"),
        ({"LAKEHOUSE_ECS_MEMORY_GIB": "nan"}, "LAKEHOUSE_ECS_MEMORY_GIB='nan' is not a number above 0"),
        ({"LAKEHOUSE_ECS_DISK_GIB": "-5"}, "LAKEHOUSE_ECS_DISK_GIB='-5' is not a whole number above 0"),
        ({"LAKEHOUSE_ECS_DISK_GIB": "50.5"}, "LAKEHOUSE_ECS_DISK_GIB='50.5' is not a whole number above 0"),
        ({"LAKEHOUSE_ECS_SUBNETS": ","}, "LAKEHOUSE_ECS_SUBNETS=',' is an empty list"),
        ({"LAKEHOUSE_ECS_CAPACITY": " , "}, "LAKEHOUSE_ECS_CAPACITY=',' is an empty list"),
        ({"LAKEHOUSE_ECS_CAPACITY": "FARGATE=3,FARGATE=1"}, "LAKEHOUSE_ECS_CAPACITY: a provider is listed twice"),
        ({"LAKEHOUSE_ECS_CAPACITY": "FARGATE=1001"}, "LAKEHOUSE_ECS_CAPACITY: a weight is more than 1000"),
        ({"LAKEHOUSE_ECS_CAPACITY": "a=0,b=0"}, "LAKEHOUSE_ECS_CAPACITY: all weights are 0"),
        (
            {"LAKEHOUSE_ECS_CAPACITY": "fargate_spot=3"},
            "fargate_spot is not a capacity provider",
        ),
        ({"LAKEHOUSE_ECS_CAPACITY": "FARGATE-SPOT"}, "FARGATE-SPOT is not a capacity provider"),
        ({"LAKEHOUSE_ECS_CAPACITY": "mine", "LAKEHOUSE_ECS_PUBLIC_IP": "true"}, "LAKEHOUSE_ECS_PUBLIC_IP=true works"),
        ({"LAKEHOUSE_STAGING": "/mnt/staging"}, "LAKEHOUSE_STAGING=/mnt/staging is not an s3:// prefix"),
    ],
)
def test_what_can_not_work_on_ecs_is_named(changed: dict[str, str], says: str) -> None:
    assert says in problems(ECS | changed)


@pytest.mark.parametrize("pair", [("8GB", "2"), ("0,5", "1"), ("-1", "2")])
def test_what_is_no_number_is_not_called_unfitting_as_well(pair: tuple[str, str]) -> None:
    message = problems(ECS | dict(zip(("LAKEHOUSE_ECS_MEMORY_GIB", "LAKEHOUSE_ECS_VCPUS"), pair, strict=True)))
    assert "is not a number" in message
    assert "set together" not in message


def test_a_size_s_problems_are_told_together_by_the_names_that_are_set() -> None:
    message = problems(ECS | {"LAKEHOUSE_ECS_VCPUS": "3", "LAKEHOUSE_ECS_DISK_GIB": "500"})
    assert "LAKEHOUSE_ECS_VCPUS, LAKEHOUSE_ECS_DISK_GIB: 500 GiB of disk" in message
    assert "3 vCPUs; Fargate offers" in message
    assert "set together" in message
    assert "MEMORY_GIB" not in message


def test_whose_capacity_is_mistaken_is_told_no_more_than_that() -> None:
    message = problems(ECS | {"LAKEHOUSE_ECS_CAPACITY": "fargate=1,FARGATE_SPOT=3", "LAKEHOUSE_ECS_PUBLIC_IP": "TRUE"})
    assert message.count("LAKEHOUSE_ECS_") == 1


def test_providers_of_one_s_own_and_a_weight_of_0_are_fine() -> None:
    own = {"LAKEHOUSE_ECS_CAPACITY": "workers_2=0, more-1", "LAKEHOUSE_ECS_VCPUS": "3"}
    ecs = read_settings(ECS | own).computes["ecs"]
    assert ecs.capacity == {"workers_2": 0, "more-1": 1}
    assert ecs.sized(Size()) == (Size(3.0), None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("STAGING", "https://u:hunter2@h/x"),
        ("STAGING", "s3a://AKIA:hunter2@b/x"),
        ("CODE", "s3a://AKIA:hunter2@b/code"),
        ("EMR_CLUSTER", "https://u:hunter2@h"),
        ("ECS_SUBNETS", "subnet-0a,https://u:hunter2@h,hunter2"),
        ("ECS_VCPUS", "https://u:hunter2@h"),
    ],
)
def test_a_refusal_quotes_no_password(name: str, value: str) -> None:
    message = problems(ECS | EMR | {f"LAKEHOUSE_{name}": value}, also=dict.fromkeys(BUILT_IN, ("shop.orders",)))
    assert f"LAKEHOUSE_{name}" in message
    assert "…" in message
    assert "hunter2" not in message


@pytest.mark.parametrize(
    ("chosen", "by", "cluster"),
    [
        ("j-2AXXXXXXGAPLF", "id", "j-2AXXXXXXGAPLF"),
        ("name:lakehouse", "name", "lakehouse"),
        ("tag:team=data", "tag", "team=data"),
        ("transient:deploy/cluster.json", "transient", "deploy/cluster.json"),
    ],
)
def test_a_cluster_is_found_in_four_ways(chosen: str, by: str, cluster: str) -> None:
    emr = read_settings(EMR | {"LAKEHOUSE_EMR_CLUSTER": chosen}).computes["emr"]
    assert (emr.by, emr.cluster, emr.code) == (by, cluster, "s3://lake/code")


@pytest.mark.parametrize("code", ["s3:///x", "s3://", "bucket/code"])
def test_code_goes_to_a_bucket(code: str) -> None:
    assert f"LAKEHOUSE_CODE='{code}' is not of the form s3://bucket/code" in problems(EMR | {"LAKEHOUSE_CODE": code})


def test_staging_that_is_not_set_is_told_as_such() -> None:
    assert "LAKEHOUSE_STAGING is not set (LAKEHOUSE_COMPUTE=ecs needs it" in problems(ECS | {"LAKEHOUSE_STAGING": " "})


def test_a_cluster_that_is_none_is_refused() -> None:
    message = problems(EMR | {"LAKEHOUSE_EMR_CLUSTER": "lakehouse"})
    assert "LAKEHOUSE_EMR_CLUSTER='lakehouse' is not of the form" in message


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("VIRTUAL_CLUSTER", "arn:aws:emr-containers:…", "is not of the form 9wvd1yhms5tk1k8chrn525z34"),
        ("ROLE", "worker", "is not of the form arn:aws:iam::123456789012:role/x"),
        # The label of EMR on EC2.
        ("RELEASE", "emr-7.9.0", "is not of the form emr-7.9.0-latest"),
        ("RELEASE", "emr-7.9.0-java11-latest", None),
        ("RELEASE", "emr-7.9.0-20250425", None),
    ],
)
def test_what_emr_on_eks_would_not_take_is_refused(variable: str, value: str, says: str | None) -> None:
    eks = {
        "LAKEHOUSE_COMPUTE": "emr_eks",
        "LAKEHOUSE_STAGING": "s3://lake/staging",
        "LAKEHOUSE_CODE": "s3://lake/code/",
        "LAKEHOUSE_EMR_EKS_VIRTUAL_CLUSTER": "9wvd1yhms5tk1k8chrn525z34",
        "LAKEHOUSE_EMR_EKS_ROLE": "arn:aws:iam::123456789012:role/worker",
        "LAKEHOUSE_EMR_EKS_RELEASE": "emr-7.9.0-latest",
        f"LAKEHOUSE_EMR_EKS_{variable}": value,
    }
    if says is None:
        assert read_settings(eks).computes["emr_eks"].release == value
    else:
        assert f"LAKEHOUSE_EMR_EKS_{variable}={value!r} {says}" in problems(eks)
