"""The stacks of deploy/stacks/, made on MiniStack, which asks their policies for each request, and what was requested.
Keys of the roles as tasks would have them. What runs by them is the tests' business."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3

from scripts.deploy import ORDER, deploy, environment, outputs
from tests.support.fakes.agent import ticking
from tests.support.fakes.ecs import image
from tests.support.fakes.ecs_service import FakeEcs
from tests.support.fakes.emr_eks_service import VIRTUAL_CLUSTER
from tests.support.fakes.job_runs import ROLE
from tests.support.fakes.logs import FakeLogs
from tests.support.fakes.task_metadata import task_metadata
from tests.support.fakes.wire import Service, serving
from tests.support.ministack import ministack
from tests.support.proxy import proxy
from tests.support.recorded_calls import Recorder
from tests.support.servers import REGION

NAME = "lakehouse"
IMAGE = f"123456789012.dkr.ecr.{REGION}.amazonaws.com/lakehouse-assets@sha256:{'0' * 64}"
APPLICATION = "00f1abcdexample"
EMR = {"Application": APPLICATION, "EmrCluster": "j-0", "VirtualCluster": VIRTUAL_CLUSTER, "EksJobRole": ROLE}
"""All of EMR's computes, as parameters of the roles."""
GIVEN = {
    "roles": EMR,
    "compute": {"Image": IMAGE},
    "dagster": {"Application": APPLICATION, "EksRelease": "emr-7.12.0-latest"},
    "alarms": {"Email": "nobody@example.com"},
}
"""Parameters that no other stack gives."""
UNKNOWN = ("network", "alarms")
"""Stacks with resources that MiniStack does not know."""

# MiniStack asks for these where AWS asks for sqs:DeleteMessage, …, and takes a database's name for a table's.
OTHERWISE = {
    "Effect": "Allow",
    "Action": [
        "sqs:DeleteMessageBatch",
        "sqs:SendMessageBatch",
        "sqs:ChangeMessageVisibilityBatch",
        "glue:GetDatabase",
    ],
    "Resource": "*",
}


@dataclass
class Stacks:
    """Stacks that were made. url: of all services, by a proxy that records. outputs: of all stacks."""

    url: str
    recorder: Recorder
    outputs: dict[str, str] = field(default_factory=dict)

    def client(self, service: str) -> Any:
        """A boto3 client of the account's root."""
        return boto3.Session("test", "test", region_name=REGION).client(service, endpoint_url=self.url)

    @property
    def cloudformation(self) -> Any:
        return self.client("cloudformation")

    def keys(self, role: str) -> dict[str, str]:
        """Keys of a role (worker, run, …) as AWS_… variables; what is called with them is recorded as its."""
        name = f"{NAME}-{role}"
        # Its trust names ECS alone; here the account's root stands for it.
        trust = {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}
        document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
        self.client("iam").update_assume_role_policy(RoleName=name, PolicyDocument=document)
        arn = self.client("iam").get_role(RoleName=name)["Role"]["Arn"]
        made = self.client("sts").assume_role(RoleArn=arn, RoleSessionName="test")["Credentials"]
        document = json.dumps({"Version": "2012-10-17", "Statement": [OTHERWISE]})
        self.client("iam").put_role_policy(RoleName=name, PolicyName="ministack", PolicyDocument=document)
        self.recorder.roles[made["AccessKeyId"]] = (role,)
        return {
            "AWS_ACCESS_KEY_ID": made["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": made["SecretAccessKey"],
            "AWS_SESSION_TOKEN": made["SessionToken"],
        }


def own_network(made: Stacks) -> dict[str, str]:
    """A network that somebody has already, as parameters."""
    ec2 = made.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    zones = {f"10.0.{n}.0/24": f"{REGION}{zone}" for n, zone in enumerate("ab")}
    made_in = [ec2.create_subnet(VpcId=vpc, CidrBlock=block, AvailabilityZone=zone) for block, zone in zones.items()]
    subnets = [answer["Subnet"]["SubnetId"] for answer in made_in]
    group = ec2.create_security_group(GroupName="tasks", Description="of tasks", VpcId=vpc)["GroupId"]
    return {"Vpc": vpc, "Subnets": ",".join(subnets), "SecurityGroup": group}


@contextmanager
def stacks(*names: str, given: Mapping[str, Mapping[str, str]] = GIVEN) -> Iterator[Stacks]:
    """Makes the stacks named, or all, on an emulator of their own. given: parameters, by stack."""
    recorder = Recorder()
    # Loopback has no TLS, without which the stacks' policies deny everything: the header says that it had.
    with ministack(asks_iam=True) as url, proxy(url, heard=recorder.hear, adds={"X-Forwarded-Proto": "https"}) as front:
        made = Stacks(front.uri, recorder)
        network = own_network(made)
        own = {"database": network, "dagster": network}
        for stack in ORDER:
            if stack in names or (not names and stack not in UNKNOWN):
                chosen = {**own.get(stack, {}), **given.get(stack, {})}
                deploy(made.cloudformation, stack, NAME, chosen, lambda changes: True)
        made.outputs = outputs(made.cloudformation, NAME)
        for family in made.client("ecs").list_task_definition_families()["families"]:
            made_of = made.client("ecs").describe_task_definition(taskDefinition=family)["taskDefinition"]
            recorder.passed[family] = [made_of["taskRoleArn"], made_of["executionRoleArn"]]
        yield made


@contextmanager
def tasks(made: Stacks, folder: Path) -> Iterator[dict[str, str]]:
    """ECS whose tasks really run by what the stack *compute* registered, with the worker's keys.

    folder: for the tasks. Yields the environment of those who ask for tasks, without their keys.
    """
    folder.mkdir(parents=True, exist_ok=True)
    everywhere = {"AWS_DEFAULT_REGION": REGION, "AWS_REGION": REGION, "AWS_ENDPOINT_URL": made.url}
    ecs = FakeEcs(folder, image(folder) | everywhere | made.keys("worker"))
    service, logs = Service("ecs", ecs), Service("logs", FakeLogs(ecs.lines))
    hear = made.recorder.hear
    with (
        serving(service),
        serving(logs),
        proxy(service.url, heard=hear) as ecs_front,
        proxy(logs.url, heard=hear) as logs_front,
        task_metadata(ecs.metadata) as ecs.metadata_url,
        ticking(ecs.look, ecs.end),
    ):
        yield {
            **everywhere,
            **environment(made.outputs),
            "AWS_ENDPOINT_URL_ECS": ecs_front.uri,
            "AWS_ENDPOINT_URL_CLOUDWATCH_LOGS": logs_front.uri,
            "PYICEBERG_CATALOG__LAKE__S3__ENDPOINT": made.url,
            "LAKEHOUSE_COMPUTE": "ecs",
            "LAKEHOUSE_ECS_SUBNETS": "subnet-0a1b2c,subnet-3d4e5f",
        }
