"""EMR on EKS as its API reference has it: job runs on one virtual cluster, their states, and where their logs go.
How jobs run is job_runs.py's; there is no Kubernetes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from tests.support.fakes.job_runs import PAGE, FakeJobRuns, Job, demand, demand_values
from tests.support.fakes.wire import Fault

# https://docs.aws.amazon.com/emr-on-eks/latest/APIReference/API_StartJobRun.html
NAME = re.compile(r"[.\-_/#A-Za-z0-9]{1,64}")
ENTRY_POINT, ARGUMENT, PARAMETERS, DETAILS, TAGS = 256, 10_280, 102_400, 256, 50
RELEASE = re.compile(r"emr-\d+\.\d+\.\d+-(latest|\d{8})")
CANCELLABLE = ("PENDING", "SUBMITTED", "RUNNING")
VIRTUAL_CLUSTER = "9wvd1yhms5tk1k8chrn525z34"
SEE_LOGS = "Please refer logs uploaded to S3/CloudWatch based on your monitoring configuration."


class FakeEmrEks(FakeJobRuns):
    """The service. queue: how many job runs may wait, by the virtual cluster's schedulerConfiguration; None for any."""

    waiting, well = ("PENDING", "SUBMITTED"), "COMPLETED"
    lost = f"JobRun failed. The driver pod was Evicted: the node was low on resources. {SEE_LOGS}"
    queue: int | None = None

    def submitted(self, job: Job) -> dict[str, Any]:
        driver: dict[str, Any] = job.request["jobDriver"]["sparkSubmitJobDriver"]
        return driver

    def log_of(self, job: Job) -> str:
        """https://aws.github.io/aws-emr-containers-best-practices/troubleshooting/docs/where-to-look-for-spark-logs"""
        monitoring = job.request["configurationOverrides"]["monitoringConfiguration"]
        uri = monitoring["s3MonitoringConfiguration"]["logUri"]
        pod = f"spark-{job.id}/spark-{job.id}-driver"
        return f"{uri}/{VIRTUAL_CLUSTER}/jobs/{job.id}/containers/{pod}/stderr.gz"

    def exited(self, code: int) -> str:
        return f"JobRun failed. The driver's container ended with exit code: {code}. {SEE_LOGS}"

    # The API

    def start_job_run(self, virtualClusterId: str, **request: Any) -> dict[str, Any]:
        self._virtual_cluster(virtualClusterId, "ResourceNotFoundException")
        driver = request["jobDriver"]["sparkSubmitJobDriver"]
        conditions = {
            "name": NAME.fullmatch(request.get("name", "x")),
            "entryPoint": len(driver["entryPoint"]) <= ENTRY_POINT,
            "entryPointArguments": all(len(one) <= ARGUMENT for one in driver.get("entryPointArguments", ())),
            "sparkSubmitParameters": 1 <= len(driver.get("sparkSubmitParameters", "x")) <= PARAMETERS,
        }
        demand_values(request, conditions, TAGS)
        release = request["releaseLabel"]
        demand(RELEASE.fullmatch(release), "ResourceNotFoundException", f"Release {release} doesn't exist.")
        room = self.queue is None or len(self.having(*self.waiting)) < self.queue
        demand(room, "ValidationException", "The job run queue of the virtual cluster is full.")
        used = f"Client token {request['clientToken']} was used with other parameters."
        job = self.make(request, Fault("ValidationException", used))
        return {"id": job.id, "name": request["name"], "arn": arn(job), "virtualClusterId": virtualClusterId}

    def list_job_runs(
        self,
        virtualClusterId: str,
        nextToken: str = "0",
        maxResults: int = PAGE,
        createdAfter: datetime | None = None,
        createdBefore: datetime | None = None,
        name: str | None = None,
        states: Sequence[str] = (),
    ) -> dict[str, Any]:
        self._virtual_cluster(virtualClusterId)

        def which(job: Job) -> bool:
            late = createdBefore is not None and job.created > createdBefore
            early = createdAfter is not None and job.created < createdAfter
            return not late and not early and name in (None, job.request["name"])

        return self.page(nextToken, maxResults, states, which, whole)

    def describe_job_run(self, virtualClusterId: str, id: str) -> dict[str, Any]:
        return {"jobRun": whole(self._job(virtualClusterId, id))}

    def cancel_job_run(self, virtualClusterId: str, id: str) -> dict[str, Any]:
        demand(id in self.jobs, "ValidationException", f"Job run {id} doesn't exist.")
        job = self._job(virtualClusterId, id)
        demand(job.state in CANCELLABLE, "ValidationException", f"Job run {id} is not in a cancellable state")
        self.cancel(job, "JobRun CANCELLED successfully.")
        return {"id": id, "virtualClusterId": virtualClusterId}

    def _virtual_cluster(self, id: str, code: str = "ValidationException") -> None:
        demand(id == VIRTUAL_CLUSTER, code, f"Virtual cluster {id} doesn't exist.")

    def _job(self, cluster: str, id: str) -> Job:
        self._virtual_cluster(cluster, "ResourceNotFoundException")
        demand(id in self.jobs, "ResourceNotFoundException", f"Job run {id} doesn't exist.")
        return self.jobs[id]


def arn(job: Job) -> str:
    return f"arn:aws:emr-containers:us-east-1:123456789012:/virtualclusters/{VIRTUAL_CLUSTER}/jobruns/{job.id}"


def whole(job: Job) -> dict[str, Any]:
    """A job run as DescribeJobRun and lists have it. Nothing says when it began."""
    names = ("name", "clientToken", "executionRoleArn", "releaseLabel", "configurationOverrides", "jobDriver", "tags")
    described = {name: job.request[name] for name in names if name in job.request}
    described |= {"id": job.id, "arn": arn(job), "virtualClusterId": VIRTUAL_CLUSTER, "state": job.state}
    described |= {"createdAt": job.created, "createdBy": "arn:aws:sts::123456789012:assumed-role/runs/somebody"}
    described |= {"stateDetails": job.details[:DETAILS]}
    if job.ended:
        described["finishedAt"] = job.ended
    if job.state == "FAILED":
        described["failureReason"] = job.why or "USER_ERROR"
    return described
