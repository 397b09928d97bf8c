"""Interprets ECS's answers: how a task ended, why none was started, what one used and where a person finds it.

These are pure functions of the answers as boto3 returns them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from lakehouse_assets.environment.launchers.base import Ended, Usage
from lakehouse_assets.environment.launchers.prices import FARGATE_MINIMUM_SECONDS, FARGATE_PRICES

Task = Mapping[str, Any]

# Stop codes and reasons: https://docs.aws.amazon.com/AmazonECS/latest/developerguide/stopped-task-error-codes.html
LOST = ("SpotInterruption", "TerminationNotice", "InfrastructureHealth")
LOST_REASONS = re.compile("spot task was interrupted|host ec2|maintenance|is being retired", re.IGNORECASE)
OUT_OF_MEMORY = "OutOfMemoryError"
KILLED, TERMINATED = 137, 143  # 128 + SIGKILL, 128 + SIGTERM
# Reasons of a task that could not start because too many did at once.
THROTTLED = re.compile("throttl|rate exceeded|too ?many ?requests")
# Reasons of a task that could not start, and that another attempt would meet again.
MISCONFIGURED = re.compile(
    "accessdenied|not authorized|secret|ssm|resourcenotfound|does not exist|log group|unable to assume"
    "|cannotstartcontainererror"
)
# RunTask's failures that will not pass: https://docs.aws.amazon.com/AmazonECS/latest/developerguide/api_failures_messages.html
NEVER_PLACED = ("ATTRIBUTE", "LOCATION", "INACTIVE", "MemberOf placement constraint")
PLACEMENT_ADVICE = {
    "capacity": "more subnets in other availability zones (LAKEHOUSE_ECS_SUBNETS) or FARGATE beside FARGATE_SPOT "
    "(LAKEHOUSE_ECS_CAPACITY) give it more to choose from",
    "resource:eni": "the subnets in LAKEHOUSE_ECS_SUBNETS, or the instances, have no network interface left",
    "resource:": "no instance of LAKEHOUSE_ECS_CAPACITY has that much left; smaller workers or more instances help",
    "agent": "the ECS agent of the instances in LAKEHOUSE_ECS_CLUSTER is not connected",
    "attribute": "no instance in LAKEHOUSE_ECS_CLUSTER has what LAKEHOUSE_ECS_TASK_DEFINITION requires",
    "memberof": "no instance in LAKEHOUSE_ECS_CLUSTER meets the constraints of LAKEHOUSE_ECS_TASK_DEFINITION",
}
# By a part of the error's code or message in lower case; the first that matches counts.
ERROR_ADVICE = {
    "reached the limit": "raise the region's quota of Fargate vCPUs, or lower the limit of the pool lake_workers",
    "accessdenied": "the code location's role needs ecs:RunTask and ecs:TagResource, and iam:PassRole for the roles of "
    "LAKEHOUSE_ECS_TASK_DEFINITION",
    "unrecognizedclient": "the code location's AWS credentials are not valid",
    "expiredtoken": "the code location's AWS credentials have expired",
    "clusternotfound": "check LAKEHOUSE_ECS_CLUSTER and the region (AWS_DEFAULT_REGION)",
    "override for container": "LAKEHOUSE_ECS_CONTAINER names a container that the task definition doesn't have",
    "length must be at most": "the task definition's own settings and the table's are too long for RunTask together",
    "security group": "check LAKEHOUSE_ECS_SECURITY_GROUPS",
    "securitygroup": "check LAKEHOUSE_ECS_SECURITY_GROUPS",
    "subnet": "check LAKEHOUSE_ECS_SUBNETS",
    "capacity provider": "check LAKEHOUSE_ECS_CAPACITY: the cluster needs these capacity providers",
    "configuration exists": "check LAKEHOUSE_ECS_VCPUS and LAKEHOUSE_ECS_MEMORY_GIB, or the table's size",
    "ephemeral": "check LAKEHOUSE_ECS_DISK_GIB, or the table's size",
    "taskdefinition": "check LAKEHOUSE_ECS_TASK_DEFINITION: it must be an active revision",
    "task definition": "check LAKEHOUSE_ECS_TASK_DEFINITION: it must be an active revision",
}
GENERAL_ADVICE = "check the LAKEHOUSE_ECS_* variables"
# What a task that could not start lacked, by a part of the reason in lower case; the first that matches counts.
START_ADVICE = {
    "insufficientfreeaddresses": "a subnet of LAKEHOUSE_ECS_SUBNETS has no addresses left: give others, or larger ones",
    "assume the role": "the role must exist, and its trust must name ecs-tasks.amazonaws.com",
    "secret": "the execution role of LAKEHOUSE_ECS_TASK_DEFINITION needs secretsmanager:GetSecretValue on the secret, "
    "and the subnets a way to Secrets Manager",
    "cloudwatch": "the log group of LAKEHOUSE_ECS_TASK_DEFINITION must exist, its execution role needs "
    "logs:CreateLogStream on it, and the subnets a way to CloudWatch Logs",
}
# The longest that a task may wait for its host, its network and its image.
START_LIMIT = timedelta(minutes=15)
WAITING = ("PROVISIONING", "PENDING", "ACTIVATING")
# https://docs.aws.amazon.com/general/latest/gr/aws-arns-and-namespaces.html
CONSOLES = {"aws-cn": "console.amazonaws.cn", "aws-us-gov": "console.amazonaws-us-gov.com"}


def ended(task: Task, container: str) -> Ended | None:
    """Says how a task of DescribeTasks ended; None while it runs. container: the name of the worker's container."""
    if task["lastStatus"] != "STOPPED":
        return None
    code, reason = task.get("stopCode", ""), task.get("stoppedReason", "")
    worker: Mapping[str, Any] = next((c for c in task.get("containers", ()) if c["name"] == container), {})
    if code in LOST or LOST_REASONS.search(reason):
        return Ended(f"was taken from its host by AWS ({code}: {reason})", transient=True)
    if code == "TaskFailedToStart":
        return _not_started(" ".join(filter(None, (reason, worker.get("reason")))), worker.get("image", "its image"))
    if OUT_OF_MEMORY in reason or any(OUT_OF_MEMORY in c.get("reason", "") for c in task.get("containers", ())):
        return Ended(
            f"ran out of memory with {_size(task)} ({OUT_OF_MEMORY}): raise the table's size or "
            "LAKEHOUSE_ECS_MEMORY_GIB, or give a worker fewer partitions (partitions_per_worker)"
        )
    if code == "UserInitiated":
        return Ended(f"was stopped by a person or a program through ECS ({reason})", stopped=True)
    if "ServerException" in reason or "InternalError" in reason:
        return Ended(f"was ended by a fault of ECS ({reason})", transient=True)
    return _exited(task, worker, reason)


