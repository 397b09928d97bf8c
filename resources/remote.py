"""The settings of workers that run on AWS: ECS, EMR, EMR Serverless; read from the environment, checked all at once.
No client and no call: what only AWS can tell is told when a run asks."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from resources.launchers.base import LEAST_MEMORY_GIB, Size
from resources.secrets import shown

N = TypeVar("N", int, float)
# What goes behind a scheme.
BUCKET = r"://[^/\s]+(/.*)?"
PROVIDER = r"[A-Za-z0-9_-]+(=[0-9]+)?"
FARGATE_PROVIDERS = ("FARGATE", "FARGATE_SPOT")
# https://docs.aws.amazon.com/AmazonECS/latest/APIReference/API_CreateCapacityProvider.html (name)
RESERVED = re.compile(r"aws|ecs|fargate", re.IGNORECASE)
# https://docs.aws.amazon.com/AmazonECS/latest/APIReference/API_CapacityProviderStrategyItem.html
MOST_WEIGHT = 1000
# vCPUs → GiB: https://docs.aws.amazon.com/AmazonECS/latest/developerguide/task-cpu-memory-error.html
FARGATE: Mapping[float, Sequence[float]] = {
    0.25: (0.5, 1, 2),
    0.5: range(1, 5),
    1: range(2, 9),
    2: range(4, 17),
    4: range(8, 31),
    8: range(16, 61, 4),
    16: range(32, 121, 8),
}
FARGATE_DISK_GIB = (21, 200)
# vCPUs → GiB, the overhead beside the heap included:
# https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/app-behavior.html (worker configurations)
SERVERLESS: Mapping[float, Sequence[float]] = {
    1: range(2, 9),
    2: range(4, 17),
    4: range(8, 31),
    8: range(16, 61, 4),
    16: range(32, 121, 8),
}
SERVERLESS_DISK_GIB = (20, 200)
# https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/jobs-shuffle-optimized-disks.html
OPTIMIZED, OPTIMIZED_DISK_GIB = "shuffle_optimized", (20, 2000)


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
        return all(provider in FARGATE_PROVIDERS for provider in self.capacity)

    def sized(self, own: Size) -> tuple[Size, str | None]:
        """A table's own size, the setting's where the table asks for nothing; and why there is no task of it."""
        size = replace(self.size, **{name: value for name, value in vars(own).items() if value is not None})
        return size, fargate_problem(size) if self.fargate else None


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

    def __init__(self, env: Mapping[str, str], because: str = "") -> None:
        """because: who needs what is read from now on; it may change."""
        self._env = env
        self.because = because
        self.problems: list[str] = []
        self._missing: set[str] = set()

    def text(self, name: str, pattern: str = r".+", example: str = "", default: str | None = None) -> str:
        """The variable's value; a problem when it is missing (without a default) or doesn't match."""
        value = self._env.get(name, "").strip()
        if not value:
            if default is None and name not in self._missing:
                self._missing.add(name)
                such = f", such as {example}" if example else ""
                self.problems.append(f"{name} is not set ({self.because} needs it{such})")
            return default or ""
        if not re.fullmatch(pattern, value):
            self.problems.append(f"{name}={shown(value)!r} is not of the form {example or pattern}")
        return value

    def items(self, name: str, pattern: str, example: str, *, required: bool = True) -> tuple[str, ...]:
        """A comma-separated list; of nothing only where the variable isn't set and need not be."""
        if not required and not self._env.get(name, "").strip():
            return ()
        text = self.text(name, example=example)
        values = tuple(part.strip() for part in text.split(",") if part.strip())
        if text and not values:
            self.problems.append(f"{name}={text!r} names nothing; give it such as {example}")
        if bad := [value for value in values if not re.fullmatch(pattern, value)]:
            told = shown(text) if shown(text) != text else ", ".join(bad)
            self.problems.append(f"{name}: {told} is not of the form {example}")
        return values

    def number(self, name: str, of: Callable[[str], N]) -> N | None:
        """A number above 0; None when the variable isn't set."""
        value = self._env.get(name, "").strip()
        if not value:
            return None
        try:
            number = of(value)
        except ValueError:
            number = of(0)
        if 0 < number < math.inf:
            return number
        self.problems.append(f"{name}={shown(value)!r} is no {'whole ' if of is int else ''}number above 0")
        return None


def read_ecs(reader: Reader) -> Ecs:
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
    # «Assign public IP is not supported for this launch type» is RunTask's answer.
    if ecs.public_ip and not fargate:
        reader.problems.append("LAKEHOUSE_ECS_PUBLIC_IP=true is for LAKEHOUSE_ECS_CAPACITY of Fargate only")
    if (memory := ecs.size.memory_gib) is not None and memory < LEAST_MEMORY_GIB:
        reader.problems.append(f"LAKEHOUSE_ECS_MEMORY_GIB={memory:g}: a worker needs {LEAST_MEMORY_GIB} GiB at least")
    return ecs


