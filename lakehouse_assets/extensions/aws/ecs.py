"""Runs workers as ECS tasks."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from lakehouse_assets.environment.aws import batches, client, find_in_time, is_transient
from lakehouse_assets.environment.launchers.base import Attempt, Ended, Handle, NotStarted, Usage
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.extensions.aws.aws_launcher import AwsLauncher, cloudwatch_tail, tags
from lakehouse_assets.extensions.aws.computes import Ecs
from lakehouse_assets.extensions.aws.prices import FARGATE_MINIMUM_SECONDS, FARGATE_PRICES

logger = logging.getLogger(__name__)

Task = Mapping[str, Any]

# Stop codes and reasons: https://docs.aws.amazon.com/AmazonECS/latest/developerguide/stopped-task-error-codes.html
LOST = ("SpotInterruption", "TerminationNotice", "InfrastructureHealth")
LOST_REASONS = re.compile("spot task was interrupted|host ec2|maintenance|is being retired", re.IGNORECASE)
OUT_OF_MEMORY = "OutOfMemoryError"
KILLED, TERMINATED = 137, 143  # 128 + SIGKILL, 128 + SIGTERM
# Why a task could not start: too many tasks started at once.
THROTTLED = re.compile("throttl|rate exceeded|too ?many ?requests")
# Why a task could not start, if the reason is one that another attempt would meet again.
MISCONFIGURED = re.compile(
    "accessdenied|not authorized|secret|ssm|resourcenotfound|does not exist|log group|unable to assume"
    "|cannotstartcontainererror"
)
# RunTask's failures that will not pass: https://docs.aws.amazon.com/AmazonECS/latest/developerguide/api_failures_messages.html
NEVER_PLACED = ("ATTRIBUTE", "LOCATION", "INACTIVE", "MemberOf placement constraint")
# By a part of RunTask's reasons in lower case; the first match counts, so a longer part comes before its beginning.
PLACEMENT_ADVICE = {
    "capacity": "more subnets in other availability zones (LAKEHOUSE_ECS_SUBNETS) or FARGATE in addition to "
    "FARGATE_SPOT (LAKEHOUSE_ECS_CAPACITY) give it more choice",
    "resource:eni": "the subnets in LAKEHOUSE_ECS_SUBNETS, or the instances, have no free network interface",
    "resource:": "no instance of LAKEHOUSE_ECS_CAPACITY has enough free; use smaller workers or more instances",
    "agent": "the ECS agent of the instances in LAKEHOUSE_ECS_CLUSTER is not connected",
    "attribute": "no instance in LAKEHOUSE_ECS_CLUSTER has what LAKEHOUSE_ECS_TASK_DEFINITION requires",
    "memberof": "no instance in LAKEHOUSE_ECS_CLUSTER meets the constraints of LAKEHOUSE_ECS_TASK_DEFINITION",
}
# In the message if the quota of vCPUs is used up, for which RunTask has no error code.
NO_VCPUS = "reached the limit"
# By a part of the error's code or message in lower case; the first match counts.
ERROR_ADVICE = {
    NO_VCPUS: "raise the region's quota of Fargate vCPUs, or lower the limit of the pool lake_workers",
    "accessdenied": "the code location's role needs ecs:RunTask and ecs:TagResource, and iam:PassRole for the roles of "
    "LAKEHOUSE_ECS_TASK_DEFINITION",
    "unrecognizedclient": "the code location's AWS credentials are not valid",
    "expiredtoken": "the code location's AWS credentials have expired",
    "clusternotfound": "check LAKEHOUSE_ECS_CLUSTER and the region (AWS_DEFAULT_REGION)",
    "override for container": "LAKEHOUSE_ECS_CONTAINER names a container that the task definition doesn't have",
    "length must be at most": "together, the settings of the task definition and of the table are too long for RunTask",
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
# By a part of the reason why a task could not start, in lower case; the first match counts.
START_ADVICE = {
    "insufficientfreeaddresses": "a subnet of LAKEHOUSE_ECS_SUBNETS has no free addresses: use other or larger subnets",
    "assume the role": "the role must exist, and its trust policy must name ecs-tasks.amazonaws.com",
    "secret": "the execution role of LAKEHOUSE_ECS_TASK_DEFINITION needs secretsmanager:GetSecretValue on the secret, "
    "and the subnets need a route to Secrets Manager",
    "cloudwatch": "the log group of LAKEHOUSE_ECS_TASK_DEFINITION must exist, its execution role needs "
    "logs:CreateLogStream on it, and the subnets need a route to CloudWatch Logs",
}
# The longest wait for host, network and image.
START_LIMIT = timedelta(minutes=15)
WAITING = ("PROVISIONING", "PENDING", "ACTIVATING")
# https://docs.aws.amazon.com/general/latest/gr/aws-arns-and-namespaces.html
CONSOLES = {"aws-cn": "console.amazonaws.cn", "aws-us-gov": "console.amazonaws-us-gov.com"}


def ended(task: Task, container: str) -> Ended | None:
    """Returns how a task ended; None while it runs. container: the worker's."""
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
        return Ended(f"was stopped through ECS by a person or a program ({reason})", stopped=True)
    if "ServerException" in reason or "InternalError" in reason:
        return Ended(f"was ended by a fault of ECS ({reason})", transient=True)
    return _exited(task, worker, reason)