def stuck(task: Task, now: datetime) -> Ended | None:
    """Says that a task waits to be started for longer than START_LIMIT; None for others. now: with a timezone."""
    created: datetime | None = task.get("createdAt")
    if task["lastStatus"] not in WAITING or created is None or now - created <= START_LIMIT:
        return None
    minutes, why = START_LIMIT / timedelta(minutes=1), task["lastStatus"]
    return Ended(
        f"was not started within {minutes:g} minutes (it is {why}), was stopped: see whether the subnets in "
        "LAKEHOUSE_ECS_SUBNETS have a way to the registry, and LAKEHOUSE_ECS_CAPACITY instances that can be added",
        transient=True,
    )


def _not_started(reason: str, image: str) -> Ended:
    lower = reason.lower()
    if THROTTLED.search(lower):
        return Ended(f"could not start, too many did at once ({reason})", transient=True)
    if "cannotpullcontainererror" in lower:
        return Ended(
            f"could not start: ECS can't pull {image} ({reason}): check the image and its tag in "
            "LAKEHOUSE_ECS_TASK_DEFINITION, its execution role, and the subnets' way to the registry"
        )
    advice = next((text for part, text in START_ADVICE.items() if part in lower), "")
    if MISCONFIGURED.search(lower):
        return Ended(f"could not start ({reason}): {advice or 'check LAKEHOUSE_ECS_TASK_DEFINITION'}")
    return Ended(f"could not start ({reason}){advice and ': '}{advice}", transient=True)


