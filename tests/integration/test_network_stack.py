"""The stack network, really made on an emulator that knows its resources, moto: with endpoints, and with a NAT.
What the other stacks do with what it gives is test_stacks.py's."""

from __future__ import annotations

import boto3
import pytest
from moto import mock_aws

from scripts import deploy as module
from scripts.deploy import NotDeployed, deploy

SERVICES = {"ec2", "ecr.api", "ecr.dkr", "ecs", "glue", "logs", "secretsmanager", "sqs"}


@pytest.fixture(autouse=True)
def region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setattr(module, "POLL_SECONDS", 0.0)


def services(region: str = "us-east-1") -> set[str]:
    found = boto3.client("ec2").describe_vpc_endpoints()["VpcEndpoints"]
    return {one["ServiceName"].removeprefix(f"com.amazonaws.{region}.") for one in found}


@mock_aws
def test_tasks_reach_their_services_by_endpoints_without_a_way_to_the_internet() -> None:
    deploy(boto3.client("cloudformation"), "network", "lakehouse", {}, lambda changes: True)
    assert services() == {"s3", *SERVICES}
    ec2, named = boto3.client("ec2"), {"Name": "tag:Name", "Values": ["lakehouse-private*"]}
    subnets = ec2.describe_subnets(Filters=[named])["Subnets"]
    assert len({subnet["AvailabilityZone"] for subnet in subnets}) == 2
    tables = ec2.describe_route_tables()["RouteTables"]
    of_subnets = {subnet["SubnetId"] for subnet in subnets}
    private = [one for one in tables if of_subnets & {a.get("SubnetId") for a in one["Associations"]}]
    ways = {route.get("GatewayId") or route.get("NatGatewayId") for one in private for route in one["Routes"]}
    assert {way for way in ways if way and way.startswith(("igw", "nat"))} == set()


@mock_aws
def test_what_another_catalog_and_another_place_for_workers_call_has_endpoints_too() -> None:
    given = {"Catalog": "s3tables", "EmrServerless": "true", "Exec": "true"}
    deploy(boto3.client("cloudformation"), "network", "lakehouse", given, lambda changes: True)
    assert services() == {"s3", *SERVICES, "s3tables", "emr-serverless", "ssmmessages"} - {"glue"}


@mock_aws
def test_hand_offs_are_registered_in_glue_whatever_the_catalog_is() -> None:
    given = {"Catalog": "s3tables", "HandOffs": "true"}
    deploy(boto3.client("cloudformation"), "network", "lakehouse", given, lambda changes: True)
    assert services() == {"s3", *SERVICES, "s3tables"}


@mock_aws
def test_with_a_nat_there_is_a_way_to_the_internet_and_only_s3_has_an_endpoint() -> None:
    given = {"Nat": "true", "Endpoints": "false"}
    deploy(boto3.client("cloudformation"), "network", "lakehouse", given, lambda changes: True)
    assert services() == {"s3"}
    (gateway,) = boto3.client("ec2").describe_nat_gateways()["NatGateways"]
    assert gateway["State"] == "available"


@mock_aws
def test_a_person_who_does_not_agree_leaves_all_as_it_was() -> None:
    cloudformation = boto3.client("cloudformation")
    shown: list[str] = []
    with pytest.raises(NotDeployed, match="lakehouse-network"):
        deploy(cloudformation, "network", "lakehouse", {}, lambda changes: bool(shown.append(changes)))
    assert "AWS::EC2::VPC" in shown[0]
    assert boto3.client("ec2").describe_vpcs(Filters=[{"Name": "cidr", "Values": ["10.40.0.0/16"]}])["Vpcs"] == []
