"""The settings of workers that run on AWS: ECS, EMR, EMR Serverless; read from the environment, checked all at once.
No client and no call: what only AWS can tell is told when a run asks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from resources.launchers.base import Size
from resources.secrets import shown

T = TypeVar("T")
PROVIDER = r"[\w-]+(=\d+)?"
# vCPUs → (least, most, step) GiB:
# https://docs.aws.amazon.com/AmazonECS/latest/developerguide/task-cpu-memory-error.html
FARGATE = {
    0.25: (0.5, 2, 0.5),
    0.5: (1, 4, 1),
    1: (2, 8, 1),
    2: (4, 16, 1),
    4: (8, 30, 1),
    8: (16, 60, 4),
    16: (32, 120, 8),
}
FARGATE_DISK_GIB = (21, 200)


@dataclass(frozen=True)
class Ecs:
    """ECS. capacity: weights by capacity provider (FARGATE, FARGATE_SPOT, or the name of an EC2 one). container: the
    task definition's, that the worker's command goes to. size: of tasks whose table asks for none."""

    cluster: str
    task_definition: str
    container: str
    subnets: tuple[str, ...]
    security_groups: tuple[str, ...]
    public_ip: bool
    capacity: Mapping[str, int]
    size: Size

    @property
    def fargate(self) -> bool:
        return all(provider in ("FARGATE", "FARGATE_SPOT") for provider in self.capacity)


@dataclass(frozen=True)
class Emr:
    """EMR on EC2. by: how the cluster is found: ``id``, ``name``, ``tag`` (``key=value``), or ``transient`` (a file
    with RunJobFlow's parameters, for a cluster of each run's own). code: the prefix code is shipped to."""

    by: str
    cluster: str
    code: str


@dataclass(frozen=True)
class EmrServerless:
    """EMR Serverless. application: its id. role: the ARN jobs run as. code: the prefix code is shipped to."""

    application: str
    role: str
    code: str


class Reader:
    """Reads variables and collects what is wrong with them, each problem with its variable's name."""

    def __init__(self, env: Mapping[str, str], because: str) -> None:
        self._env = env
        self._because = because
        self.problems: list[str] = []

    def text(self, name: str, pattern: str = r".+", example: str = "", default: str | None = None) -> str:
        """The variable's value; a problem when it is missing (without a default) or doesn't match."""
        value = self._env.get(name, "").strip()
        if not value:
            if default is None:
                such = f", such as {example}" if example else ""
                self.problems.append(f"{name} is not set ({self._because} needs it{such})")
            return default or ""
        if not re.fullmatch(pattern, value):
            self.problems.append(f"{name}={shown(value)!r} is not of the form {example or pattern}")
        return value

    def items(self, name: str, pattern: str, example: str, *, required: bool = True) -> tuple[str, ...]:
        """A comma-separated list."""
        if not required and not self._env.get(name):
            return ()
        text = self.text(name, example=example)
        values = tuple(part.strip() for part in text.split(",") if part.strip())
        if bad := [value for value in values if not re.fullmatch(pattern, value)]:
            told = shown(text) if shown(text) != text else ", ".join(bad)
            self.problems.append(f"{name}: {told} is not of the form {example}")
        return values

    def number(self, name: str, of: Callable[[str], T]) -> T | None:
        value = self._env.get(name, "").strip()
        try:
            return of(value) if value else None
        except ValueError:
            self.problems.append(f"{name}={shown(value)!r} is no number")
            return None


