"""A site of EMR Serverless for tests of what runs workers there: the service on loopback and how to use it.
What it does is emr_serverless_service.py's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.fakes.emr_serverless_service import APPLICATION, FakeEmrServerless
from tests.support.fakes.job_runs import ROLE, JobRunsSite, job_runs_site
from tests.support.fakes.logs import FakeLogs
from tests.support.fakes.spark_node import SparkNode
from tests.support.fakes.wire import Service, serving
from tests.support.servers import SeaweedFS


@contextmanager
def emr_serverless_site(
    weed: SeaweedFS, folder: Path, *, master: str = "local[2]", command: Sequence[str] | None = None
) -> Iterator[JobRunsSite]:
    """EMR Serverless with one application, and CloudWatch Logs; the arguments are those of job_runs_site()."""
    own = {
        "LAKEHOUSE_COMPUTE": "emr_serverless",
        "LAKEHOUSE_EMR_SERVERLESS_APPLICATION": APPLICATION,
        "LAKEHOUSE_EMR_SERVERLESS_ROLE": ROLE,
    }

    def make(node: SparkNode) -> FakeEmrServerless:
        return FakeEmrServerless(node, f"{weed.plain}/logs/{folder.name}")

    with (
        job_runs_site(make, "emr-serverless", own, weed, folder, master=master, command=command) as site,
        serving(Service("logs", FakeLogs(site.emr.lines))) as logs,
    ):
        site.environment["AWS_ENDPOINT_URL_CLOUDWATCH_LOGS"] = logs.url
        yield site
