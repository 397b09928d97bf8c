"""The settings of the services on AWS that run workers: ECS, EMR, EMR Serverless, read from the environment.

No service is called.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from resources.env_reader import BUCKET, EnvReader
from resources.sizes import LEAST_MEMORY_GIB, Size, fargate_problem

ROLE = r"arn:aws[\w-]*:iam::\d{12}:role/.+"
PROVIDER = r"[A-Za-z0-9_-]+(=[0-9]+)?"
FARGATE_PROVIDERS = ("FARGATE", "FARGATE_SPOT")
# https://docs.aws.amazon.com/AmazonECS/latest/APIReference/API_CreateCapacityProvider.html (name)
RESERVED = re.compile(r"aws|ecs|fargate", re.IGNORECASE)
# https://docs.aws.amazon.com/AmazonECS/latest/APIReference/API_CapacityProviderStrategyItem.html
MOST_WEIGHT = 1000


@dataclass(frozen=True)
class Ecs:
    """The settings of ECS."""

    cluster: str
    task_definition: str
    container: str
    """The container of the task definition that runs the worker's command."""
    subnets: tuple[str, ...]
    security_groups: tuple[str, ...]
    public_ip: bool
    capacity: Mapping[str, int]
    """Weights by capacity provider (FARGATE, FARGATE_SPOT, or the name of an EC2 one)."""
    size: Size
    """The size of tasks whose table has none of its own."""

    def sized(self, own: Size) -> tuple[Size, str | None]:
        """Completes a table's own size by the setting's; says why no task can have that size, else None."""
        size = replace(self.size, **{name: value for name, value in vars(own).items() if value is not None})
        fargate = all(provider in FARGATE_PROVIDERS for provider in self.capacity)
        return size, fargate_problem(size) if fargate else None


@dataclass(frozen=True)
class Emr:
    """The settings of EMR on EC2."""

    by: str
    """What ``cluster`` is: ``id``, ``name``, ``tag`` (``key=value``), or ``transient`` (a file with RunJobFlow's
    parameters, for a cluster that each run starts for itself)."""
    cluster: str
    code: str
    """The prefix that code is uploaded to."""


@dataclass(frozen=True)
class EmrServerless:
    """The settings of EMR Serverless."""

    application: str
    """The application's id."""
    role: str
    """The ARN of the role that jobs run as."""
    code: str
    """The prefix that code is uploaded to."""


def read_ecs(reader: EnvReader) -> Ecs:
    """Reads the LAKEHOUSE_ECS_* variables, and adds what is wrong with them to the reader's problems."""
    capacity = _capacity(reader)
    fargate = any(provider in FARGATE_PROVIDERS for provider in capacity)
    ecs = Ecs(
        cluster=reader.text("LAKEHOUSE_ECS_CLUSTER", example="a cluster's name or ARN"),
        task_definition=reader.text("LAKEHOUSE_ECS_TASK_DEFINITION", example="lakehouse-worker:7"),
        container=reader.text("LAKEHOUSE_ECS_CONTAINER", default="worker"),
        subnets=reader.items("LAKEHOUSE_ECS_SUBNETS", r"subnet-[0-9a-f]+", "subnet-0a1b2c,subnet-3d4e5f"),
        security_groups=reader.items("LAKEHOUSE_ECS_SECURITY_GROUPS", r"sg-[0-9a-f]+", "sg-0a1b2c", required=False),
        public_ip=reader.text("LAKEHOUSE_ECS_PUBLIC_IP", "(?i)true|false", "true or false", "false").lower() == "true",
        capacity=capacity,
        size=_size(reader, fargate),
    )
    # RunTask would answer «Assign public IP is not supported for this launch type».
    if ecs.public_ip and not fargate:
        reader.problems.append("LAKEHOUSE_ECS_PUBLIC_IP=true is for LAKEHOUSE_ECS_CAPACITY of Fargate only")
    if (memory := ecs.size.memory_gib) is not None and memory < LEAST_MEMORY_GIB:
        reader.problems.append(f"LAKEHOUSE_ECS_MEMORY_GIB={memory:g}: a worker needs {LEAST_MEMORY_GIB} GiB at least")
    return ecs


