"""The size of a worker with its own machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LEAST_MEMORY_GIB = 2
"""The least memory of a worker. Half is the heap; Python and the JVM itself need the rest."""
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
# vCPUs → GiB, including overhead outside the heap; the same as Fargate's from 1 vCPU on:
# https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/app-behavior.html (worker configurations)
SERVERLESS = {vcpus: memory for vcpus, memory in FARGATE.items() if vcpus >= 1}
SERVERLESS_DISK_GIB = (20, 200)
# https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/jobs-shuffle-optimized-disks.html
OPTIMIZED, OPTIMIZED_DISK_GIB = "shuffle_optimized", (20, 2000)


@dataclass(frozen=True)
class Size:
    """The size of a worker with its own machine; None means the environment's setting.

    Examples:
        >>> from lakehouse_assets import Size
        >>> Size(vcpus=4, memory_gib=16).memory_gib
        16
    """

    vcpus: float | None = None
    """Processors, as the service counts them."""
    memory_gib: float | None = None
    """Total memory in GiB."""
    disk_gib: int | None = None
    """Scratch space in GiB; on EMR and EMR on EKS the cluster decides."""


def fargate_problem(size: Size) -> str | None:
    """Returns all reasons why Fargate has no such task; None if it has."""
    problems = _problems(size, "Fargate", FARGATE, FARGATE_DISK_GIB)
    if (size.vcpus is None) != (size.memory_gib is None):
        problems.append("vCPUs and memory must be set together: give both or neither")
    return "; and ".join(problems) or None


def emr_problem(size: Size, service: str = "EMR") -> str | None:
    """Returns all reasons why drivers and executors can't have this size on any cluster; None if they can."""
    problems = []
    if size.disk_gib is not None:
        advice = f"on {service}, the cluster determines the disks: give its instances larger volumes"
        problems.append(f"{size.disk_gib} GiB of disk; {advice}")
    if size.vcpus is not None and size.vcpus % 1:
        problems.append(f"{size.vcpus:g} vCPUs; on {service}, drivers and executors have whole cores")
    return "; and ".join(problems) or None


def serverless_problem(size: Size, conf: Mapping[str, str]) -> str | None:
    """Returns all reasons why EMR Serverless has no such worker; None if it has.

    conf: Spark's settings, which may choose another type of disk.
    """
    types = [f"spark.emr-serverless.{process}.disk.type" for process in ("driver", "executor")]
    optimized = all(conf.get(name, "").lower() == OPTIMIZED for name in types)
    problems = _problems(size, "EMR Serverless", SERVERLESS, OPTIMIZED_DISK_GIB if optimized else SERVERLESS_DISK_GIB)
    if (size.disk_gib or 0) > SERVERLESS_DISK_GIB[1] and not optimized:
        # Such a disk is a problem, and _problems() names it first.
        problems[0] += f", or to {OPTIMIZED_DISK_GIB[1]} if spark_conf sets {' and '.join(types)} to {OPTIMIZED}"
    memory = size.memory_gib
    if size.vcpus is None and memory is not None and not any(memory in offered for offered in SERVERLESS.values()):
        every = ", ".join(f"{_listed(offered)} with {vcpus:g} vCPUs" for vcpus, offered in SERVERLESS.items())
        problems.append(f"{memory:g} GiB; EMR Serverless offers {every}")
    return "; and ".join(problems) or None


def _problems(size: Size, service: str, offered: Mapping[float, Sequence[float]], disk: tuple[int, int]) -> list[str]:
    """Returns a problem for each part of the size that a service does not offer, the disk's first.

    offered: GiB by vCPUs. disk: least and most GiB.
    """
    problems, (least, most) = [], disk
    if size.disk_gib is not None and not least <= size.disk_gib <= most:
        problems.append(f"{size.disk_gib} GiB of disk; {service} offers {least} to {most}")
    if size.vcpus is not None and size.vcpus not in offered:
        problems.append(f"{size.vcpus:g} vCPUs; {service} offers {', '.join(f'{v:g}' for v in offered)}")
    memory = offered.get(size.vcpus or 0, ())
    if memory and size.memory_gib is not None and size.memory_gib not in memory:
        problems.append(f"{size.memory_gib:g} GiB with {size.vcpus:g} vCPUs; {service} offers {_listed(memory)}")
    return problems


def _listed(numbers: Sequence[float]) -> str:
    if isinstance(numbers, range):
        return f"{numbers[0]} to {numbers[-1]} by {numbers.step}"
    return ", ".join(f"{number:g}" for number in numbers)
