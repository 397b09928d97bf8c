"""The settings of the computes on AWS."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakehouse_assets.environment.computes import ComputeSettings, made
from lakehouse_assets.environment.env_reader import BUCKET, ROLE, ROLE_EXAMPLE, EnvReader, is_secret
from lakehouse_assets.environment.sizes import LEAST_MEMORY_GIB, Size, emr_problem, fargate_problem, serverless_problem

if TYPE_CHECKING:
    from lakehouse_assets.environment.launchers.base import Launcher

# The label of EMR on EC2 has no suffix: https://docs.aws.amazon.com/emr/latest/EMR-on-EKS-DevelopmentGuide/emr-eks-releases.html
EKS_RELEASE = r"emr-[\w.-]+-(latest|\d{8})"
PROVIDER = r"[A-Za-z0-9_-]+(=[0-9]+)?"
FARGATE_PROVIDERS = ("FARGATE", "FARGATE_SPOT")
# How no provider's name may begin, except Fargate's:
# https://docs.aws.amazon.com/AmazonECS/latest/APIReference/API_CreateCapacityProvider.html (name)
RESERVED = re.compile(r"aws|ecs|fargate", re.IGNORECASE)
# https://docs.aws.amazon.com/AmazonECS/latest/APIReference/API_CapacityProviderStrategyItem.html
MOST_WEIGHT = 1000
# A transient cluster ends after this time without a step, unless its file says otherwise: its run may have died.
IDLE_SECONDS = 300


class _OnAws(ComputeSettings):
    """Settings of any compute on AWS."""

    def problems(self) -> list[str]:
        """Says why boto3 finds no region."""
        from lakehouse_assets.environment.aws import region_problems

        return region_problems()


@dataclass(frozen=True)
class Ecs(_OnAws):
    """Tasks on ECS."""

    cluster: str
    task_definition: str
    container: str
    """The worker's, in the task definition."""
    subnets: tuple[str, ...]
    security_groups: tuple[str, ...]
    public_ip: bool
    capacity: Mapping[str, int]
    """The weight of each capacity provider."""
    size: Size
    """For what a table's own size leaves open."""

    def sized(self, own: Size) -> tuple[Size, str | None]:
        """Completes a table's size, or says why no task can have it."""
        size = replace(self.size, **{name: value for name, value in vars(own).items() if value is not None})
        return size, fargate_problem(size) if _is_fargate(self.capacity) else None

    @classmethod
    def read(cls, reader: EnvReader) -> Ecs:
        """Reads LAKEHOUSE_ECS_*."""
        capacity = _capacity(reader)
        ecs = cls(
            cluster=reader.text("LAKEHOUSE_ECS_CLUSTER", example="a cluster's name or ARN"),
            task_definition=reader.text("LAKEHOUSE_ECS_TASK_DEFINITION", example="lakehouse-worker:7"),
            container=reader.text("LAKEHOUSE_ECS_CONTAINER", default="worker"),
            subnets=reader.items("LAKEHOUSE_ECS_SUBNETS", r"subnet-[0-9a-f]+", "subnet-0a1b2c,subnet-3d4e5f"),
            security_groups=reader.items("LAKEHOUSE_ECS_SECURITY_GROUPS", r"sg-[0-9a-f]+", "sg-0a1b2c", required=False),
            public_ip=reader.text("LAKEHOUSE_ECS_PUBLIC_IP", "(?i)true|false", "true or false", "false").lower()
            == "true",
            capacity=capacity,
            size=_size(reader, _is_fargate(capacity)),
        )
        # RunTask's error: «Assign public IP is not supported for this launch type».
        if ecs.public_ip and not _is_fargate(capacity):
            reader.problems.append("LAKEHOUSE_ECS_PUBLIC_IP=true works only with Fargate in LAKEHOUSE_ECS_CAPACITY")
        if (memory := ecs.size.memory_gib) is not None and memory < LEAST_MEMORY_GIB:
            reader.problems.append(
                f"LAKEHOUSE_ECS_MEMORY_GIB={memory:g}: a worker needs at least {LEAST_MEMORY_GIB} GiB"
            )
        return ecs

    def launcher(self, settings: Any, worker: str) -> Launcher:
        """Makes the launcher."""
        return made(f"{__package__}.ecs:EcsLauncher", settings, self, ("python", "-m", worker))

    def size_problem(self, size: Size, conf: Mapping[str, str]) -> str | None:
        """Returns why no task can have this size."""
        problem = self.sized(size)[1]
        return problem and (
            f"{problem} (values that it leaves out come from LAKEHOUSE_ECS_VCPUS, …_MEMORY_GIB, …_DISK_GIB)"
        )


