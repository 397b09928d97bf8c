"""A site of EMR Serverless for tests of what runs workers there: the service on loopback and how to use it.
What it does is emr_serverless_service.py's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tests.support.fakes.agent import Process, ticking
from tests.support.fakes.emr_serverless_service import APPLICATION, ROLE, FakeEmrServerless
from tests.support.fakes.logs import FakeLogs
from tests.support.fakes.plain_node import plain_node
from tests.support.fakes.spark_node import spark_node
from tests.support.fakes.wire import Service, serving
from tests.support.servers import SeaweedFS


@dataclass
class EmrServerlessSite:
    """EMR Serverless and CloudWatch Logs, running, with one application. environment: what a code location needs to
    send workers there. asks: the operation that asks for a worker."""

    emr: FakeEmrServerless
    service: Service
    environment: dict[str, str]
    asks: ClassVar[str] = "StartJobRun"

    def interrupt(self) -> None:
        """The workers that run are lost, and it is nobody's fault."""
        for job in self.emr.having("RUNNING"):
            self.emr.fail(job, "Job failed, worker was lost: insufficient capacity in the Availability Zone.")

    def cancel(self) -> None:
        """Somebody cancels the workers that run, in the console."""
        for job in self.emr.having("RUNNING"):
            self.emr.cancel(job)

    def running(self) -> int:
        return len(self.emr.having("RUNNING"))

    def started(self) -> int:
        return len(self.emr.jobs)

    def workers(self) -> list[tuple[str, Process | None]]:
        """Of each worker that was asked for, the key of its attempt and its process, if it has one already."""
        return [(job.request["name"].rpartition(" ")[2], job.process) for job in self.emr.jobs.values()]


@contextmanager
def emr_serverless_site(
    weed: SeaweedFS, folder: Path, *, master: str = "local[2]", command: Sequence[str] | None = None
) -> Iterator[EmrServerlessSite]:
    """EMR Serverless over ``folder``, whose jobs reach SeaweedFS; all processes are gone afterwards.

    master: of the jobs' Spark. command: run in Spark's place, with the entry point's arguments.
    """
    folder.mkdir(parents=True, exist_ok=True)
    node = plain_node(weed, folder, command) if command else spark_node(weed, folder, master)
    emr = FakeEmrServerless(node, f"{weed.plain}/logs/{folder.name}")
    service = Service("emr-serverless", emr)
    with serving(service), serving(Service("logs", FakeLogs(emr.lines))) as logs, ticking(emr.tick, emr.end):
        environment = {
            **weed.environment(),
            "AWS_DEFAULT_REGION": weed.environment()["AWS_REGION"],
            "AWS_ENDPOINT_URL_S3": weed.s3_endpoint,
            "AWS_ENDPOINT_URL_EMR_SERVERLESS": service.url,
            "AWS_ENDPOINT_URL_CLOUDWATCH_LOGS": logs.url,
            "LAKEHOUSE_COMPUTE": "emr_serverless",
            "LAKEHOUSE_STAGING": f"{weed.plain}/staging/{folder.name}",
            "LAKEHOUSE_LANDING": f"{weed.plain}/landing/{folder.name}",
            "LAKEHOUSE_CODE": f"{weed.plain}/code",
            "LAKEHOUSE_EMR_SERVERLESS_APPLICATION": APPLICATION,
            "LAKEHOUSE_EMR_SERVERLESS_ROLE": ROLE,
        }
        yield EmrServerlessSite(emr, service, environment)
