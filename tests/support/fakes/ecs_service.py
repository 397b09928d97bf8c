"""ECS over real processes: what it answers, how late it knows, and how tasks end, by AWS's documentation.
What it refuses is ecs_rules.py's; how a test gets one is ecs.py's."""

from __future__ import annotations

import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.support.fakes.agent import Process
from tests.support.fakes.ecs_rules import (
    CLUSTER,
    CONTAINER,
    FAMILY,
    FARGATE,
    IMAGE,
    LOG_GROUP,
    LOG_PREFIX,
    PREFIX,
    check_cluster,
    check_request,
    refuse,
)
from tests.support.servers import REGION


@dataclass
class Task:
    """One task. stopping: why ECS wants it stopped, as (stopCode, stoppedReason). container_reason: the container's own
    reason. code_known: whether the container's exit code is known."""

    arn: str
    request: Mapping[str, Any]
    definition: Mapping[str, Any]
    process: Process
    created: float = field(default_factory=time.time)
    stopping: tuple[str, str] | None = None
    container_reason: str | None = None
    code_known: bool = True
    forgotten: bool = False

    @property
    def status(self) -> str:
        looks = {"pending": "PENDING", "running": "RUNNING", "ended": "STOPPED"}[self.process.look()]
        return "STOPPING" if looks == "RUNNING" and self.stopping else looks

    def size(self, name: str) -> str:
        return self.request.get("overrides", {}).get(name) or self.definition[name]

    def describe(self) -> dict[str, Any]:
        status = self.status
        ended = status == "STOPPED"
        code, reason = self.stopping or ("EssentialContainerExited", "Essential container in task exited")
        container = {"name": CONTAINER, "taskArn": self.arn, "lastStatus": status, "image": IMAGE}
        if ended and self.code_known and self.process.code is not None:
            container["exitCode"] = self.process.code
        strategy = self.request["capacityProviderStrategy"]
        provider = max(strategy, key=lambda item: item.get("weight", 0))["capacityProvider"]
        started = _at(self.process.started_at)
        return {
            "taskArn": self.arn,
            "clusterArn": f"{PREFIX}:cluster/{CLUSTER}",
            "taskDefinitionArn": self.definition["taskDefinitionArn"],
            "containers": [container | ({"reason": self.container_reason} if self.container_reason else {})],
            "attributes": [{"name": "ecs.cpu-architecture", "value": "x86_64"}],
            "lastStatus": status,
            "desiredStatus": "STOPPED" if ended or self.stopping else "RUNNING",
            "launchType": "FARGATE" if provider in FARGATE else "EC2",
            "capacityProviderName": provider,
            "cpu": self.size("cpu"),
            "memory": self.size("memory"),
            "ephemeralStorage": self.request.get("overrides", {}).get("ephemeralStorage", {"sizeInGiB": 20}),
            "overrides": self.request.get("overrides", {}),
            "tags": self.request.get("tags", []),
            "startedBy": self.request.get("startedBy", ""),
            "createdAt": _at(self.created),
            **({"pullStartedAt": started, "startedAt": started} if started else {}),
            **({"stopCode": code, "stoppedReason": reason} if ended or self.stopping else {}),
            **({"stoppedAt": _at(self.process.ended_at)} if ended else {}),
        }


