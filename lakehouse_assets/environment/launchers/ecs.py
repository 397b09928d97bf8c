"""Runs workers as ECS tasks, on Fargate or instances: starts one for each attempt, finds, watches and stops them.

What ECS's answers mean is in ecs_answers.py; what all launchers on AWS share is in aws_launcher.py.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from lakehouse_assets.environment.aws import batches, client, find_in_time, is_transient
from lakehouse_assets.environment.computes import Ecs
from lakehouse_assets.environment.launchers import ecs_answers as answers
from lakehouse_assets.environment.launchers.aws_launcher import AwsLauncher, cloudwatch_tail, tags
from lakehouse_assets.environment.launchers.base import Attempt, Ended, Handle, NotStarted, Usage
from lakehouse_assets.environment.settings import Settings

logger = logging.getLogger(__name__)

# https://docs.aws.amazon.com/AmazonECS/latest/APIReference/API_DescribeTasks.html
DESCRIBE_AT_ONCE = 100
# «The Amazon ECS API follows an eventual consistency model»: how long a task may be unknown to DescribeTasks, and the
# waits before each look with ListTasks for one that may just have been started.
MISSING_SECONDS = 60.0
FIND_WAITS = (0.0, 1.0, 2.0)


class EcsLauncher(AwsLauncher):
    """Runs workers as tasks of one cluster and task definition.

    command: what the worker's container runs.
    """

    service = "ECS"

    def __init__(self, settings: Settings, ecs: Ecs, command: Sequence[str]) -> None:
        super().__init__(settings)
        self._settings = ecs
        self._command = command
        self._ecs = client("ecs")
        self._missing: dict[str, float] = {}  # since when, on time.monotonic()
        self._usages: dict[str, Usage | None] = {}

    def submit(self, attempt: Attempt, environment: Mapping[str, str]) -> Handle:
        """Starts the attempt's task, or finds the one that RunTask started for it before. Raises NotStarted."""
        parameters = run_task(self._settings, attempt, environment, self._command)
        try:
            answer = self._ecs.run_task(**parameters)
        except (ClientError, BotoCoreError) as error:
            return self._task_despite(error, attempt)
        if not answer["tasks"]:
            reason, transient = answers.placed(answer["failures"])
            raise NotStarted(reason, transient=transient)
        return Handle(answer["tasks"][0]["taskArn"])

    def _task_despite(self, error: Exception, attempt: Attempt) -> Handle:
        """Finds the attempt's task, which may run though RunTask gave an error. Raises NotStarted if there is none."""
        if isinstance(error, ClientError):
            # The attempt was submitted before, with settings that have changed since: its task does the same work.
            if earlier := error.response.get("resourceIds"):
                return Handle(earlier[0])
            details = error.response["Error"]
            reason = answers.refused(details["Code"], details.get("Message", ""))
            transient = is_transient(error) or "reached the limit" in reason
        else:
            reason, transient = f"ECS can't be asked to run a task: {error}", is_transient(error)
        if is_transient(error):
            try:
                if started := self._find(attempt):
                    return started
            except (ClientError, BotoCoreError) as unknown:
                logger.warning("ECS can't be asked whether it started a task for %s: %s", attempt.key, unknown)
        raise NotStarted(reason, transient=transient, unconfirmed=is_transient(error)) from error

    def _find(self, attempt: Attempt) -> Handle | None:
        """Finds the attempt's task, if it runs or is about to.

        One that has stopped is found by RunTask: called with the same token within an hour, it returns that task and
        starts none.
        """

        def listed() -> Handle | None:
            # «When you specify startedBy as the filter, it must be the only filter that you use.»
            arns = self._ecs.list_tasks(cluster=self._settings.cluster, startedBy=attempt.key)["taskArns"]
            return Handle(arns[0]) if arns else None

        return find_in_time(listed, FIND_WAITS)

    def _poll(self, handles: Sequence[Handle]) -> Mapping[str, Ended]:
        ended: dict[str, Ended] = {}
        asked = {handle.id: handle.asked for handle in handles}
        for arns in batches(list(asked), DESCRIBE_AT_ONCE):
            answer = self._ecs.describe_tasks(cluster=self._settings.cluster, tasks=arns)
            for task in answer["tasks"]:
                arn = task["taskArn"]
                self._missing.pop(arn, None)
                if started := task.get("startedAt"):
                    self._begun[arn] = started
                if end := answers.ended(task, self._settings.container):
                    ended[arn], self._usages[arn] = end, answers.usage(task)
                elif stuck := answers.stuck(task, datetime.now(UTC)):
                    self._stop([Handle(arn)])  # else it might start beside the next attempt
                    ended[arn] = stuck
            for failure in answer["failures"]:
                arn = failure["arn"]
                requested = asked[arn]
                missed = self._missing.setdefault(arn, time.monotonic())
                seconds = (datetime.now(UTC) - requested).total_seconds() if requested else time.monotonic() - missed
                if seconds >= MISSING_SECONDS:  # until then ECS may not know it yet
                    ended[arn] = Ended(f"is unknown to ECS ({failure.get('reason')})", transient=True)
        return ended

    def _stop(self, handles: Sequence[Handle]) -> dict[str, Exception]:
        """Stops a task: ECS sends SIGTERM, and SIGKILL after the container's stopTimeout."""
        reason = "the Dagster run that started it was terminated, or gave up on it"
        try:
            self._ecs.stop_task(cluster=self._settings.cluster, task=handles[0].id, reason=reason)
        except ClientError as error:
            message = error.response["Error"].get("Message", "")
            if not ("not found" in message and "task" in message):
                raise
        return {}

    def link(self, handle: Handle) -> str:
        """Returns the URL of the task's log in the console."""
        return answers.link(handle.id)

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
        raise NotStarted(f"the table's size over LAKEHOUSE_ECS_VCPUS … is {problem}", transient=False)
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