def _capacity(reader: Reader) -> dict[str, int]:
    """LAKEHOUSE_ECS_CAPACITY's weights by provider, without the names no provider can have."""
    variable = "LAKEHOUSE_ECS_CAPACITY"
    items = reader.items(variable, PROVIDER, "FARGATE_SPOT=3,FARGATE=1", required=False)
    given = [item.partition("=") for item in items if re.fullmatch(PROVIDER, item)]
    weights = {provider: int(weight or 1) for provider, _, weight in given}
    strange = [p for p in weights if RESERVED.match(p) and p not in FARGATE_PROVIDERS]
    capacity = {provider: weight for provider, weight in weights.items() if provider not in strange}
    wrong = {
        f"{', '.join(strange)} is no provider; Fargate's are {' and '.join(FARGATE_PROVIDERS)}, in capitals": strange,
        "a provider is given twice": len(weights) < len(given),
        f"a weight is more than {MOST_WEIGHT}": any(weight > MOST_WEIGHT for weight in weights.values()),
        "with all weights 0 no task is placed": weights and not any(weights.values()),
        "ECS takes either Fargate's providers or EC2's, not both": len({p in FARGATE_PROVIDERS for p in capacity}) > 1,
    }
    reader.problems += [f"{variable}: {what}" for what, so in wrong.items() if so]
    return capacity or {"FARGATE": 1}


def _size(reader: Reader, fargate: bool) -> Size:
    before = len(reader.problems)
    vcpus, memory = reader.number("LAKEHOUSE_ECS_VCPUS", float), reader.number("LAKEHOUSE_ECS_MEMORY_GIB", float)
    numbers = len(reader.problems) == before
    size = Size(vcpus, memory, reader.number("LAKEHOUSE_ECS_DISK_GIB", int))
    # Whether one goes with the other can't be said of what is no number.
    judged = size if numbers else replace(size, vcpus=None, memory_gib=None)
    if fargate and (problem := fargate_problem(judged)):
        set_ = [f"LAKEHOUSE_ECS_{name.upper()}" for name, value in vars(judged).items() if value is not None]
        reader.problems.append(f"{', '.join(set_)}: {problem}")
    return size


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
    return reader.text("LAKEHOUSE_CODE", f"s3{BUCKET}", "s3://bucket/code").rstrip("/")


def fargate_problem(size: Size) -> str | None:
    """All reasons why Fargate has no task of this size; None when it has, or when the task definition decides."""
    told = _unfit(size, "Fargate", FARGATE, FARGATE_DISK_GIB)
    if (size.vcpus is None) != (size.memory_gib is None):
        told.append("vCPUs and memory go together: give both or neither")
    return "; and ".join(told) or None


def emr_problem(size: Size) -> str | None:
    """All reasons why a step can't have a driver and executors of this size, whatever the cluster's instances are."""
    told = []
    if size.disk_gib is not None:
        told.append(f"{size.disk_gib} GiB of disk; on EMR disks are the cluster's: give its instances larger volumes")
    if size.vcpus is not None and size.vcpus % 1:
        told.append(f"{size.vcpus:g} vCPUs; on EMR a driver and executors have whole cores")
    return "; and ".join(told) or None


def serverless_problem(size: Size, conf: Mapping[str, str]) -> str | None:
    """All reasons why EMR Serverless has no worker of this size; None when it has, or when the application decides.

    conf: the worker's Spark settings, which may choose another type of disk.
    """
    types = [f"spark.emr-serverless.{who}.disk.type" for who in ("driver", "executor")]
    optimized = all(conf.get(name, "").lower() == OPTIMIZED for name in types)
    told = _unfit(size, "EMR Serverless", SERVERLESS, OPTIMIZED_DISK_GIB if optimized else SERVERLESS_DISK_GIB)
    if (size.disk_gib or 0) > SERVERLESS_DISK_GIB[1] and not optimized:
        told[0] += f", to {OPTIMIZED_DISK_GIB[1]} where spark_conf has {' and '.join(types)} {OPTIMIZED}"
    memory = size.memory_gib
    if size.vcpus is None and memory is not None and not any(memory in fitting for fitting in SERVERLESS.values()):
        every = ", ".join(f"{_listed(fitting)} with {vcpus:g} vCPUs" for vcpus, fitting in SERVERLESS.items())
        told.append(f"{memory:g} GiB; EMR Serverless gives {every}")
    return "; and ".join(told) or None


def _unfit(size: Size, who: str, fitting: Mapping[float, Sequence[float]], disk: tuple[int, int]) -> list[str]:
    """Why ``who`` has no such disk, no such vCPUs, or not that memory with them. fitting: GiB by vCPUs."""
    told, (least, most) = [], disk
    if size.disk_gib is not None and not least <= size.disk_gib <= most:
        told.append(f"{size.disk_gib} GiB of disk; {who} gives {least} to {most}")
    if size.vcpus is not None and size.vcpus not in fitting:
        told.append(f"{size.vcpus:g} vCPUs; {who} gives {', '.join(f'{v:g}' for v in fitting)}")
    memory = fitting.get(size.vcpus or 0, ())
    if memory and size.memory_gib is not None and size.memory_gib not in memory:
        told.append(f"{size.memory_gib:g} GiB with {size.vcpus:g} vCPUs; {who} gives {_listed(memory)}")
    return told


def _listed(numbers: Sequence[float]) -> str:
    if isinstance(numbers, range):
        return f"{numbers[0]} to {numbers[-1]} by {numbers.step}"
    return ", ".join(f"{number:g}" for number in numbers)