def stuck(task: Task, now: datetime) -> Ended | None:
    """Returns an end for a task that has waited longer than START_LIMIT, else None. now: with a timezone."""
    created: datetime | None = task.get("createdAt")
    if task["lastStatus"] not in WAITING or created is None or now - created <= START_LIMIT:
        return None
    minutes, why = START_LIMIT / timedelta(minutes=1), task["lastStatus"]
    return Ended(
        f"was not started within {minutes:g} minutes (it is {why}) and was stopped: check that the subnets in "
        "LAKEHOUSE_ECS_SUBNETS have a route to the registry, and that LAKEHOUSE_ECS_CAPACITY can add instances",
        transient=True,
    )


def _not_started(reason: str, image: str) -> Ended:
    lower = reason.lower()
    if THROTTLED.search(lower):
        return Ended(f"could not start, because too many tasks started at once ({reason})", transient=True)
    if "cannotpullcontainererror" in lower:
        return Ended(
            f"could not start: ECS can't pull {image} ({reason}): check the image and its tag in "
            "LAKEHOUSE_ECS_TASK_DEFINITION, its execution role, and the subnets' route to the registry"
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
                f"was killed (SIGKILL, exit code {KILLED}; {reasons}), most likely because {_size(task)} was too "
                "little memory; see the task's log"
            )
        case code if code == TERMINATED:
            # Nobody asked ECS: a stop through ECS has a stop code of its own.
            end = f"was terminated (SIGTERM, exit code {TERMINATED}; {reasons}), though nobody asked ECS to stop it"
            return Ended(f"{end}: its host was drained or went down", transient=True)
        case os.EX_TEMPFAIL:
            # A worker that has lost its network exits with this status.
            end = f"lost its network connection, or S3 did not respond (exit code {os.EX_TEMPFAIL}; {reasons})"
            return Ended(end, transient=True)
        case code:
            return Ended(f"exited with status {code} ({reasons})")


def _size(task: Task) -> str:
    vcpus, gib = size(task)
    return f"{vcpus:g} vCPUs and {gib:g} GiB"


def size(task: Task) -> tuple[float, float]:
    """Returns a task's vCPUs and GiB: its own, or its containers' sum, as on some instances only these have limits."""
    parts = [task] if task.get("cpu") and task.get("memory") else task.get("containers", ())
    return (
        sum(int(part.get("cpu") or 0) for part in parts) / 1024,
        sum(int(part.get("memory") or 0) for part in parts) / 1024,
    )


def placed(failures: Sequence[Mapping[str, str]]) -> tuple[str, bool]:
    """Returns why RunTask placed no task, and whether it may place one later."""
    reasons = "; ".join(": ".join(filter(None, (f.get("reason"), f.get("detail")))) for f in failures) or "no reason"
    advice = next((text for start, text in PLACEMENT_ADVICE.items() if start in reasons.lower()), GENERAL_ADVICE)
    return f"ECS placed no task ({reasons}); {advice}", not any(text in reasons for text in NEVER_PLACED)


def refused(code: str, message: str) -> str:
    """Explains RunTask's error."""
    error = f"{code} {message}".lower()
    advice = next((text for part, text in ERROR_ADVICE.items() if part in error), GENERAL_ADVICE)
    return f"ECS answered RunTask with {code} ({message}); {advice}"