def _capacity(reader: EnvReader) -> dict[str, int]:
    """Reads LAKEHOUSE_ECS_CAPACITY: weights by provider, without names that no provider can have."""
    variable = "LAKEHOUSE_ECS_CAPACITY"
    items = reader.items(variable, PROVIDER, "FARGATE_SPOT=3,FARGATE=1", required=False)
    given = [item.partition("=") for item in items if re.fullmatch(PROVIDER, item)]
    weights = {provider: int(weight or 1) for provider, _, weight in given}
    impossible = [p for p in weights if RESERVED.match(p) and p not in FARGATE_PROVIDERS]
    capacity = {provider: weight for provider, weight in weights.items() if provider not in impossible}
    conditions = {
        f"{', '.join(impossible)} is not a capacity provider; Fargate's are {' and '.join(FARGATE_PROVIDERS)}, in "
        "capitals": impossible,
        "a provider is given twice": len(weights) < len(given),
        f"a weight is more than {MOST_WEIGHT}": any(weight > MOST_WEIGHT for weight in weights.values()),
        "with all weights 0 no task is placed": weights and not any(weights.values()),
        "ECS takes either Fargate's providers or EC2's, not both": len({p in FARGATE_PROVIDERS for p in capacity}) > 1,
    }
    reader.problems += [f"{variable}: {problem}" for problem, holds in conditions.items() if holds]
    return capacity or {"FARGATE": 1}


def _size(reader: EnvReader, fargate: bool) -> Size:
    problems_before = len(reader.problems)
    vcpus, memory = reader.number("LAKEHOUSE_ECS_VCPUS", float), reader.number("LAKEHOUSE_ECS_MEMORY_GIB", float)
    both_valid = len(reader.problems) == problems_before
    size = Size(vcpus, memory, reader.number("LAKEHOUSE_ECS_DISK_GIB", int))
    # Where one of them is no number, it is unknown whether they fit together.
    judged = size if both_valid else replace(size, vcpus=None, memory_gib=None)
    if fargate and (problem := fargate_problem(judged)):
        variables = [f"LAKEHOUSE_ECS_{name.upper()}" for name, value in vars(judged).items() if value is not None]
        reader.problems.append(f"{', '.join(variables)}: {problem}")
    return size


def read_emr(reader: EnvReader) -> Emr:
    """Reads LAKEHOUSE_EMR_CLUSTER and LAKEHOUSE_CODE; without ``name:`` or the like, the cluster is given by its id."""
    value = reader.text(
        "LAKEHOUSE_EMR_CLUSTER",
        r"j-\w+|name:.+|tag:[^=]+=.*|transient:.+",
        "j-2AXXXXXXGAPLF, name:lakehouse, tag:team=data or transient:cluster.json",
    )
    by, _, cluster = value.partition(":") if ":" in value else ("id", "", value)
    return Emr(by, cluster, _read_code(reader))


def read_emr_serverless(reader: EnvReader) -> EmrServerless:
    """Reads the LAKEHOUSE_EMR_SERVERLESS_* variables and LAKEHOUSE_CODE, with problems as in read_ecs."""
    return EmrServerless(
        application=reader.text("LAKEHOUSE_EMR_SERVERLESS_APPLICATION", r"[0-9a-z]+", "00f1abcdexample"),
        role=reader.text("LAKEHOUSE_EMR_SERVERLESS_ROLE", ROLE, "arn:aws:iam::123456789012:role/x"),
        code=_read_code(reader),
    )


def _read_code(reader: EnvReader) -> str:
    return reader.text("LAKEHOUSE_CODE", f"s3{BUCKET}", "s3://bucket/code").rstrip("/")
