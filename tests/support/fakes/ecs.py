"""A site of ECS and CloudWatch Logs for tests of what runs workers there: both running, and the environment to use.
What they do is ecs_service.py's and logs.py's."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from lakehouse_assets.environment.machine import java_home
from lakehouse_assets.environment.settings import read_settings
from tests.support.fakes.agent import Process, ticking
from tests.support.fakes.ecs_rules import CLUSTER, FAMILY
from tests.support.fakes.ecs_service import FakeEcs
from tests.support.fakes.logs import FakeLogs
from tests.support.fakes.task_metadata import task_metadata
from tests.support.fakes.wire import Service, serving
from tests.support.servers import ACCESS_KEY, REGION, SECRET_KEY, SeaweedFS

ROOT = Path(__file__).parents[3]


@dataclass
class EcsSite:
    """ECS and CloudWatch Logs, running. environment: what a code location needs to send its workers there. asks: the
    operation that asks for a worker."""

    ecs: FakeEcs
    service: Service
    logs: Service
    environment: dict[str, str]
    asks: ClassVar[str] = "RunTask"

    def interrupt(self) -> None:
        """The workers that run are lost, and it is nobody's fault."""
        self.ecs.interrupt()

    def cancel(self) -> None:
        """Somebody stops the workers that run, in the console."""
        for task in self.ecs.running():
            self.ecs.stop_task(task.arn, CLUSTER, "by hand")

    def running(self) -> int:
        return len(self.ecs.running())

    def started(self) -> int:
        return len(self.ecs.tasks)

    def workers(self) -> list[tuple[str, Process]]:
        """Of each worker that was started, the key of its attempt and its process."""
        return [(task.request["startedBy"], task.process) for task in self.ecs.tasks.values()]


@contextmanager
def ecs_site(weed: SeaweedFS, folder: Path, *, command: Sequence[str] | None = None) -> Iterator[EcsSite]:
    """The fakes over ``folder``, whose tasks reach SeaweedFS; all processes are gone afterwards.

    command: run in place of the one that a task is asked for with.
    """
    folder.mkdir(parents=True, exist_ok=True)
    aws = {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ENDPOINT_URL_S3": weed.s3_endpoint,
    }
    ecs = FakeEcs(folder, image(folder) | aws | _secrets(weed), command)
    service, logs = Service("ecs", ecs), Service("logs", FakeLogs(ecs.lines))
    with (
        serving(service),
        serving(logs),
        task_metadata(ecs.metadata) as ecs.metadata_url,
        ticking(ecs.look, ecs.end),
    ):
        environment = {
            **weed.environment(),
            **aws,
            "AWS_ENDPOINT_URL_ECS": service.url,
            "AWS_ENDPOINT_URL_CLOUDWATCH_LOGS": logs.url,
            "LAKEHOUSE_COMPUTE": "ecs",
            "LAKEHOUSE_STAGING": f"{weed.plain}/staging/{folder.name}",
            "LAKEHOUSE_LANDING": f"{weed.plain}/landing/{folder.name}",
            "LAKEHOUSE_ECS_CLUSTER": CLUSTER,
            "LAKEHOUSE_ECS_TASK_DEFINITION": FAMILY,
            "LAKEHOUSE_ECS_SUBNETS": "subnet-0a1b2c,subnet-3d4e5f",
            "LAKEHOUSE_ECS_SECURITY_GROUPS": "sg-0a1b2c",
            "LAKEHOUSE_ECS_CAPACITY": "FARGATE_SPOT=3,FARGATE=1",
        }
        yield EcsSite(ecs, service, logs, environment)


def image(folder: Path) -> dict[str, str]:
    """What a worker's image brings: Python's code, Java, the jars."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "JAVA_HOME": str(java_home()),
        "PYTHONPATH": str(ROOT),
        "LAKEHOUSE_HOME": str(folder / "home"),
        "LAKEHOUSE_CACHE": str(read_settings().cache),
    }


def _secrets(weed: SeaweedFS) -> dict[str, str]:
    """The catalog's keys: an assignment brings everything else."""
    return {name: value for name, value in weed.environment().items() if "ACCESS_KEY" in name}
