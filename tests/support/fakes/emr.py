"""A site of EMR for tests of what runs workers there: the service on loopback, its machine, and how to use them.
What it does is emr_service.py's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tests.support.fakes.agent import Process, ticking
from tests.support.fakes.emr_service import Cluster, FakeEmr
from tests.support.fakes.plain_node import plain_node
from tests.support.fakes.spark_node import spark_node
from tests.support.fakes.wire import Service, serving
from tests.support.servers import SeaweedFS

NAME = "lakehouse"


@dataclass
class EmrSite:
    """EMR, running, with one cluster. environment: what a code location needs to send its workers there. asks: the
    operation that asks for a worker."""

    emr: FakeEmr
    service: Service
    environment: dict[str, str]
    side_by_side: int
    asks: ClassVar[str] = "AddJobFlowSteps"

    @property
    def cluster(self) -> Cluster:
        """The youngest."""
        return list(self.emr.clusters.values())[-1]

    def start_cluster(self) -> Cluster:
        instances = {"KeepJobFlowAliveWhenNoSteps": True}
        tags = [{"Key": "team", "Value": "data"}]
        self.emr.run_job_flow(Name=NAME, Instances=instances, Tags=tags, StepConcurrencyLevel=self.side_by_side)
        return self.cluster

    def interrupt(self) -> None:
        """The workers that run are lost, and it is nobody's fault; another cluster takes their cluster's place."""
        lost = self.cluster
        self.start_cluster()
        self.emr.terminate(lost, "INSTANCE_FAILURE", "The master node was terminated. ")

    def cancel(self) -> None:
        """Somebody cancels the workers that run, in the console."""
        for step in self.emr.steps("RUNNING"):
            self.emr.cancel(step)

    def running(self) -> int:
        return len(self.emr.steps("RUNNING"))

    def started(self) -> int:
        return len(self.emr.steps())

    def workers(self) -> list[tuple[str, Process | None]]:
        """Of each worker that was asked for, the key of its attempt and its process, if it has one already."""
        return [(step.config["Name"].rpartition(" ")[2], step.process) for step in self.emr.steps()]


@contextmanager
def emr_site(
    weed: SeaweedFS,
    folder: Path,
    *,
    master: str = "local[2]",
    command: Sequence[str] | None = None,
    side_by_side: int = 2,
) -> Iterator[EmrSite]:
    """EMR over ``folder``, whose cluster reaches SeaweedFS; all processes are gone afterwards.

    master: of the cluster's Spark. command: run in Spark's place, with the entry point's arguments. side_by_side: how
    many steps run at once.
    """
    folder.mkdir(parents=True, exist_ok=True)
    node = plain_node(weed, folder, command) if command else spark_node(weed, folder, master)
    emr = FakeEmr(node, f"s3n://{weed.plain.removeprefix('s3://')}/logs/{folder.name}/")
    service = Service("emr", emr)
    with serving(service), ticking(emr.tick, emr.end):
        environment = {
            **weed.environment(),
            "AWS_DEFAULT_REGION": weed.environment()["AWS_REGION"],
            "AWS_ENDPOINT_URL_S3": weed.s3_endpoint,
            "AWS_ENDPOINT_URL_EMR": service.url,
            "LAKEHOUSE_COMPUTE": "emr",
            "LAKEHOUSE_STAGING": f"{weed.plain}/staging/{folder.name}",
            "LAKEHOUSE_LANDING": f"{weed.plain}/landing/{folder.name}",
            "LAKEHOUSE_CODE": f"{weed.plain}/code",
            "LAKEHOUSE_EMR_CLUSTER": f"name:{NAME}",
        }
        site = EmrSite(emr, service, environment, side_by_side)
        site.start_cluster()
        yield site