def usage(task: Task) -> Usage | None:
    """Returns the billed usage; None for a task that ended before it pulled its image."""
    start: datetime | None = task.get("pullStartedAt") or task.get("startedAt")
    end: datetime | None = task.get("stoppedAt") or task.get("executionStoppedAt")
    if start is None or end is None:
        return None
    seconds = max((end - start).total_seconds(), FARGATE_MINIMUM_SECONDS)
    vcpu_hours, gib_hours = (amount * seconds / 3600 for amount in size(task))
    provider = task.get("capacityProviderName") or task.get("launchType", "")
    source = f"{_size(task)} for {seconds:.0f} s, from DescribeTasks"
    price = FARGATE_PRICES.get(provider)
    if price is None:
        return Usage(vcpu_hours, gib_hours, 0.0, f"{source}; {provider} runs on instances, which are billed instead")
    disk = max(0, task.get("ephemeralStorage", {}).get("sizeInGiB", 0) - price.included_disk_gib)
    usd = price.usd(vcpu_hours, gib_hours, disk * seconds / 3600)
    return Usage(vcpu_hours, gib_hours, usd, f"{source}; {price.source}")


def link(arn: str) -> str:
    """Returns the URL of the task's log. arn: ``arn:partition:ecs:region:account:task/cluster/id``."""
    _, partition, _, region, _, resource = arn.split(":", 5)
    _, cluster, task = resource.split("/")
    console = CONSOLES.get(partition, "console.aws.amazon.com")
    return f"https://{region}.{console}/ecs/v2/clusters/{cluster}/tasks/{task}/logs?region={region}"


# https://docs.aws.amazon.com/AmazonECS/latest/APIReference/API_DescribeTasks.html
DESCRIBE_AT_ONCE = 100
# «The Amazon ECS API follows an eventual consistency model»: DescribeTasks may not know a new task for MISSING_SECONDS.
# FIND_WAITS are the seconds before each try to find a new task with ListTasks.
MISSING_SECONDS = 60.0
FIND_WAITS = (0.0, 1.0, 2.0)


class EcsLauncher(AwsLauncher):
    """Launches tasks of one cluster and task definition. command: what the worker's container runs."""

    service = "ECS"

    def __init__(self, settings: Settings, ecs: Ecs, command: Sequence[str]) -> None:
        super().__init__(settings)
        self._settings = ecs
        self._command = command
        self._ecs = client("ecs")
        self._missing: dict[str, float] = {}  # by ARN: since when, on time.monotonic()
        self._usages: dict[str, Usage | None] = {}

    def submit(self, attempt: Attempt, environment: Mapping[str, str]) -> Handle:
        """Starts or finds the task. Raises NotStarted."""
        parameters = run_task(self._settings, attempt, environment, self._command)
        try:
            answer = self._ecs.run_task(**parameters)
        except (ClientError, BotoCoreError) as error:
            return self._task_despite(error, attempt)
        if not answer["tasks"]:
            reason, transient = placed(answer["failures"])
            raise NotStarted(reason, transient=transient)
        return Handle(answer["tasks"][0]["taskArn"])

    def _task_despite(self, error: Exception, attempt: Attempt) -> Handle:
        """Finds a task that runs despite RunTask's error, else raises NotStarted."""
        if isinstance(error, ClientError):
            # ConflictException: a task started with this clientToken but other settings. It does the same work.
            if earlier := error.response.get("resourceIds"):
                return Handle(earlier[0])
            details = error.response["Error"]
            message = details.get("Message", "")
            reason = refused(details["Code"], message)
            transient = is_transient(error) or NO_VCPUS in message
        else:
            reason, transient = f"ECS can't be reached to run a task: {error}", is_transient(error)
        # Only after a transient error may the task have been started.
        if is_transient(error):
            try:
                if started := self._find(attempt):
                    return started
            except (ClientError, BotoCoreError) as unknown:
                logger.warning("can't find out whether ECS started a task for %s: %s", attempt.key, unknown)
        raise NotStarted(reason, transient=transient, unconfirmed=is_transient(error)) from error

    def _find(self, attempt: Attempt) -> Handle | None:
        """Finds the attempt's task if it has not stopped.

        If it has, RunTask finds it: with the same token, within an hour, RunTask returns that task and starts none.
        """

        def listed() -> Handle | None:
            # «When you specify startedBy as the filter, it must be the only filter that you use.»
            arns = self._ecs.list_tasks(cluster=self._settings.cluster, startedBy=attempt.key)["taskArns"]
            return Handle(arns[0]) if arns else None

        return find_in_time(listed, FIND_WAITS)

    def _poll(self, handles: Sequence[Handle]) -> Mapping[str, Ended]:
        """Also stops tasks that are stuck, and keeps the usage of ended ones."""
        found: dict[str, Ended] = {}
        asked = {handle.id: handle.asked for handle in handles}
        for arns in batches(list(asked), DESCRIBE_AT_ONCE):
            answer = self._ecs.describe_tasks(cluster=self._settings.cluster, tasks=arns)
            for task in answer["tasks"]:
                arn = task["taskArn"]
                self._missing.pop(arn, None)
                if started := task.get("startedAt"):
                    self._begun[arn] = started
                if end := ended(task, self._settings.container):
                    found[arn], self._usages[arn] = end, usage(task)
                elif hangs := stuck(task, datetime.now(UTC)):
                    # Otherwise the task might start together with the next attempt.
                    self._stop([Handle(arn)])
                    found[arn] = hangs
            for failure in answer["failures"]:
                arn = failure["arn"]
                requested = asked[arn]
                # If another process requested the task, its age is known; else the time counts from when it was missed.
                missed = self._missing.setdefault(arn, time.monotonic())
                seconds = (datetime.now(UTC) - requested).total_seconds() if requested else time.monotonic() - missed
                # Until then ECS may not know the task yet.
                if seconds >= MISSING_SECONDS:
                    found[arn] = Ended(f"is unknown to ECS ({failure.get('reason')})", transient=True)
        return found

    def _stop(self, handles: Sequence[Handle]) -> dict[str, Exception]:
        """Stops one task, as StopTask takes no more: ECS sends SIGTERM, and SIGKILL after stopTimeout."""
        reason = "the Dagster run that started it was terminated, or gave up on it"
        try:
            self._ecs.stop_task(cluster=self._settings.cluster, task=handles[0].id, reason=reason)
        except ClientError as error:
            message = error.response["Error"].get("Message", "")
            # A task that ECS no longer knows has ended.
            if not ("not found" in message and "task" in message):
                raise
        return {}

    def link(self, handle: Handle) -> str:
        """Returns the log's URL."""
        return link(handle.id)

    def _tail(self, handle: Handle) -> str:
        ecs = self._settings
        group, prefix = self._awslogs.get("awslogs-group"), self._awslogs.get("awslogs-stream-prefix")
        if group is None or prefix is None:
            return (
                f"(no log: the container {ecs.container} of {ecs.task_definition} has no awslogs configuration "
                "with a group and a stream prefix)"
            )
        return cloudwatch_tail(self._logs, group, f"{prefix}/{ecs.container}/{handle.id.rpartition('/')[2]}")

    @cached_property
    def _awslogs(self) -> Mapping[str, str]:
        """The options of the worker container's log; empty if its driver is not awslogs."""
        name = self._settings.task_definition
        definition = self._ecs.describe_task_definition(taskDefinition=name)["taskDefinition"]
        containers = {container["name"]: container for container in definition["containerDefinitions"]}
        log = containers.get(self._settings.container, {}).get("logConfiguration", {})
        options: Mapping[str, Any] = log.get("options", {}) if log.get("logDriver") == "awslogs" else {}
        return options

    def _usage(self, handle: Handle) -> Usage | None:
        return self._usages.get(handle.id)


