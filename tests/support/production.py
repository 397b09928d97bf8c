"""The surroundings that deploy/dagster.yaml names, on this machine: PostgreSQL, an S3 with its bucket, ECS as far as
the run launcher asks it. No tests here; which processes see them is the tests' to say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import dagster as dg
from dagster._core.definitions.assets.job.asset_job import IMPLICIT_ASSET_JOB_NAME
from dagster._core.definitions.reconstruct import ReconstructableRepository

from lakehouse_assets.run.jobs import NO_TAGS
from tests.conftest import missing
from tests.support.fakes.agent import Process
from tests.support.fakes.logs import FakeLogs
from tests.support.fakes.task_metadata import task_metadata
from tests.support.fakes.wire import Fault, Service, serving
from tests.support.faults import span
from tests.support.postgres import binaries, postgresql
from tests.support.servers import ACCESS_KEY, REGION, SECRET_KEY, SeaweedFS

ROOT = Path(__file__).parents[2]
STACK = ROOT / "deploy" / "stacks" / "dagster.yaml"
CLUSTER = f"arn:aws:ecs:{REGION}:123456789012:cluster/lakehouse"
DAEMON_TASK = f"arn:aws:ecs:{REGION}:123456789012:task/lakehouse/0123456789abcdef0123456789abcdef"
SUBNET = "subnet-0a1b2c3d"
TASK_DEFINITION = f"arn:aws:ecs:{REGION}:123456789012:task-definition/lakehouse-run:7"
BUCKET = "logs"
# Of the container `run`, as docs/aws.md asks for it: the most that Fargate gives.
STOP_TIMEOUT = 120


class RunTasks:
    """ECS as the run launcher uses it: its own task described, runs' tasks started, described and stopped; their
    commands really run. folder: for their logs. command: run in place of what is asked for. interface: of the daemon's
    task, which the run launcher asks EC2 for. https://docs.aws.amazon.com/AmazonECS/latest/APIReference"""

    def __init__(self, folder: Path, command: Sequence[str] | None = None, interface: str = "") -> None:
        self.started: dict[str, Process] = {}
        self.throttled = 0  # so many of the next requests for a task
        self._folder, self._command, self._interface = folder, command, interface

    def describe_task_definition(self, taskDefinition: str, **_: Any) -> dict[str, Any]:
        _refuse(taskDefinition not in ("lakehouse-run", TASK_DEFINITION), "Unable to describe task definition.")
        options = {"awslogs-group": "/lakehouse", "awslogs-region": REGION, "awslogs-stream-prefix": "run"}
        containers = [
            {
                "name": "run",
                "image": "lakehouse-assets",
                "essential": True,
                "stopTimeout": STOP_TIMEOUT,
                "logConfiguration": {"logDriver": "awslogs", "options": options},
            }
        ]
        return {"taskDefinition": {"taskDefinitionArn": TASK_DEFINITION, "containerDefinitions": containers}}

    def run_task(self, taskDefinition: str, overrides: dict[str, Any], **asked: Any) -> dict[str, Any]:
        if self.throttled:
            self.throttled -= 1
            raise Fault("ThrottlingException", "Rate exceeded")
        _refuse(taskDefinition != TASK_DEFINITION, "TaskDefinition not found.")
        _refuse(asked["cluster"] != CLUSTER, "Cluster not found.")
        _refuse(len(json.dumps(overrides)) > 8192, "Container Overrides length must be at most 8192")
        _refuse(asked["networkConfiguration"]["awsvpcConfiguration"]["subnets"] != [SUBNET], "No such subnet.")
        (container,) = overrides["containerOverrides"]
        _refuse(container["name"] != "run", "Override for a container that is not in the TaskDefinition.")
        arn = f"arn:aws:ecs:{REGION}:123456789012:task/lakehouse/{uuid.uuid4().hex}"
        # A task definition gives a run the same environment as the daemon's.
        process = Process(
            self._command or container["command"], dict(os.environ), self._folder / arn.rpartition("/")[2]
        )
        self.started[arn] = process
        process.look()
        return {"tasks": [self._described(arn)], "failures": []}

    def lines(self, group: str, stream: str) -> list[str] | None:
        """The log of a task, as the awslogs driver names it: prefix/container/task id."""
        found = [process for arn, process in self.started.items() if arn.endswith(f"/{stream.rpartition('/')[2]}")]
        return found[0].tail(1000) if found and (group, stream[:8]) == ("/lakehouse", "run/run/") else None

    def describe_tasks(self, tasks: list[str], **_: Any) -> dict[str, Any]:
        return {"tasks": [self._described(arn) for arn in tasks], "failures": []}

    def stop_task(self, task: str, **_: Any) -> dict[str, Any]:
        threading.Thread(target=self.started[task].stop, args=(STOP_TIMEOUT,), daemon=True).start()
        return {"task": self._described(task)}

    def _described(self, arn: str) -> dict[str, Any]:
        task = {"taskArn": arn, "taskDefinitionArn": TASK_DEFINITION, "clusterArn": CLUSTER}
        task |= {"launchType": "FARGATE", "lastStatus": "RUNNING"}
        if arn == DAEMON_TASK:
            details = [{"name": "subnetId", "value": SUBNET}]
            if self._interface:
                details.append({"name": "networkInterfaceId", "value": self._interface})
            return task | {"attachments": [{"type": "ElasticNetworkInterface", "details": details}]}
        status = {"pending": "PENDING", "running": "RUNNING", "ended": "STOPPED"}[self.started[arn].look()]
        container = {"name": "run", "lastStatus": status}
        if (code := self.started[arn].code) is not None:
            container["exitCode"] = code
        return task | {"lastStatus": status, "containers": [container]}


