"""What ECS refuses, by its documentation, and the names of the one cluster and task definition the fake has.
Stricter than ECS where its pages are vague: a fake that is kinder hides faults."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.fakes.wire import Fault
from tests.support.servers import REGION

ACCOUNT = "123456789012"
PREFIX = f"arn:aws:ecs:{REGION}:{ACCOUNT}"
CLUSTER, FAMILY, CONTAINER, LOG_GROUP, LOG_PREFIX = "lakehouse", "lakehouse-worker", "worker", "/lakehouse", "worker"
IMAGE = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/lakehouse:1"
# https://docs.aws.amazon.com/AmazonECS/latest/developerguide/fargate-tasks-services.html#fargate-tasks-size
MEMORY_BY_CPU: dict[int, Sequence[int]] = {
    256: (512, 1024, 2048),
    512: range(1024, 4097, 1024),
    1024: range(2048, 8193, 1024),
    2048: range(4096, 16385, 1024),
    4096: range(8192, 30721, 1024),
    8192: range(16384, 61441, 4096),
    16384: range(32768, 122881, 8192),
}
FARGATE = {"FARGATE", "FARGATE_SPOT"}


def check_cluster(name: str) -> None:
    refuse(name not in (CLUSTER, f"{PREFIX}:cluster/{CLUSTER}"), "ClusterNotFoundException", "Cluster not found.")


def check_request(request: Mapping[str, Any], token: str, definition: Mapping[str, Any]) -> None:
    """https://docs.aws.amazon.com/AmazonECS/latest/APIReference/API_RunTask.html and what it links to."""
    overrides = request.get("overrides", {})
    names = {container["name"] for container in overrides.get("containerOverrides", [])}
    strategy = request.get("capacityProviderStrategy", [])
    providers = {item["capacityProvider"] for item in strategy}
    cpu, memory = (int(overrides.get(name) or definition[name]) for name in ("cpu", "memory"))
    disk = overrides.get("ephemeralStorage", {}).get("sizeInGiB", 21)
    tags = {tag.get("key", ""): tag.get("value", "") for tag in request.get("tags", [])}
    written = len(json.dumps(overrides, separators=(",", ":")))
    wrong = {
        "Container Overrides length must be at most 8192": written > 8192,
        f"Override for container named {names} is not a container in the TaskDefinition.": names - {CONTAINER},
        "Network Configuration must be provided when networkMode 'awsvpc' is specified.": not request.get(
            "networkConfiguration", {}
        )
        .get("awsvpcConfiguration", {})
        .get("subnets"),
        "Specifying both a launch type and capacity provider strategy is not supported.": strategy
        and "launchType" in request,
        "No launch type to fall back on for empty capacity provider strategy was given.": not strategy,
        "A capacity provider strategy cannot contain a mix of Fargate and Auto Scaling group providers.": providers
        & FARGATE
        and providers - FARGATE,
        f"No Fargate configuration exists for given values: {cpu} CPU, {memory} memory.": providers <= FARGATE
        and memory not in MEMORY_BY_CPU.get(cpu, ()),
        "Ephemeral storage must be between 21 and 200 GiB.": not 21 <= disk <= 200,
        "startedBy is not valid": not re.fullmatch(r"[\w/-]{0,128}", request.get("startedBy", "")),
        "clientToken is not valid": not re.fullmatch(r"[!-~]{0,64}", token),
        "Duplicate tag keys, or more than 50": len(tags) != len(request.get("tags", [])) or len(tags) > 50,
        f"Invalid tags: {tags}": any(
            not re.fullmatch(r"(?!(?i:aws:))[\w\s+\-=.:/@]{1,128}", key)
            or not re.fullmatch(r"[\w\s+\-=.:/@]{0,256}", v)
            for key, v in tags.items()
        ),
    }
    for message, is_wrong in wrong.items():
        refuse(bool(is_wrong), "InvalidParameterException", message)


def refuse(wrong: bool, code: str, message: str, **members: Any) -> None:
    if wrong:
        raise Fault(code, message, **members)
