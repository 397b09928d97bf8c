"""The launchers whose workers are job runs, over strict fakes on HTTP whose jobs are processes that sleep.
No test here: what both do alike is tests/unit/extensions/aws/test_job_runs.py's, the rest is in a module for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lakehouse_assets.environment.launchers.base import Handle
from lakehouse_assets.environment.settings import read_settings
from lakehouse_assets.extensions.aws import aws_launcher, job_runs
from tests.support.fakes.emr_eks_service import VIRTUAL_CLUSTER, FakeEmrEks
from tests.support.fakes.emr_serverless_service import APPLICATION, FakeEmrServerless
from tests.support.fakes.job_runs import ROLE, Job
from tests.support.fakes.logs import FakeLogs
from tests.support.fakes.plain_node import PlainNode
from tests.support.fakes.wire import Service, serving
from tests.unit.extensions.aws.test_emr_launcher import CODE

ENVIRONMENT = {
    "LAKEHOUSE_CODE": "s3://bucket/code",
    "LAKEHOUSE_STAGING": "s3://bucket/staging",
    "LAKEHOUSE_EMR_SERVERLESS_APPLICATION": APPLICATION,
    "LAKEHOUSE_EMR_SERVERLESS_ROLE": ROLE,
    "LAKEHOUSE_EMR_EKS_VIRTUAL_CLUSTER": VIRTUAL_CLUSTER,
    "LAKEHOUSE_EMR_EKS_ROLE": ROLE,
    "LAKEHOUSE_EMR_EKS_RELEASE": "emr-7.9.0-latest",
}


@dataclass
class Site:
    """A service with sleeping jobs, and launchers that use it."""

    compute: str
    service: Service
    fake: Any
    node: PlainNode
    logs: Service

    def launcher(self, **changed: str) -> Any:
        """A launcher as another process has one. changed: variables of its environment."""
        settings = read_settings({**ENVIRONMENT, **changed, "LAKEHOUSE_COMPUTE": self.compute})
        return settings.computes[self.compute].launcher(settings, "worker")

    def job(self, handle: Handle) -> Job:
        job: Job = self.fake.jobs[handle.id]
        return job

    def ticked(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline
            self.fake.tick()
            time.sleep(0.01)


@contextmanager
def sleeping_site(compute: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """The service of the compute, with CloudWatch Logs; no process is left afterwards."""
    node: Any = PlainNode(folder)
    fake = FakeEmrEks(node) if compute == "emr_eks" else FakeEmrServerless(node, "s3://bucket/logs")
    api = "emr-containers" if compute == "emr_eks" else "emr-serverless"
    for name, value in {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "eu-west-1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setattr(job_runs, "ship", lambda *_: CODE)
    monkeypatch.setattr(aws_launcher, "STOP_WAITS", (0.0, 0.05, 0.1))
    logged = fake.lines if isinstance(fake, FakeEmrServerless) else lambda group, stream: None
    with serving(Service(api, fake)) as service, serving(Service("logs", FakeLogs(logged))) as logs:
        monkeypatch.setenv(f"AWS_ENDPOINT_URL_{api.replace('-', '_').upper()}", service.url)
        monkeypatch.setenv("AWS_ENDPOINT_URL_CLOUDWATCH_LOGS", logs.url)
        yield Site(compute, service, fake, node, logs)
        fake.end()