def _refuse(wrong: bool, message: str) -> None:
    if wrong:
        raise Fault("InvalidParameterException", message)


@contextmanager
def surroundings(weed: SeaweedFS, tasks: RunTasks) -> Iterator[dict[str, str]]:
    """Started and ended; yields the environment variables. Skips where PostgreSQL is not installed."""
    if binaries() is None:
        missing("PostgreSQL is not installed (Debian's package: postgresql)")
    own = {"": {"Name": "daemon"}, "/task": {"Cluster": CLUSTER, "TaskARN": DAEMON_TASK}}
    with (
        postgresql() as database,
        serving(Service("ecs", tasks)) as ecs,
        serving(Service("logs", FakeLogs(tasks.lines))) as logs,
        task_metadata(own.get) as metadata,
    ):
        session = boto3.Session(ACCESS_KEY, SECRET_KEY, region_name=REGION)
        session.client("s3", endpoint_url=weed.s3_endpoint).create_bucket(Bucket=BUCKET)
        yield {
            "DAGSTER_POSTGRES_HOST": database.host,
            "DAGSTER_POSTGRES_PORT": str(database.port),
            "DAGSTER_POSTGRES_DB": database.database,
            "DAGSTER_POSTGRES_USER": database.user,
            "DAGSTER_POSTGRES_PASSWORD": "trusted",
            "DAGSTER_LOGS_BUCKET": BUCKET,
            "DAGSTER_RUN_TASK_DEFINITION": "lakehouse-run",
            **dict(re.findall(r'Name: (AWS_MAX_ATTEMPTS), Value: "(\d+)"', STACK.read_text())),
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_ENDPOINT_URL_S3": weed.s3_endpoint,
            "AWS_ENDPOINT_URL_ECS": ecs.url,
            "AWS_ENDPOINT_URL_CLOUDWATCH_LOGS": logs.url,
            "ECS_CONTAINER_METADATA_URI_V4": metadata,
        }


def created(
    instance: dg.DagsterInstance, module: str, asset: str, keys: Sequence[str], tags: Mapping[str, str] = NO_TAGS
) -> dg.DagsterRun:
    """A run of the asset's partitions, not launched yet."""
    job = ReconstructableRepository.for_module(module, "defs", str(ROOT)).get_reconstructable_job(
        IMPLICIT_ASSET_JOB_NAME
    )
    return instance.create_run_for_job(
        job_def=job.get_definition(),
        tags={**span(keys), **tags},
        asset_selection=frozenset([dg.AssetKey(["demo", asset])]),
        job_code_origin=job.get_python_origin(),
    )


def validated(environment: Mapping[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """`dagster definitions validate` with nothing but this environment. folder: for its home."""
    bare = {"PATH": os.environ["PATH"], "HOME": str(folder), "DAGSTER_HOME": str(folder), "LAKEHOUSE_HOME": str(folder)}
    return subprocess.run(
        [sys.executable, "-m", "dagster", "definitions", "validate", "-m", "lakehouse_assets.definitions"],
        cwd=ROOT,
        env={**environment, **bare, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