def read_ecs(reader: Reader) -> Ecs:
    given = reader.items("LAKEHOUSE_ECS_CAPACITY", PROVIDER, "FARGATE_SPOT=3,FARGATE=1", required=False)
    providers = [provider.partition("=") for provider in given or ("FARGATE",) if re.fullmatch(PROVIDER, provider)]
    ecs = Ecs(
        cluster=reader.text("LAKEHOUSE_ECS_CLUSTER", example="a cluster's name or ARN"),
        task_definition=reader.text("LAKEHOUSE_ECS_TASK_DEFINITION", example="lakehouse-worker:7"),
        container=reader.text("LAKEHOUSE_ECS_CONTAINER", default="worker"),
        subnets=reader.items("LAKEHOUSE_ECS_SUBNETS", r"subnet-[0-9a-f]+", "subnet-0a1b2c,subnet-3d4e5f"),
        security_groups=reader.items("LAKEHOUSE_ECS_SECURITY_GROUPS", r"sg-[0-9a-f]+", "sg-0a1b2c", required=False),
        public_ip=reader.text("LAKEHOUSE_ECS_PUBLIC_IP", r"true|false", "true or false", default="false") == "true",
        capacity={name: int(weight or 1) for name, _, weight in providers},
        size=Size(
            reader.number("LAKEHOUSE_ECS_VCPUS", float),
            reader.number("LAKEHOUSE_ECS_MEMORY_GIB", float),
            reader.number("LAKEHOUSE_ECS_DISK_GIB", int),
        ),
    )
    kinds = {provider in ("FARGATE", "FARGATE_SPOT") for provider in ecs.capacity}
    if len(kinds) > 1:
        reader.problems.append(
            f"LAKEHOUSE_ECS_CAPACITY={','.join(given)}: ECS takes either Fargate's providers or EC2's, not both"
        )
    if ecs.fargate and (problem := fargate_problem(ecs.size)):
        reader.problems.append(f"LAKEHOUSE_ECS_VCPUS, LAKEHOUSE_ECS_MEMORY_GIB, LAKEHOUSE_ECS_DISK_GIB: {problem}")
    return ecs


def read_emr(reader: Reader) -> Emr:
    chosen = reader.text(
        "LAKEHOUSE_EMR_CLUSTER",
        r"j-\w+|name:.+|tag:[^=]+=.*|transient:.+",
        "j-2AXXXXXXGAPLF, name:lakehouse, tag:team=data or transient:cluster.json",
    )
    by, _, cluster = chosen.partition(":") if ":" in chosen else ("id", "", chosen)
    return Emr(by, cluster, read_code(reader))


def read_emr_serverless(reader: Reader) -> EmrServerless:
    return EmrServerless(
        application=reader.text("LAKEHOUSE_EMR_SERVERLESS_APPLICATION", r"[0-9a-z]+", "00f1abcdexample"),
        role=reader.text(
            "LAKEHOUSE_EMR_SERVERLESS_ROLE", r"arn:aws[\w-]*:iam::\d{12}:role/.+", "arn:aws:iam::123456789012:role/x"
        ),
        code=read_code(reader),
    )


def read_code(reader: Reader) -> str:
    return reader.text("LAKEHOUSE_CODE", r"s3://[^/]+(/.*)?", "s3://bucket/code").rstrip("/")


def fargate_problem(size: Size) -> str | None:
    """Why Fargate has no task of this size; None when it has, or when the task definition decides."""
    if size.disk_gib is not None and not FARGATE_DISK_GIB[0] <= size.disk_gib <= FARGATE_DISK_GIB[1]:
        return f"{size.disk_gib} GiB of disk; Fargate gives {FARGATE_DISK_GIB[0]} to {FARGATE_DISK_GIB[1]}"
    if (size.vcpus is None) != (size.memory_gib is None):
        return "vCPUs and memory go together: give both or neither"
    if size.vcpus is None or size.memory_gib is None:
        return None
    if size.vcpus not in FARGATE:
        return f"{size.vcpus:g} vCPUs; Fargate gives {', '.join(f'{v:g}' for v in FARGATE)}"
    least, most, step = FARGATE[size.vcpus]
    if not least <= size.memory_gib <= most or (size.memory_gib - least) % step:
        return f"{size.memory_gib:g} GiB with {size.vcpus:g} vCPUs; Fargate gives {least:g} to {most:g} by {step:g}"
    return None