@dataclass(frozen=True)
class Emr(_OnAws):
    """Steps of a cluster of EMR on EC2."""

    brings_spark = True

    by: str
    """``id``, ``name``, ``tag`` (``key=value``), or ``transient``: a file with RunJobFlow's parameters for each run's
    cluster."""
    cluster: str
    code: str
    """The prefix in S3 to which runs upload the workers' code."""

    @classmethod
    def read(cls, reader: EnvReader) -> Emr:
        """Reads LAKEHOUSE_EMR_CLUSTER (an id, ``name:…``, …) and LAKEHOUSE_CODE."""
        value = reader.text(
            "LAKEHOUSE_EMR_CLUSTER",
            r"j-\w+|name:.+|tag:[^=]+=.*|transient:.+",
            "j-2AXXXXXXGAPLF, name:lakehouse, tag:team=data or transient:cluster.json",
        )
        by, _, cluster = value.partition(":") if ":" in value else ("id", "", value)
        return cls(by, cluster, _read_code(reader))

    def launcher(self, settings: Any, worker: str) -> Launcher:
        """Makes the launcher."""
        return made(f"{__package__}.emr:EmrLauncher", settings, self, worker)

    def problems(self) -> list[str]:
        """Also says why a transient cluster's file is unusable."""
        if self.by != "transient":
            return super().problems()
        from lakehouse_assets.environment.launchers.base import NotStarted

        try:
            transient_cluster(Path(self.cluster), "")
        except NotStarted as error:
            return [*super().problems(), str(error)]
        return super().problems()

    def size_problem(self, size: Size, conf: Mapping[str, str]) -> str | None:
        """Returns why drivers and executors can't have this size."""
        return emr_problem(size)


def transient_cluster(file: Path, token: str) -> dict[str, Any]:
    """Returns a file's RunJobFlow parameters, with the token at the name's end, by which the run finds its cluster.

    Raises NotStarted if the file is unreadable.
    """
    from lakehouse_assets.environment.launchers.base import NotStarted

    try:
        given = json.loads(file.read_text())
        # The run adds its steps later. After the last one, AutoTerminationPolicy ends the cluster.
        instances = {**given["Instances"], "KeepJobFlowAliveWhenNoSteps": True}
        name = f"{given.get('Name', 'lakehouse')} {token}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"LAKEHOUSE_EMR_CLUSTER=transient:{file} does not contain parameters of RunJobFlow: {error!r}"
        raise NotStarted(reason, transient=False) from error
    policy = {"AutoTerminationPolicy": {"IdleTimeout": IDLE_SECONDS}}
    return {**policy, **given, "Name": name, "Instances": instances}


@dataclass(frozen=True)
class EmrServerless(_OnAws):
    """Job runs of an EMR Serverless application."""

    brings_spark = True

    application: str
    role: str
    code: str
    """As in Emr."""

    @classmethod
    def read(cls, reader: EnvReader) -> EmrServerless:
        """Reads LAKEHOUSE_EMR_SERVERLESS_* and LAKEHOUSE_CODE."""
        return cls(
            application=reader.text("LAKEHOUSE_EMR_SERVERLESS_APPLICATION", r"[0-9a-z]+", "00f1abcdexample"),
            role=reader.text("LAKEHOUSE_EMR_SERVERLESS_ROLE", ROLE, ROLE_EXAMPLE),
            code=_read_code(reader),
        )

    def launcher(self, settings: Any, worker: str) -> Launcher:
        """Makes the launcher."""
        return made(f"{__package__}.emr_serverless:EmrServerlessLauncher", settings, self, worker)

    def size_problem(self, size: Size, conf: Mapping[str, str]) -> str | None:
        """Returns why the service offers no worker of this size."""
        return serverless_problem(size, conf)