def run_task(ecs: Ecs, attempt: Attempt, environment: Mapping[str, str], command: Sequence[str]) -> dict[str, Any]:
    """Returns RunTask's parameters, equal for the same attempt, as a client token demands.

    Raises NotStarted for a size that Fargate doesn't offer.
    """
    size, problem = ecs.sized(attempt.size)
    if problem:
        raise NotStarted(
            f"the table's size, completed by LAKEHOUSE_ECS_VCPUS …, is not possible: {problem}", transient=False
        )
    variables = sorted({**environment, "PYTHONUNBUFFERED": "1"}.items())
    container = {
        "name": ecs.container,
        "command": list(command),
        "environment": [{"name": name, "value": value} for name, value in variables],
    }
    overrides: dict[str, Any] = {"containerOverrides": [container]}
    for name, amount in (("cpu", size.vcpus), ("memory", size.memory_gib)):
        if amount is not None:
            overrides[name] = str(int(amount * 1024))
    if size.disk_gib is not None:
        overrides["ephemeralStorage"] = {"sizeInGiB": size.disk_gib}
    network = {
        "subnets": list(ecs.subnets),
        "securityGroups": list(ecs.security_groups),
        "assignPublicIp": "ENABLED" if ecs.public_ip else "DISABLED",
    }
    return {
        "cluster": ecs.cluster,
        "taskDefinition": ecs.task_definition,
        "capacityProviderStrategy": [{"capacityProvider": p, "weight": weight} for p, weight in ecs.capacity.items()],
        "networkConfiguration": {"awsvpcConfiguration": network},
        "overrides": overrides,
        "tags": [{"key": name, "value": value} for name, value in tags(attempt).items()],
        "propagateTags": "TASK_DEFINITION",
        "startedBy": attempt.key,
        "clientToken": attempt.key,
    }