class FakeEcs:
    """The operations, over one cluster and one task definition.

    delay: seconds until a task starts. lag: seconds in which DescribeTasks and ListTasks don't know a task yet.
    refusals: reasons that the next RunTasks place no task for. start_failures: stoppedReasons of the next tasks, which
    never start. hosts: what the next tasks find in their environment over all else. active: whether the task definition
    may be run. command: run in place of what is asked for. metadata_url: where metadata() is served to the tasks.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], command: Sequence[str] | None = None) -> None:
        self.delay = self.lag = 0.0
        self.refusals: deque[str] = deque()
        self.start_failures: deque[str] = deque()
        self.hosts: deque[Mapping[str, str]] = deque()
        self.active = True
        self.metadata_url = ""
        self.tasks: dict[str, Task] = {}
        self._folder = folder
        self._command = command
        self._tokens: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
        options = {"awslogs-group": LOG_GROUP, "awslogs-region": REGION, "awslogs-stream-prefix": LOG_PREFIX}
        self.definition: dict[str, Any] = {
            "taskDefinitionArn": f"{PREFIX}:task-definition/{FAMILY}:1",
            "family": FAMILY,
            "revision": 1,
            "networkMode": "awsvpc",
            "requiresCompatibilities": ["FARGATE"],
            "cpu": "1024",
            "memory": "4096",
            "status": "ACTIVE",
            "containerDefinitions": [
                {
                    "name": CONTAINER,
                    "image": IMAGE,
                    "essential": True,
                    "environment": [{"name": name, "value": value} for name, value in environment.items()],
                    "logConfiguration": {"logDriver": "awslogs", "options": options},
                }
            ],
        }

    # what a test does to it

    def running(self) -> list[Task]:
        return [task for task in self.tasks.values() if task.status == "RUNNING" and not task.stopping]

    def interrupt(self) -> None:
        """Spot takes its capacity back: what runs is killed, and no exit code is known."""
        for task in self.running():
            task.stopping, task.code_known = ("SpotInterruption", "Your Spot Task was interrupted."), False
            task.process.kill()

    def run_out_of_memory(self) -> None:
        for task in self.running():
            task.container_reason = "OutOfMemoryError: Container killed due to memory usage"
            task.process.kill()

    def forget(self) -> None:
        """DescribeTasks knows the tasks no more (an hour after they stopped, or when ECS has trouble)."""
        for task in self.tasks.values():
            task.forgotten = True

    def look(self) -> None:
        """At all tasks, so that they start and end."""
        for task in tuple(self.tasks.values()):
            task.process.look()

    def end(self) -> None:
        for task in self.tasks.values():
            task.process.kill()

    def lines(self, group: str, stream: str) -> list[str] | None:
        """The log of a task, as the awslogs driver names it: prefix/container/task id."""
        prefix, _, task = stream.rpartition("/")
        found = self.tasks.get(f"{PREFIX}:task/{CLUSTER}/{task}")
        if found is None or (group, prefix) != (LOG_GROUP, f"{LOG_PREFIX}/{CONTAINER}") or not found.process.started_at:
            return None
        return found.process.tail(1000)

    def metadata(self, path: str) -> dict[str, Any] | None:
        """What a task's container sees at ``/<task id>``, and ``/<task id>/task``, of the endpoint's address."""
        name, _, what = path.strip("/").partition("/")
        if (task := self.tasks.get(f"{PREFIX}:task/{CLUSTER}/{name}")) is None:
            return None
        if not what:
            return {"Name": CONTAINER, "Image": IMAGE, "Limits": {"CPU": 2}, "Type": "NORMAL"}
        limits = {"CPU": int(task.size("cpu")) / 1024, "Memory": int(task.size("memory"))}
        return {"Cluster": CLUSTER, "TaskARN": task.arn, "Family": FAMILY, "Limits": limits, "LaunchType": "FARGATE"}

    # operations

    def run_task(
        self, taskDefinition: str, cluster: str = "default", clientToken: str = "", **asked: Any
    ) -> dict[str, Any]:
        check_cluster(cluster)
        request = {"taskDefinition": taskDefinition, **asked}
        if clientToken in self._tokens:
            return self._again(*self._tokens[clientToken], request)
        refuse(not self._named(taskDefinition), "ClientException", "TaskDefinition not found.")
        refuse(not self.active, "ClientException", "TaskDefinition is inactive")
        check_request(request, clientToken, self.definition)
        if self.refusals:
            answer = {"tasks": [], "failures": [{"reason": self.refusals.popleft()}]}
        else:
            answer = {"tasks": [self._place(request).describe()], "failures": []}
        if clientToken:
            self._tokens[clientToken] = (request, answer)
        return answer

    def _again(self, before: dict[str, Any], answer: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
        """https://docs.aws.amazon.com/AmazonECS/latest/APIReference/ECS_Idempotency.html"""
        arns = [task["taskArn"] for task in answer["tasks"]]
        problem = "The clientToken is already in use with a different request."
        refuse(before != request, "ConflictException", problem, resourceIds=arns)
        tasks = [self.tasks[arn].describe() for arn in arns]
        short = ("taskArn", "lastStatus", "desiredStatus")
        return {
            "tasks": [t if t["lastStatus"] != "STOPPED" else {name: t[name] for name in short} for t in tasks],
            "failures": answer["failures"],
        }

    def _place(self, request: dict[str, Any]) -> Task:
        name = uuid.uuid4().hex
        (own,) = self.definition["containerDefinitions"]
        (over,) = request.get("overrides", {}).get("containerOverrides") or [{}]
        variables = [*own["environment"], *over.get("environment", [])]
        if self.metadata_url:
            variables.append({"name": "ECS_CONTAINER_METADATA_URI_V4", "value": f"{self.metadata_url}/{name}"})
        python, *rest = self._command or over.get("command") or ["true"]
        process = Process(
            [sys.executable if python == "python" else python, *rest],
            {v["name"]: v["value"] for v in variables} | dict(self.hosts.popleft() if self.hosts else {}),
            self._folder / f"{name}.log",
            self.delay,
        )
        task = Task(f"{PREFIX}:task/{CLUSTER}/{name}", request, self.definition, process)
        if self.start_failures:
            reason = self.start_failures.popleft()
            task.stopping, task.container_reason = ("TaskFailedToStart", reason), reason
            process.kill()
        self.tasks[task.arn] = task
        return task

    def list_tasks(self, cluster: str = "default", **asked: Any) -> dict[str, Any]:
        check_cluster(cluster)
        # «When you specify startedBy as the filter, it must be the only filter that you use.»
        problem = "startedBy must be the only filter"
        refuse("startedBy" in asked and len(asked) > 1, "InvalidParameterException", problem)
        wanted = asked.get("desiredStatus", "RUNNING")
        known = [task.describe() for task in self.tasks.values() if self._known(task)]
        return {
            "taskArns": [
                task["taskArn"]
                for task in known
                if task["desiredStatus"] == wanted and task["startedBy"] == asked.get("startedBy", task["startedBy"])
            ]
        }

    def describe_tasks(self, tasks: list[str], cluster: str = "default", **_: Any) -> dict[str, Any]:
        check_cluster(cluster)
        refuse(len(tasks) > 100, "InvalidParameterException", "Tasks cannot be more than 100.")
        found = {arn: self.tasks.get(arn) for arn in tasks}
        known = [task for task in found.values() if task and self._known(task)]
        missing = found.keys() - {task.arn for task in known}
        return {
            "tasks": [task.describe() for task in known],
            "failures": [{"arn": arn, "reason": "MISSING"} for arn in sorted(missing)],
        }

    def stop_task(self, task: str, cluster: str = "default", reason: str = "Task stopped by user") -> dict[str, Any]:
        check_cluster(cluster)
        refuse(task not in self.tasks, "InvalidParameterException", "The referenced task was not found.")
        found = self.tasks[task]
        if found.status != "STOPPED" and not found.stopping:
            found.stopping = ("UserInitiated", reason)
            threading.Thread(target=found.process.stop, daemon=True).start()
        return {"task": found.describe()}

    def describe_task_definition(self, taskDefinition: str, **_: Any) -> dict[str, Any]:
        refuse(not self._named(taskDefinition), "ClientException", "Unable to describe task definition.")
        return {"taskDefinition": {**self.definition, "status": "ACTIVE" if self.active else "INACTIVE"}}

    def _named(self, name: str) -> bool:
        return name in (FAMILY, f"{FAMILY}:1", self.definition["taskDefinitionArn"])

    def _known(self, task: Task) -> bool:
        return not task.forgotten and time.time() >= task.created + self.lag


def _at(seconds: float | None) -> datetime | None:
    return datetime.fromtimestamp(seconds).astimezone() if seconds else None