@dataclass(frozen=True)
class EmrEks(_OnAws):
    """Job runs on a virtual cluster of EMR on EKS."""

    brings_spark = True

    virtual_cluster: str
    role: str
    release: str
    """Such as ``emr-7.9.0-latest``."""
    code: str
    """As in Emr."""

    @classmethod
    def read(cls, reader: EnvReader) -> EmrEks:
        """Reads LAKEHOUSE_EMR_EKS_* and LAKEHOUSE_CODE."""
        return cls(
            virtual_cluster=reader.text("LAKEHOUSE_EMR_EKS_VIRTUAL_CLUSTER", r"[0-9a-z]+", "9wvd1yhms5tk1k8chrn525z34"),
            role=reader.text("LAKEHOUSE_EMR_EKS_ROLE", ROLE, ROLE_EXAMPLE),
            release=reader.text("LAKEHOUSE_EMR_EKS_RELEASE", EKS_RELEASE, "emr-7.9.0-latest"),
            code=_read_code(reader),
        )

    def launcher(self, settings: Any, worker: str) -> Launcher:
        """Makes the launcher."""
        return made(f"{__package__}.emr_eks:EmrEksLauncher", settings, self, worker)

    def size_problem(self, size: Size, conf: Mapping[str, str]) -> str | None:
        """Returns why no pod can have this size."""
        return emr_problem(size, "EMR on EKS")


def _is_fargate(capacity: Collection[str]) -> bool:
    """Whether tasks run on Fargate. One provider shows it, as _capacity() refuses a mixture."""
    return any(provider in FARGATE_PROVIDERS for provider in capacity)


def _capacity(reader: EnvReader) -> dict[str, int]:
    """Reads the weight of each capacity provider; by default, all tasks run on Fargate."""
    variable = "LAKEHOUSE_ECS_CAPACITY"
    items = reader.items(variable, PROVIDER, "FARGATE_SPOT=3,FARGATE=1", required=False)
    given = [item.partition("=") for item in items if re.fullmatch(PROVIDER, item)]
    weights = {provider: int(weight or 1) for provider, _, weight in given}
    impossible = [p for p in weights if RESERVED.match(p) and p not in FARGATE_PROVIDERS]
    capacity = {provider: weight for provider, weight in weights.items() if provider not in impossible}
    problems = []
    if impossible:
        fargates = " and ".join(FARGATE_PROVIDERS)
        problems.append(f"{', '.join(impossible)} is not a capacity provider; Fargate's are {fargates}, in capitals")
    if len(weights) < len(given):
        problems.append("a provider is listed twice")
    if any(weight > MOST_WEIGHT for weight in weights.values()):
        problems.append(f"a weight is more than {MOST_WEIGHT}")
    if weights and not any(weights.values()):
        problems.append("all weights are 0, so no task would be placed")
    if len({provider in FARGATE_PROVIDERS for provider in capacity}) > 1:
        problems.append("ECS takes either Fargate's providers or EC2's, not both")
    reader.problems += [f"{variable}: {problem}" for problem in problems]
    return capacity or {"FARGATE": 1}


def _size(reader: EnvReader, fargate: bool) -> Size:
    """Reads the size of tasks. Notes a problem if Fargate does not offer it."""
    problems_before = len(reader.problems)
    vcpus, memory = reader.number("LAKEHOUSE_ECS_VCPUS", float), reader.number("LAKEHOUSE_ECS_MEMORY_GIB", float)
    both_valid = len(reader.problems) == problems_before
    size = Size(vcpus, memory, reader.number("LAKEHOUSE_ECS_DISK_GIB", int))
    # If vCPUs or memory is not a number, nobody knows whether the two fit together.
    judged = size if both_valid else replace(size, vcpus=None, memory_gib=None)
    if fargate and (problem := fargate_problem(judged)):
        variables = [f"LAKEHOUSE_ECS_{name.upper()}" for name, value in vars(judged).items() if value is not None]
        reader.problems.append(f"{', '.join(variables)}: {problem}")
    return size


def _read_code(reader: EnvReader) -> str:
    code = reader.text("LAKEHOUSE_CODE", f"s3{BUCKET}", "s3://bucket/code").rstrip("/")
    if is_secret("", code):
        reader.problems.append(
            "LAKEHOUSE_CODE contains a secret, which files and logs would show; set the secret separately"
        )
    return code