def _exited(task: Task, worker: Mapping[str, Any], reason: str) -> Ended:
    reasons = f"{worker['reason']}, {reason}" if worker.get("reason") else reason
    match worker.get("exitCode"):
        case None:
            return Ended(f"was lost: ECS knows no exit code ({reasons or 'no reason given'})", transient=True)
        case 0:
            return Ended("exited with status 0")
        case code if code == KILLED:
            return Ended(
                f"was killed (SIGKILL, exit code {KILLED}; {reasons}), most likely because {_size(task)} were too "
                "little memory; see the task's log"
            )
        case code if code == TERMINATED:  # a stop through ECS has a stop code of its own
            end = f"was terminated (SIGTERM, exit code {TERMINATED}; {reasons}), though nobody asked ECS to stop it"
            return Ended(f"{end}: its host was drained or went down", transient=True)
        case os.EX_TEMPFAIL:  # what a worker exits with when it lost its network
            end = f"lost its network, or S3 would not serve it (exit code {os.EX_TEMPFAIL}; {reasons})"
            return Ended(end, transient=True)
        case code:
            return Ended(f"exited with status {code} ({reasons})")


def _size(task: Task) -> str:
    vcpus, gib = size(task)
    return f"{vcpus:g} vCPUs and {gib:g} GiB"


def size(task: Task) -> tuple[float, float]:
    """Returns a task's vCPUs and GiB: its own, or its containers' sum, as only these have limits on some instances."""
    parts = [task] if task.get("cpu") and task.get("memory") else task.get("containers", ())
    return (
        sum(int(part.get("cpu") or 0) for part in parts) / 1024,
        sum(int(part.get("memory") or 0) for part in parts) / 1024,
    )


def placed(failures: Sequence[Mapping[str, str]]) -> tuple[str, bool]:
    """Says why RunTask placed no task, and whether it may place one later."""
    reasons = "; ".join(": ".join(filter(None, (f.get("reason"), f.get("detail")))) for f in failures) or "no reason"
    advice = next((text for start, text in PLACEMENT_ADVICE.items() if start in reasons.lower()), GENERAL_ADVICE)
    return f"ECS placed no task ({reasons}); {advice}", not any(text in reasons for text in NEVER_PLACED)


def refused(code: str, message: str) -> str:
    """Says what RunTask's error was, and what to do about it."""
    error = f"{code} {message}".lower()
    advice = next((text for part, text in ERROR_ADVICE.items() if part in error), GENERAL_ADVICE)
    return f"ECS answered RunTask with {code} ({message}); {advice}"


def usage(task: Task) -> Usage | None:
    """Returns what an ended task used and is billed for; None for one that ended before it pulled its image."""
    start: datetime | None = task.get("pullStartedAt") or task.get("startedAt")
    end: datetime | None = task.get("stoppedAt") or task.get("executionStoppedAt")
    if start is None or end is None:
        return None
    seconds = max((end - start).total_seconds(), FARGATE_MINIMUM_SECONDS)
    vcpu_hours, gib_hours = (amount * seconds / 3600 for amount in size(task))
    provider = task.get("capacityProviderName") or task.get("launchType", "")
    source = f"{_size(task)} for {seconds:.0f} s by DescribeTasks"
    price = FARGATE_PRICES.get(provider)
    if price is None:
        return Usage(vcpu_hours, gib_hours, 0.0, f"{source}; {provider} runs on instances that are billed as such")
    disk = max(0, task.get("ephemeralStorage", {}).get("sizeInGiB", 0) - price.included_disk_gib)
    usd = price.usd(vcpu_hours, gib_hours, disk * seconds / 3600)
    return Usage(vcpu_hours, gib_hours, usd, f"{source}; {price.source}")


def link(arn: str) -> str:
    """Returns the URL of a task's log in the console. arn: ``arn:partition:ecs:region:account:task/cluster/id``."""
    _, partition, _, region, _, resource = arn.split(":", 5)
    _, cluster, task = resource.split("/")
    console = CONSOLES.get(partition, "console.aws.amazon.com")
    return f"https://{region}.{console}/ecs/v2/clusters/{cluster}/tasks/{task}/logs?region={region}"
